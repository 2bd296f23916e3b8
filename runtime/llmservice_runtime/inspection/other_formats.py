"""Recognizes files that are not a model: adapters, drafts, files of other engines. Pure; accepts any JSON object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_vllm.facts import HEADS

from llmservice_runtime.bounded_json import clean

Json = Mapping[str, Any]

ADAPTER_CONFIG = "adapter_config.json"
PIPELINE_CONFIG = "model_index.json"
GGUF = ".gguf"
GGUF_MAGIC = b"GGUF"
_LONGEST_NAME = 200
_ORIGINAL = (
    "Take the original checkpoint of the model, or one that is quantized with AWQ, GPTQ, compressed-tensors or fp8."
)


@dataclass(frozen=True)
class NotAModel:
    """`what` continues a sentence that starts with the folder; `remedy` is a sentence."""

    what: str
    remedy: str


_PIPELINE = NotAModel("is a pipeline of diffusers, which vLLM does not serve", "Take a language model.")


def not_a_model(config: Json) -> NotAModel | None:
    """What a JSON file of a repository describes, if it is neither a model nor a draft; else None."""
    if "peft_type" in config or ("base_model_name_or_path" in config and "lora_alpha" in config):
        base = _name(config.get("base_model_name_or_path"))
        return NotAModel(
            f"is an adapter{f' of {base}' if base else ''}, and no model",
            f"Give {base or 'the model that it was made for'} in spec.model.uri, and the adapter in spec.adapters.",
        )
    if "_diffusers_version" in config:
        return _PIPELINE
    return _mlx(config)


def draft(config: Json) -> NotAModel | None:
    """The remedy for a draft model that is given as a model; None for others."""
    speculators, kind = config.get("speculators_config"), _name(config.get("speculators_model_type"))
    names = config.get("architectures")
    named = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    if not kind and not isinstance(speculators, Mapping):
        kind = next((kind for kind in _kinds(config.get("model_type"), *named)), "")
        if not kind:
            return None
    verifier = speculators.get("verifier") if isinstance(speculators, Mapping) else None
    path = _name(verifier.get("name_or_path")) if isinstance(verifier, Mapping) else ""
    classes = verifier.get("architectures") if isinstance(verifier, Mapping) else None
    of_class = _name(classes[0]) if isinstance(classes, list) and classes else ""
    whose = f" for {path}" if path else ""
    whose += f" ({of_class})" if of_class else ""
    method = f", method: {kind}" if kind in HEADS else ""
    return NotAModel(
        f"is a draft{f' ({kind})' if kind else ''}{whose}, which guesses tokens for another model",
        f"Give that model in spec.model.uri, and the draft in spec.speculativeDecoding (model.uri{method}).",
    )


def of_files(names: Iterable[str], read: Callable[[str], Json]) -> NotAModel | None:
    """What a folder without a config.json contains; None if unknown. `read` returns a JSON file."""
    found = sorted(names)
    if ADAPTER_CONFIG in found and (adapter := not_a_model(read(ADAPTER_CONFIG))) is not None:
        return adapter
    gguf = next((name for name in found if name.lower().endswith(GGUF)), None)
    if gguf is not None:
        return gguf_file(gguf)
    return _PIPELINE if PIPELINE_CONFIG in found else None


def gguf_file(name: str = "") -> NotAModel:
    """A file of llama.cpp."""
    shown = f" ({_name(name)})" if _name(name) else ""
    return NotAModel(f"is in llama.cpp's format GGUF{shown}, which vLLM reads with a plugin only", _ORIGINAL)


def _mlx(config: Json) -> NotAModel | None:
    """MLX writes bits and groups under two names, without a method."""
    stated, quantized = config.get("quantization"), config.get("quantization_config")
    sizes = stated if isinstance(stated, Mapping) else quantized
    if not isinstance(sizes, Mapping) or not {"group_size", "bits"} <= sizes.keys():
        return None
    if any(isinstance(one, Mapping) and {"quant_method", "quant_algo"} & one.keys() for one in (stated, quantized)):
        return None
    return NotAModel("is quantized for MLX, Apple's framework (bits and group_size without a quant_method)", _ORIGINAL)


def _kinds(*words: object) -> Iterable[str]:
    """Kinds of draft heads (EAGLE, Medusa and others) in names of classes and types."""
    for word in words:
        text = word.lower() if isinstance(word, str) else ""
        if text.endswith("eagle3") or text.startswith("eagle3"):
            yield "eagle3"
        elif text.startswith("eagle") and not text.startswith("eagle2_5"):
            yield "eagle"
        elif text.startswith("medusa"):
            yield "medusa"
        elif text.replace("_", "").startswith("mlpspeculator"):
            yield "mlp_speculator"


def _name(value: object) -> str:
    """A repository's text for a message; empty if absent, too long, or with control characters."""
    return value if isinstance(value, str) and len(value) <= _LONGEST_NAME and clean(value) == value else ""
