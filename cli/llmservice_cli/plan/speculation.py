"""--speculative-config, as vLLM takes it: who guesses, how many tokens, and what that needs of the memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmservice_operator.planner.model.architecture import Architecture, Incomplete, InvalidModel, Unplanned
from llmservice_operator.planner.plan import Draft

from llmservice_cli.errors import syntax

from .reading import read
from .values import MOST_GPUS, Refused, count, one_of, shown

if TYPE_CHECKING:
    from llmservice_operator.api.techniques import SpeculativeMethod

_METHODS: Mapping[str, SpeculativeMethod] = {
    "ngram": "ngram",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "medusa": "medusa",
    "mtp": "mtp",
    "draft_model": "draftModel",
    "draftModel": "draftModel",
}
_REMEDY = """Write JSON such as {"method": "eagle3", "num_speculative_tokens": 3, "config": {...}}."""


def speculation(raw: object) -> Draft:
    """The JSON that vLLM takes; `config` is the content of the draft's config.json."""
    try:
        written = json.loads(raw) if isinstance(raw, str) else raw
    except (ValueError, RecursionError) as error:
        raise Refused(f"{shown(raw)} is no JSON: {syntax(error)}.", _REMEDY) from None
    if not isinstance(written, Mapping):
        raise Refused(f"{shown(raw)} is no object.", _REMEDY)
    tokens, ranks = written.get("num_speculative_tokens"), written.get("draft_tensor_parallel_size")
    return Draft(
        method=_method(written),
        num_speculative_tokens=0 if tokens is None else _number(tokens, 1024),
        architecture=_architecture(written.get("config")),
        tensor_parallel_size=None if ranks is None else _number(ranks, MOST_GPUS),
    )


def _method(written: Mapping[str, Any]) -> SpeculativeMethod:
    """By vLLM's name; the layers for multi-token prediction have one for each family of models there."""
    name = str(written.get("method") or "draft_model")
    found = "mtp" if name.endswith("_mtp") else _METHODS.get(name)
    if found is None:
        raise Refused(f"method {shown(name)} is none that is planned for.", one_of([*_METHODS], name))
    return found


def _number(raw: object, most: int) -> int:
    value = count(1, most, "3")(raw)
    assert isinstance(value, int)
    return value


def _architecture(document: object) -> Architecture | None:
    if document is None:
        return None
    if not isinstance(document, Mapping):
        raise Refused(f"config {shown(document)} is no object.", "Give the content of the draft's config.json.")
    try:
        return read(document)
    except Unplanned:
        return None
    except (Incomplete, InvalidModel) as error:
        raise Refused(f"config: {error}.", "Give the whole of the draft's config.json.") from None
