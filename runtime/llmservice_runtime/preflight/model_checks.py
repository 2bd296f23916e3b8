"""Checks of a server's models by their configurations, before weights are fetched or read.

- The configuration itself (`model_files`).
- A draft model must match its target in hidden size, vocabulary and tokenizer.
- A context extension becomes flags of vLLM: YaRN in the model's rope_parameters, with max_position_embeddings, from
  which vLLM derives the longest request (vllm/config/model.py, _get_and_verify_max_len).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmservice_vllm.facts import HEADS

from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.contract import Failure, FailureReason
from llmservice_runtime.preflight import model_files
from llmservice_runtime.preflight.model_files import read_config, read_object
from llmservice_runtime.supervisor.vllm_process import Flags, is_local

# vLLM's default where the speculative configuration names no method.
_DEFAULT_METHOD = "draft_model"


def of_configuration(
    flags: Flags, model: Path | None, draft: Path | None, weights: str, extension: str | None
) -> Iterator[Failure]:
    """Failures of the configurations. `model` and `draft` are fetched folders; None: use local paths of the flags."""
    model = model or _local(flags.model)
    draft = draft or _local(flags.draft_model)
    if model is None:
        return
    config = model_files.read_config(model)
    if not config:
        return
    stretched = extended(config, flags, extension)
    if isinstance(stretched, Failure):
        yield stretched
    yield from model_files.check_config(config, flags, weights, stretched=extension is not None)
    if draft is not None:
        yield from check_draft(model, draft, flags.speculative_method or _DEFAULT_METHOD)


def extended(config: model_files.Config, flags: Flags, extension: str | None) -> Failure | tuple[str, ...]:
    """Additional flags for the context extension (METHOD:FACTOR[:ORIGINAL]), or the failure where it is invalid."""
    if extension is None:
        return ()
    try:
        return extension_arguments(config, Extension.parse(extension), flags)
    except InvalidExtension as invalid:
        return invalid.failure


def _local(path: str) -> Path | None:
    return Path(path) if path and is_local(path) else None


_FAMILY = (
    "Choose in spec.speculativeDecoding.model.uri a draft that was made for this model or its family, or "
    "method: ngram, which needs none."
)
_TOKENIZER_BYTES = 256 << 20
_TOKENIZER_PARTS = 20_000_000
_SHOWN = 64


def check_draft(model: Path, draft: Path, method: str) -> Iterator[Failure]:
    """Mismatches between draft and model."""
    ours, theirs = (model_files.text_config(read_config(folder)) for folder in (model, draft))
    if method in HEADS:
        yield from _check_head(ours, theirs, method)
        return
    yield from _check_size(ours.get("vocab_size"), theirs.get("vocab_size"))
    yield from _check_tokens(model, draft)


def _check_head(ours: Mapping[str, Any], theirs: Mapping[str, Any], method: str) -> Iterator[Failure]:
    size, fed = ours.get("hidden_size"), theirs.get("target_hidden_size", theirs.get("hidden_size"))
    if isinstance(size, int) and isinstance(fed, int) and size != fed:
        yield _mismatch(f"The {method} head reads hidden states of {fed} values, and the model's have {size}.")


def _check_size(ours: object, theirs: object) -> Iterator[Failure]:
    if isinstance(ours, int) and isinstance(theirs, int) and ours != theirs:
        yield _mismatch(
            f"The draft model has a vocabulary of {theirs} tokens (vocab_size), and the model one of {ours}."
        )


def _check_tokens(model: Path, draft: Path) -> Iterator[Failure]:
    """Compare the vocabularies: equal sizes are not enough, each token must have the same id."""
    ours, theirs = _vocabulary(model), _vocabulary(draft)
    if ours is None or theirs is None or ours == theirs:
        return
    different = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    token = different[0]
    yield _mismatch(
        f"The tokenizers differ in {len(different)} tokens: {token[:_SHOWN]!r} has number "
        f"{_number(theirs, token)} for the draft and {_number(ours, token)} for the model."
    )


def _number(vocabulary: Mapping[str, object], token: str) -> str:
    return str(vocabulary.get(token, "none"))[:_SHOWN]


def _vocabulary(folder: Path) -> dict[str, object] | None:
    """Token -> id; None without a readable tokenizer.json."""
    try:
        document = read_object(folder / "tokenizer.json", _TOKENIZER_BYTES, _TOKENIZER_PARTS)
        listed = document["model"]["vocab"]
        # BPE and WordPiece have a mapping, Unigram a list of pairs.
        numbers: dict[str, object] = (
            dict(listed) if isinstance(listed, dict) else {_token(pair[0]): n for n, pair in enumerate(listed)}
        )
        return numbers | {_token(token["content"]): token["id"] for token in document.get("added_tokens") or ()}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _token(text: object) -> str:
    if not isinstance(text, str):
        raise Refused("a token is not text")
    return text


def _mismatch(message: str) -> Failure:
    return Failure(FailureReason.DRAFT_MODEL_MISMATCH, message, _FAMILY)


METHODS = ("yarn",)
_FIELD = "spec.contextExtension"
# Families without rotary positions, by their names in config.json.
_NO_ROPE = frozenset({
    "bert", "biogpt", "bloom", "deberta-v2", "distilbert", "falcon_mamba", "gpt2", "gpt_bigcode", "gpt_neo", "jais",
    "mamba", "mamba2", "modernbert-decoder", "mpt", "opt", "roberta", "rwkv", "t5", "xglm", "xlm-roberta",
})  # fmt: skip
_LONGEST_CONTEXT = 2**40
_LONGEST_ROPE = 16 << 10
"""Characters of JSON in an argument of vLLM."""
_PLAIN = frozenset({None, "default", "mrope"})


class InvalidExtension(Exception):
    """The model and the extension are incompatible; carries the classified failure."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.failure = Failure(FailureReason.CONTEXT_EXTENSION_INVALID, message, remedy)


@dataclass(frozen=True)
class Extension:
    """Factor of the extension, and the original length in tokens (None: the model's own)."""

    method: str
    factor: float
    original: int | None = None

    @classmethod
    def parse(cls, text: str) -> Extension:
        """From METHOD:FACTOR[:ORIGINAL]. Raises InvalidExtension."""
        method, _, rest = text.partition(":")
        factor, _, original = rest.partition(":")
        try:
            extension = cls(method, float(factor), int(original) if original else None)
        except ValueError:
            raise InvalidExtension(f"{text!r} is no METHOD:FACTOR[:ORIGINAL].", f"Correct {_FIELD}.") from None
        if method not in METHODS or not 1 < extension.factor <= 1024:
            raise InvalidExtension(
                f"{text!r} is not served.", f"{_FIELD} takes method yarn and a factor greater than 1."
            )
        return extension


def extension_arguments(config: Mapping[str, Any], extension: Extension, flags: Flags) -> tuple[str, ...]:
    """Flags to add to vLLM's command line. Raises InvalidExtension."""
    text = model_files.text_config(config)
    _check_rotary(text)
    rope = _rope(text)
    original = extension.original or text.get("original_max_position_embeddings") or text.get("max_position_embeddings")
    if type(original) is not int or not 1 <= original <= _LONGEST_CONTEXT:
        raise InvalidExtension(
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
    return ("--hf-overrides", _json({"text_config": overrides} if text is not config else overrides), *given)


def _check_rotary(text: Mapping[str, Any]) -> None:
    attention = text.get("attn_config")
    alibi = text.get("alibi") or text.get("use_alibi") or (isinstance(attention, dict) and attention.get("alibi"))
    kind = str(text.get("position_embedding_type") or ("alibi" if alibi else "")).lower()
    family = text.get("model_type")
    if (isinstance(family, str) and family in _NO_ROPE) or (kind and not kind.startswith("rop") and kind != "rotary"):
        positions = kind[:_SHOWN] or f"those of {family}"
        raise InvalidExtension(
            f"The model has no rotary positions (it has {positions}), and {METHODS[0]} stretches nothing else.",
            f"Remove {_FIELD}, or choose a model with rotary positions (RoPE).",
        )


def _rope(text: Mapping[str, Any]) -> dict[str, Any]:
    """The model's rotary parameters, to be kept beside the new ones."""
    rope: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        given = text.get(key)
        if not isinstance(given, dict):
            continue
        if any(isinstance(value, dict) for value in given.values()):
            raise InvalidExtension(
                "The model's layers have rotary positions of several kinds, which one factor does not stretch.",
                f"Remove {_FIELD}.",
            )
        method = given.get("rope_type", given.get("type"))
        if not (method is None or isinstance(method, str)) or method not in _PLAIN:
            raise InvalidExtension(
                f"The model's config.json stretches its context by {str(method)[:_SHOWN]} already.",
                f"Remove {_FIELD}: the model's own length is in force without it.",
            )
        rope |= given
    for key in ("rope_theta", "partial_rotary_factor"):
        if text.get(key) is not None:
            rope.setdefault(key, text[key])
    rope.pop("type", None)
    if len(_json(rope)) > _LONGEST_ROPE:
        raise InvalidExtension(
            "The rotary parameters in the model's config.json are too many to be given to vLLM.", f"Remove {_FIELD}."
        )
    return rope


def _check_length(flags: Flags, extension: Extension, original: int, reach: int) -> None:
    if flags.overrides_config:
        raise InvalidExtension(
            "Another --hf-overrides is given, and vLLM takes one.",
            f"Remove it from spec.runtime.extraArgs, or remove {_FIELD} and say everything there.",
        )
    if flags.max_model_len is not None and flags.max_model_len > reach:
        needed = -(-flags.max_model_len // original)
        raise InvalidExtension(
            f"spec.batching.maxModelLen is {flags.max_model_len}, and a factor of {extension.factor:g} stretches the "
            f"model's {original} tokens to {reach}.",
            f"Lower spec.batching.maxModelLen to at most {reach}, or raise {_FIELD}.factor to {needed}.",
        )


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
