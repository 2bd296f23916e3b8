"""Checks that a draft model matches its target model (hidden size, vocabulary, tokenizer), from both folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmservice_vllm.facts import HEADS

from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.contract import Failure, FailureReason
from llmservice_runtime.preflight.model_files import read_config, read_object

_FAMILY = (
    "Choose in spec.speculativeDecoding.model.uri a draft that was made for this model or its family, or "
    "method: ngram, which needs none."
)
_TOKENIZER_BYTES = 256 << 20
_TOKENIZER_PARTS = 20_000_000
_SHOWN = 64


def check(model: Path, draft: Path, method: str) -> Iterator[Failure]:
    """Mismatches between draft and model."""
    ours, theirs = (_text_config(read_config(folder)) for folder in (model, draft))
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


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def _mismatch(message: str) -> Failure:
    return Failure(FailureReason.DRAFT_MODEL_MISMATCH, message, _FAMILY)
