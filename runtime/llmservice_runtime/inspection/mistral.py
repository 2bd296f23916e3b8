"""Converts params.json of Mistral's format to the names of config.json.

Follows vLLM's transformers_utils/configs/mistral.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES: Mapping[str, str] = {
    "dim": "hidden_size",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "tied_embeddings": "tie_word_embeddings",
}
_EXPERTS: Mapping[str, str] = {
    "route_every_n": "moe_layer_freq",
    "first_k_dense_replace": "first_k_dense_replace",
    "num_experts_per_tok": "num_experts_per_tok",
    "num_experts": "n_routed_experts",
    "expert_hidden_dim": "moe_intermediate_size",
    "num_shared_experts": "n_shared_experts",
}
_YARN = ("factor", "original_max_position_embeddings")
# vLLM's default.
_MAX_POSITIONS = 128_000
_MOST_LAYERS = 10_000
"""Bounds the length of layer_types."""


def is_params(document: Mapping[str, Any]) -> bool:
    """Whether it is a params.json, by the names that config.json has otherwise."""
    return {"dim", "n_layers"} <= document.keys() and "hidden_size" not in document


def from_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with the same facts."""
    config = {_NAMES.get(name, name): value for name, value in params.items() if name != "model_type"}
    config.setdefault("max_position_embeddings", config.get("max_seq_len") or _MAX_POSITIONS)
    config["architectures"] = ["MistralForCausalLM"]
    window = config.get("sliding_window")
    if isinstance(window, list) and window:
        layers = config.get("num_hidden_layers")
        repeats = min(layers, _MOST_LAYERS) // len(window) if isinstance(layers, int) else 1
        config["layer_types"] = ["sliding_attention" if length else "full_attention" for length in window] * repeats
        config["sliding_window"] = next((length for length in window if length), None)
    experts = params.get("moe")
    if isinstance(experts, Mapping):
        config |= {new: experts[old] for old, new in _EXPERTS.items() if old in experts}
        is_latent = bool(params.get("qk_nope_head_dim"))
        config["architectures"] = ["MistralLarge3ForCausalLM" if is_latent else "MixtralForCausalLM"]
        if is_latent:
            config["model_type"] = "deepseek_v3"
    yarn = params.get("yarn")
    if isinstance(yarn, Mapping):
        config["rope_parameters"] = {"rope_type": "yarn"} | {name: yarn[name] for name in _YARN if name in yarn}
    quantized = params.get("quantization")
    if isinstance(quantized, Mapping) and quantized:
        config["quantization_config"] = {"quant_method": "fp8"} | dict(quantized)
    return _with_pictures(config)


def _with_pictures(config: dict[str, Any]) -> dict[str, Any]:
    """The language model as a section beside its encoder of pictures, where it has one."""
    section = config.pop("vision_encoder", None)
    nested = config.pop("multimodal", None)
    if isinstance(nested, Mapping) and isinstance(nested.get("vision_encoder_args"), Mapping):
        section = nested["vision_encoder_args"]
    if not isinstance(section, Mapping):
        return config
    around: dict[str, Any] = {"model_type": "pixtral", "architectures": ["PixtralForConditionalGeneration"]}
    for name in ("quantization_config", "spatial_merge_size"):
        value = config.get(name, section.get(name))
        if value is not None:
            around[name] = value
    return around | {"text_config": config, "vision_config": dict(section)}
