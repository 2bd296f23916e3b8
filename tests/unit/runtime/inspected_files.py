"""A repository of a tiny model whose tensors are known, as inspections are to find it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.support.weights import named_tensors

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "transformers_version": "4.57.1",
}
INSPECTED = {name: value for name, value in CONFIG.items() if name != "transformers_version"}
FIRST = named_tensors(
    {"model.embed_tokens.weight": ("BF16", (1000, 64)), "model.layers.0.self_attn.q_proj.weight": ("BF16", (64, 64))}
)
SECOND = named_tensors(
    {"model.layers.1.mlp.up_proj.weight": ("F8_E4M3", (256, 64)), "lm_head.weight": ("BF16", (1000, 64))}
)
WHOLE = {
    "embedding": 128_000,
    "head": 128_000,
    "attention": 8192,
    "feedForward": 16_384,
    "parameters": 148_480,
    "dtype": "bfloat16",
}


def files(weights: Mapping[str, bytes] | None = None, **config: Any) -> dict[str, bytes]:
    """A repository with two shards and their index, or other weights."""
    shards = {"model-00001-of-00002.safetensors": FIRST, "model-00002-of-00002.safetensors": SECOND}
    named = {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors",
    }
    index = {"metadata": {"total_size": 1}, "weight_map": named}
    return {
        "config.json": json.dumps(CONFIG | config).encode(),
        "README.md": b"# a model",
        **({"model.safetensors.index.json": json.dumps(index).encode()} if weights is None else {}),
        **(shards if weights is None else weights),
    }
