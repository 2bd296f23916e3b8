"""Published models for the planner's tests, by what their config.json says (total_parameters: by the hub's count)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from llmservice_operator.planner.model import config_json
from llmservice_operator.planner.model.architecture import Architecture


def _llama(
    layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int, length: int, **more: Any
) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": length,
        "torch_dtype": "bfloat16",
        **more,
    }


_QWEN2: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": _llama(24, 896, 14, 2, 4864, 151936, 32768, tie_word_embeddings=True, **_QWEN2),
    "qwen2.5-7b": _llama(28, 3584, 28, 4, 18944, 152064, 32768, **_QWEN2),
    "llama-3.1-8b": _llama(32, 4096, 32, 8, 14336, 128256, 131072),
    "llama-3.1-70b": _llama(80, 8192, 64, 8, 28672, 128256, 131072),
    "llama-2-13b": _llama(40, 5120, 40, 40, 13824, 32000, 4096, torch_dtype="float16"),
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_hidden_layers": 27,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 102400,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "max_position_embeddings": 163840,
        "torch_dtype": "bfloat16",
    },
    "deepseek-r1": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "vocab_size": 129280,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "max_position_embeddings": 163840,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
    "qwen2.5-7b-awq": _llama(
        *(28, 3584, 28, 4, 18944, 152064, 32768),
        **_QWEN2,
        quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    ),
}


@lru_cache
def architecture(name: str) -> Architecture:
    """One of CONFIGS, read as the operator reads it."""
    return config_json.read(CONFIGS[name])
