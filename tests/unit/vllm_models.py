"""Folders with a config.json and nothing else: what vLLM needs to make, or refuse, an engine configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
}
_LLAMA = {**_TINY, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
LENGTH = 256
_MLA = {
    **_TINY,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "moe_layer_freq": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "alibi": {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 256,
        "torch_dtype": "bfloat16",
    },
    "mixture": {
        **_TINY,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "mla": {**_MLA, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"},
    "mtp": {
        **_MLA,
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_nextn_predict_layers": 1,
    },
    "draftModel": {**_LLAMA, "num_hidden_layers": 1},
    "eagle": {**_LLAMA, "architectures": ["EagleLlamaForCausalLM"], "num_hidden_layers": 1},
    "eagle3": {**_LLAMA, "architectures": ["Eagle3LlamaForCausalLM"], "num_hidden_layers": 1, "draft_vocab_size": 256},
    "medusa": {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": 64,
        "num_heads": 3,
        "num_hidden_layers": 1,
        "vocab_size": 256,
        "truncated_vocab_size": None,
        "torch_dtype": "bfloat16",
    },
}


def write(folder: Path) -> None:
    """Every model, in a folder of its name."""
    for name, config in CONFIGS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
