"""The planner's words, which are a manifest's, in those of the command line."""

from __future__ import annotations

import re

from .options import OPTIONS

_FLAGS = {
    **{one.spec: one.flag for one in OPTIONS.values() if one.spec is not None},
    "accelerator.products": "--gpu",
    "precision.weights": "--quantization",
    "model.uri": "--model",
}
_FIELD = re.compile(r"\bspec\.(?P<path>[A-Za-z]+(?:\.[A-Za-z]+)*)(?: to (?P<value>[^\s,;]*[^\s,;.]))?")


def in_options(text: str) -> str:
    """`set spec.batching.maxModelLen to 26624` is `set --max-model-len 26624`. Fields without an option stay."""
    return _FIELD.sub(_flag, text)


def _flag(match: re.Match[str]) -> str:
    flag, value = _FLAGS.get(match["path"]), match["value"]
    if flag is None:
        return match[0]
    return flag if value in (None, "true") else f"{flag} {value}"
