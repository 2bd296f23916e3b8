"""Facts of a model from the spec, as a document for config_json.read, merged with those of an inspection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmservice_api.model import Architecture

from llmservice_planner.model import registry
from llmservice_planner.model.config_json import NESTED

_QUANTIZED = ("quantization_method", "quantization_bits", "quantization_group_size")
_LISTS = ("layer_types", "layers_block_type", "hybrid_override_pattern", "sliding_window_pattern")
_LAYER_FACTS = ("sliding_layers", "attention_layers")
"""Facts that lists in a file would contradict."""


def from_spec(facts: Architecture) -> dict[str, Any]:
    """Stated facts under the names of config.json; empty without any."""
    stated = facts.model_dump(exclude_none=True)
    quantization = _quantization(*(stated.pop(name, None) for name in _QUANTIZED))
    if stated.pop("positions", None) == "alibi":
        stated["alibi"] = True
    return stated | ({"quantization_config": quantization} if quantization else {})


def merge(inspected: Mapping[str, Any] | None, stated: Mapping[str, Any]) -> dict[str, Any]:
    """One document of both; stated facts take precedence. `inspected` None: nothing was inspected."""
    document = dict(inspected or {})
    if not stated:
        return document
    if "model_type" in stated and registry.has_unsupported(document.get("architectures")):
        # It is read as another type, which its class would contradict.
        del document["architectures"]
    inner = next((name for name in NESTED if isinstance(document.get(name), Mapping)), None)
    if inner is not None:
        return document | {inner: merge(document[inner], stated)}
    if any(name in stated for name in _LAYER_FACTS):
        document = {name: value for name, value in document.items() if name not in _LISTS}
    return {**document, **stated}


def _quantization(method: str | None, bits: int | None, group: int | None) -> dict[str, Any]:
    """A quantization_config in the method's own form."""
    if method is None and bits is None:
        return {}
    name = method or ("gptq" if bits is not None and bits < 8 else "fp8")
    sizes = {"bits": bits, "group_size": group}
    if name == "bitsandbytes":
        return {"quant_method": name, "load_in_8bit": bits == 8}
    if name == "compressed-tensors":
        weights = {"num_bits": bits, "group_size": group or None}
        return {"quant_method": name, "config_groups": {"group_0": {"weights": _given(weights)}}}
    if name.startswith("modelopt"):
        return {"quant_method": name, "quant_algo": "NVFP4" if bits == 4 or "fp4" in name else "FP8"}
    return {"quant_method": name, **_given(sizes)}


def _given(values: Mapping[str, int | None]) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}
