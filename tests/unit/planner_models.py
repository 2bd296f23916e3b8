"""Published models, by what their config.json says.

`published_models.json` has one model a line, without what no plan depends on; PUBLISHED has files as they are read,
with that and with the long lists of quantized checkpoints. Texts and values beside the sizes are ours.
"""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from llmservice_planner import gpus
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import Architecture
from llmservice_planner.plan import Device

Json = dict[str, Any]

CONFIGS: dict[str, Json] = json.loads(Path(__file__).with_name("published_models.json").read_text())
PLAIN = (
    *("qwen2.5-0.5b", "qwen2.5-7b", "llama-3.1-8b", "llama-3.1-70b", "llama-2-13b", "deepseek-v2-lite", "deepseek-r1"),
    "qwen2.5-7b-awq",
)
"""One of each kind that services usually run."""
_UNREAD: Json = {
    "_name_or_path": "/data/checkpoints/somewhere",
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": [1, 2, 3],
    "hidden_act": "silu",
    "rope_theta": 1000000.0,
    "time_step_limit": [0.0, float("inf")],
    "transformers_version": "4.57.1",
    "use_cache": True,
    "auto_map": {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"},
    "id2label": {str(number): f"LABEL_{number}" for number in range(100)},
}
"""What every file has, and what no plan depends on."""


def _quantized(model: str, method: str, **section: Any) -> Json:
    return CONFIGS[model] | {"quantization_config": {"quant_method": method, **section}}


def _modules(prefix: str, layers: range, *names: str) -> list[str]:
    return [f"{prefix}.{layer}.{name}" for layer, name in product(layers, names)]


def _group(**more: Any) -> Json:
    return {"group_0": {"weights": {"type": "int", "num_bits": 4, **more}, "targets": ["Linear"]}}


_LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
_WITH_LISTS: dict[str, Json] = {
    # Each module that ModelOpt left alone: the attention of all layers and the routers.
    "deepseek_nvfp4": _quantized(
        *("deepseek_v3", "modelopt"),
        config_groups=_group(type="float", group_size=16),
        ignore=[
            *_modules("model.layers", range(61), *(f"self_attn.{name}" for name in _LATENT)),
            *_modules("model.layers", range(3, 61), "mlp.gate"),
            *("lm_head", "model.layers.61.eh_proj", "model.layers.61.shared_head.head", "model.embed_tokens"),
        ],
        quant_algo="NVFP4",
        kv_cache_scheme={"dynamic": False, "num_bits": 8, "type": "float"},
        producer={"name": "modelopt", "version": "0.33.0"},
    ),
    # One entry for each of thousands of modules.
    "mixed_modelopt": _quantized(
        *("deepseek_v3", "modelopt"),
        quant_algo="MIXED_PRECISION",
        quantized_layers={
            f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj": {"quant_algo": "NVFP4", "group_size": 16}
            for layer, expert, name in product(range(3, 61), range(24), ("gate", "up", "down"))
        },
    ),
    # Every module of the vision tower and of all attention.
    "llama_4_w4a16": _quantized(
        *("llama_4", "compressed-tensors"),
        config_groups=_group(group_size=128, strategy="group", observer="minmax", observer_kwargs={}, symmetric=True),
        format="pack-quantized",
        ignore=[
            *_modules("vision_model.model.layers", range(34), *(f"self_attn.{name}" for name in _QKVO), "mlp.fc1"),
            *_modules("language_model.model.layers", range(48), *(f"self_attn.{name}" for name in _QKVO)),
            *_modules("language_model.model.layers", range(1, 48, 2), "feed_forward.router"),
            *("multi_modal_projector.linear_1", "language_model.lm_head"),
        ],
        kv_cache_scheme=None,
        quantization_status="compressed",
    ),
    # Names of all layers but the last.
    "qwen3_vl_moe_awq": _quantized(
        *("qwen3_vl_moe", "awq"),
        bits=4,
        group_size=128,
        modules_to_not_convert=[
            *_modules("model.language_model.layers", range(94), "mlp.gate"),
            *("model.language_model.layers.0.self_attn", "model.language_model.layers.1.self_attn"),
            *_modules("model.visual.blocks", range(27), "attn.qkv"),
            "lm_head",
        ],
        zero_point=True,
    ),
}
PUBLISHED: dict[str, Json] = {
    name: _UNREAD
    | config
    | {part: _UNREAD | config[part] for part in ("text_config", "vision_config") if part in config}
    for name, config in (CONFIGS | _WITH_LISTS).items()
}


@lru_cache
def architecture(name: str) -> Architecture:
    """One of CONFIGS, read as the operator reads it."""
    return config_json.read(CONFIGS[name])


def gpu(name: str) -> Device:
    """A GPU of the catalogue, by any of its names."""
    found = gpus.device(name)
    assert found is not None, name
    return found
