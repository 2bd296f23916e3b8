"""config.json files as they are published, with everything that nobody reads for memory: the long and the odd ones.

Written down from the shapes that the families publish; the texts in them are ours.
"""

from __future__ import annotations

from typing import Any

from tests.unit.inspected_text_configs import (
    NOISE,
    falcon,
    gpt_2,
    gpt_oss,
    jamba,
    kimi_linear,
    mpt,
    nemotron_h,
    phi_3_long,
    qwen3_next,
)
from tests.unit.planner_models import CONFIGS as PLAIN

Json = dict[str, Any]


def deepseek_v3() -> Json:
    return NOISE | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "attention_bias": False,
        "aux_loss_alpha": 0.001,
        "ep_size": 1,
        "first_k_dense_replace": 3,
        "hidden_act": "silu",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "v_head_dim": 128,
        "vocab_size": 129280,
    }


def deepseek_nvfp4() -> Json:
    """ModelOpt's, which lists each module that it left alone: the attention of all layers and the first dense MLPs."""
    kinds = ("self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj")
    ignored = [f"model.layers.{layer}.{kind}" for layer in range(61) for kind in (*kinds, "self_attn.o_proj")]
    ignored += [f"model.layers.{layer}.mlp.gate" for layer in range(3, 61)]
    ignored += ["lm_head", "model.layers.61.eh_proj", "model.layers.61.shared_head.head", "model.embed_tokens"]
    return deepseek_v3() | {
        "quantization_config": {
            "config_groups": {
                "group_0": {
                    "input_activations": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
                    "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
                    "targets": ["Linear"],
                }
            },
            "ignore": ignored,
            "quant_algo": "NVFP4",
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "producer": {"name": "modelopt", "version": "0.33.0"},
            "quant_method": "modelopt",
        }
    }


def mixed_modelopt() -> Json:
    """One entry for each of thousands of modules."""
    layers = {
        f"model.layers.{layer}.mlp.experts.{expert}.{name}": {"quant_algo": "NVFP4", "group_size": 16}
        for layer in range(3, 61)
        for expert in range(24)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    attention = {f"model.layers.{layer}.self_attn.o_proj": {"quant_algo": "FP8"} for layer in range(61)}
    return deepseek_v3() | {
        "quantization_config": {
            "quant_algo": "MIXED_PRECISION",
            "quant_method": "modelopt",
            "quantized_layers": layers | attention,
        }
    }


def llama_4() -> Json:
    text = NOISE | {
        "model_type": "llama4_text",
        "attention_bias": False,
        "attention_chunk_size": 8192,
        "attn_scale": 0.1,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "for_llm_compressor": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "interleave_moe_layer_step": 2,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "layer_types": (["chunked_attention"] * 3 + ["full_attention"]) * 12,
        "max_position_embeddings": 1048576,
        "moe_layers": list(range(1, 48, 2)),
        "no_rope_layers": ([1] * 3 + [0]) * 12,
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        "output_router_logits": False,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
        "use_qk_norm": False,
        "vocab_size": 202048,
    }
    vision = NOISE | {
        "model_type": "llama4_vision_model",
        "hidden_act": "gelu",
        "hidden_size": 1408,
        "image_size": 336,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_hidden_layers": 34,
        "patch_size": 14,
        "projector_input_dim": 4096,
        "projector_output_dim": 4096,
        "vision_output_dim": 4096,
    }
    return {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "boi_token_index": 200080,
        "image_token_index": 200092,
        "text_config": text,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vision_config": vision,
    }


def llama_4_w4a16() -> Json:
    """compressed-tensors with every module of the vision tower and of all attention in its list."""
    vision = [
        f"vision_model.model.layers.{layer}.{name}"
        for layer in range(34)
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.fc1")
    ]
    attention = [
        f"language_model.model.layers.{layer}.{name}"
        for layer in range(48)
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    ]
    routers = [f"language_model.model.layers.{layer}.feed_forward.router" for layer in range(1, 48, 2)]
    return llama_4() | {
        "quantization_config": {
            "config_groups": {
                "group_0": {
                    "input_activations": None,
                    "output_activations": None,
                    "targets": ["Linear"],
                    "weights": {
                        "actorder": None,
                        "block_structure": None,
                        "dynamic": False,
                        "group_size": 128,
                        "num_bits": 4,
                        "observer": "minmax",
                        "observer_kwargs": {},
                        "strategy": "group",
                        "symmetric": True,
                        "type": "int",
                    },
                }
            },
            "format": "pack-quantized",
            "global_compression_ratio": None,
            "ignore": [*vision, *attention, *routers, "multi_modal_projector.linear_1", "language_model.lm_head"],
            "kv_cache_scheme": None,
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
        }
    }


def qwen3_vl_moe() -> Json:
    return {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "model_type": "qwen3_vl_moe",
        "image_token_id": 151655,
        "text_config": NOISE
        | {
            "model_type": "qwen3_vl_moe_text",
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "dtype": "bfloat16",
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "max_position_embeddings": 262144,
            "mlp_only_layers": [],
            "moe_intermediate_size": 1536,
            "norm_topk_prob": True,
            "num_attention_heads": 64,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 94,
            "num_key_value_heads": 4,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
            "rope_theta": 5000000,
            "vocab_size": 151936,
        },
        "tie_word_embeddings": False,
        "vision_config": NOISE
        | {
            "model_type": "qwen3_vl_moe",
            "deepstack_visual_indexes": [8, 16, 24],
            "depth": 27,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 1152,
            "in_channels": 3,
            "intermediate_size": 4304,
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": 4096,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }


def qwen3_vl_moe_awq() -> Json:
    """An AutoAWQ-like list with names of all layers but the last."""
    routers = [f"model.language_model.layers.{layer}.mlp.gate" for layer in range(94)]
    first = [f"model.language_model.layers.{layer}.self_attn" for layer in (0, 1)]
    towers = [f"model.visual.blocks.{block}.attn.qkv" for block in range(27)]
    return qwen3_vl_moe() | {
        "quantization_config": {
            "bits": 4,
            "group_size": 128,
            "modules_to_not_convert": routers + first + towers + ["lm_head"],
            "quant_method": "awq",
            "version": "gemm",
            "zero_point": True,
        }
    }


def gemma_3() -> Json:
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "boi_token_index": 255999,
        "mm_tokens_per_image": 256,
        "text_config": NOISE
        | {
            "model_type": "gemma3_text",
            "attn_logit_softcapping": None,
            "cache_implementation": "hybrid",
            "final_logit_softcapping": None,
            "head_dim": 128,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "layer_types": [("full" if (layer + 1) % 6 == 0 else "sliding") + "_attention" for layer in range(62)],
            "max_position_embeddings": 131072,
            "num_attention_heads": 32,
            "num_hidden_layers": 62,
            "num_key_value_heads": 16,
            "query_pre_attn_scalar": 168,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "rope_theta": 1000000.0,
            "sliding_window": 1024,
            "vocab_size": 262208,
        },
        "torch_dtype": "bfloat16",
        "vision_config": NOISE
        | {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    }


BY_NAME: dict[str, Json] = {
    make.__name__: make()
    for make in (
        *(deepseek_v3, deepseek_nvfp4, mixed_modelopt, llama_4, llama_4_w4a16, qwen3_vl_moe, qwen3_vl_moe_awq, gemma_3),
        *(gpt_oss, qwen3_next, nemotron_h, phi_3_long, jamba, kimi_linear, mpt, falcon, gpt_2),
    )
} | PLAIN
