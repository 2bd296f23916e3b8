"""config.json files of language models, as they are published. Written down from their shapes; the texts are ours."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

NOISE: Json = {
    "_name_or_path": "/data/checkpoints/somewhere",
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": [1, 2, 3],
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-06,
    "transformers_version": "4.57.1",
    "use_cache": True,
    "auto_map": {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"},
    "id2label": {str(number): f"LABEL_{number}" for number in range(100)},
}
"""What every file has, and what no plan rests on."""


def gpt_oss() -> Json:
    return NOISE | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "max_position_embeddings": 131072,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "sliding_window": 128,
        "tie_word_embeddings": False,
        "vocab_size": 201088,
    }


def qwen3_next() -> Json:
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 12
    return NOISE | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "decoder_sparse_step": 1,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "layer_types": kinds,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "moe_intermediate_size": 512,
        "num_attention_heads": 16,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "shared_expert_intermediate_size": 512,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 151936,
    }


def nemotron_h() -> Json:
    return NOISE | {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "attention_head_dim": 128,
        "chunk_size": 128,
        "conv_kernel": 4,
        "expand": 2,
        "head_dim": 128,
        "hidden_size": 8192,
        "hybrid_override_pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-",
        "intermediate_size": 32768,
        "mamba_head_dim": 64,
        "mamba_hidden_act": "silu",
        "mamba_num_heads": 256,
        "mamba_proj_bias": False,
        "max_position_embeddings": 8192,
        "mlp_hidden_act": "relu2",
        "n_groups": 8,
        "num_attention_heads": 64,
        "num_hidden_layers": 118,
        "num_key_value_heads": 8,
        "ssm_state_size": 256,
        "tie_word_embeddings": False,
        "time_step_limit": [0.0, float("inf")],
        "torch_dtype": "bfloat16",
        "use_bias": False,
        "use_conv_bias": True,
        "vocab_size": 131072,
    }


def phi_3_long() -> Json:
    return NOISE | {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {
            "long_factor": [1.0299999713897705 + number for number in range(48)],
            "short_factor": [1.0499999523162842 + number for number in range(48)],
            "type": "longrope",
        },
        "rope_theta": 10000.0,
        "sliding_window": 262144,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 32064,
    }


def jamba() -> Json:
    return NOISE | {
        "architectures": ["JambaForCausalLM"],
        "model_type": "jamba",
        "attn_layer_offset": 4,
        "attn_layer_period": 8,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_dt_rank": 256,
        "mamba_expand": 2,
        "mamba_proj_bias": False,
        "max_position_embeddings": 262144,
        "num_attention_heads": 32,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 65536,
    }


def kimi_linear() -> Json:
    full = [4, 8, 12, 16, 20, 24, 27]
    return NOISE | {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "first_k_dense_replace": 1,
        "head_dim": 72,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "kv_lora_rank": 512,
        "linear_attn_config": {
            "full_attn_layers": full,
            "head_dim": 128,
            "kda_layers": [layer for layer in range(1, 28) if layer not in full],
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
        "mla_use_nope": True,
        "model_max_length": 1048576,
        "moe_intermediate_size": 1024,
        "moe_layer_freq": 1,
        "num_attention_heads": 32,
        "num_experts": 256,
        "num_experts_per_token": 8,
        "num_hidden_layers": 27,
        "num_key_value_heads": 32,
        "num_shared_experts": 1,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "tie_word_embeddings": False,
        "v_head_dim": 128,
        "vocab_size": 163840,
        "dtype": "bfloat16",
    }


def mpt() -> Json:
    return NOISE | {
        "architectures": ["MPTForCausalLM"],
        "model_type": "mpt",
        "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0},
        "d_model": 4096,
        "emb_pdrop": 0,
        "expansion_ratio": 4,
        "init_config": {"fan_mode": "fan_in", "init_device": "cpu", "name": "kaiming_normal_"},
        "max_seq_len": 2048,
        "n_heads": 32,
        "n_layers": 32,
        "no_bias": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 50432,
    }


def falcon() -> Json:
    return NOISE | {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "alibi": False,
        "bias": False,
        "hidden_size": 8192,
        "multi_query": True,
        "new_decoder_architecture": True,
        "num_attention_heads": 128,
        "num_hidden_layers": 60,
        "num_kv_heads": 8,
        "parallel_attn": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 65024,
    }


def gpt_2() -> Json:
    return NOISE | {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 50257,
    }
