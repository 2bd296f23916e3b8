"""A longer context than the model was made for: from its config.json to the flags that vLLM needs. Pure.

vLLM takes YaRN as an override of the model's rope_parameters, and needs max_position_embeddings beside it, since that
is the length that it derives the longest request from (vllm/config/model.py, _get_and_verify_max_len).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_runtime.contract import Failure, FailureReason
from llmservice_runtime.supervisor.vllm_process import Flags

METHODS = ("yarn",)
_FIELD = "spec.contextExtension"
# Families without rotary positions, as their config.json calls them.
_NO_ROPE = frozenset({
    "bert", "biogpt", "bloom", "deberta-v2", "distilbert", "falcon_mamba", "gpt2", "gpt_bigcode", "gpt_neo", "jais",
    "mamba", "mamba2", "modernbert-decoder", "mpt", "opt", "roberta", "rwkv", "t5", "xglm", "xlm-roberta",
})  # fmt: skip
_SHOWN = 64
_LONGEST_CONTEXT = 2**40
_LONGEST_ROPE = 16 << 10
"""Characters of JSON that become an argument of vLLM's."""
_PLAIN = frozenset({None, "default", "mrope"})


class Invalid(Exception):
    """The model and the extension do not go together; carries the classified failure."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.failure = Failure(FailureReason.CONTEXT_EXTENSION_INVALID, message, remedy)


@dataclass(frozen=True)
class Extension:
    """How far to stretch, and from which length in tokens (None: the model's own)."""

    method: str
    factor: float
    original: int | None = None

    @classmethod
    def parse(cls, text: str) -> Extension:
        """From METHOD:FACTOR[:ORIGINAL]. Raises Invalid."""
        method, _, rest = text.partition(":")
        factor, _, original = rest.partition(":")
        try:
            extension = cls(method, float(factor), int(original) if original else None)
        except ValueError:
            raise Invalid(f"{text!r} is no METHOD:FACTOR[:ORIGINAL].", f"Correct {_FIELD}.") from None
        if method not in METHODS or not 1 < extension.factor <= 1024:
            raise Invalid(f"{text!r} is not served.", f"{_FIELD} takes method yarn and a factor greater than 1.")
        return extension


def arguments(config: Mapping[str, Any], extension: Extension, flags: Flags) -> tuple[str, ...]:
    """What vLLM's command line needs beside what it has. Raises Invalid."""
    text, nested = _text_config(config)
    _check_rotary(text)
    rope = _rope(text)
    original = extension.original or text.get("original_max_position_embeddings") or text.get("max_position_embeddings")
    if type(original) is not int or not 1 <= original <= _LONGEST_CONTEXT:
        raise Invalid(
            "The model's config.json does not say for how many tokens it was made.",
            f"Give the length in {_FIELD}.originalMaxPositionEmbeddings.",
        )
    reach = int(original * extension.factor)
    _check_length(flags, extension, original, reach)
    stretched = {
        **rope,
        "rope_type": extension.method,
        "factor": extension.factor,
        "original_max_position_embeddings": original,
    }
    overrides: dict[str, Any] = {"max_position_embeddings": reach, "rope_parameters": stretched}
    given = () if flags.max_model_len_given else ("--max-model-len", str(reach))
    return ("--hf-overrides", _json({"text_config": overrides} if nested else overrides), *given)


def _text_config(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The language model's part: multimodal models have it as a part of their own."""
    text = config.get("text_config")
    return (text, True) if isinstance(text, dict) else (config, False)


def _check_rotary(text: Mapping[str, Any]) -> None:
    attention = text.get("attn_config")
    alibi = text.get("alibi") or text.get("use_alibi") or (isinstance(attention, dict) and attention.get("alibi"))
    kind = str(text.get("position_embedding_type") or ("alibi" if alibi else "")).lower()
    family = text.get("model_type")
    if (isinstance(family, str) and family in _NO_ROPE) or (kind and not kind.startswith("rop") and kind != "rotary"):
        positions = kind[:_SHOWN] or f"those of {family}"
        raise Invalid(
            f"The model has no rotary positions (it has {positions}), and {METHODS[0]} stretches nothing else.",
            f"Remove {_FIELD}, or choose a model with rotary positions (RoPE).",
        )


def _rope(text: Mapping[str, Any]) -> dict[str, Any]:
    """The model's rotary parameters as they are, to be kept beside the new ones."""
    rope: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        given = text.get(key)
        if not isinstance(given, dict):
            continue
        if any(isinstance(value, dict) for value in given.values()):
            raise Invalid(
                "The model's layers have rotary positions of several kinds, which one factor does not stretch.",
                f"Remove {_FIELD}.",
            )
        method = given.get("rope_type", given.get("type"))
        if not (method is None or isinstance(method, str)) or method not in _PLAIN:
            raise Invalid(
                f"The model's config.json stretches its context by {str(method)[:_SHOWN]} already.",
                f"Remove {_FIELD}: the model's own length is in force without it.",
            )
        rope |= given
    for key in ("rope_theta", "partial_rotary_factor"):
        if text.get(key) is not None:
            rope.setdefault(key, text[key])
    rope.pop("type", None)
    if len(_json(rope)) > _LONGEST_ROPE:
        raise Invalid(
            "The rotary parameters in the model's config.json are too many to be given to vLLM.", f"Remove {_FIELD}."
        )
    return rope


def _check_length(flags: Flags, extension: Extension, original: int, reach: int) -> None:
    if flags.overrides_config:
        raise Invalid(
            "Another --hf-overrides is given, and vLLM takes one.",
            f"Remove it from spec.runtime.extraArgs, or remove {_FIELD} and say everything there.",
        )
    if flags.max_model_len is not None and flags.max_model_len > reach:
        needed = -(-flags.max_model_len // original)
        raise Invalid(
            f"spec.batching.maxModelLen is {flags.max_model_len}, and a factor of {extension.factor:g} stretches the "
            f"model's {original} tokens to {reach}.",
            f"Lower spec.batching.maxModelLen to at most {reach}, or raise {_FIELD}.factor to {needed}.",
        )


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
