"""Which kinds of input a multimodal model is started without, by the flags that have no field of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

_LIMITS, _TEXT_ONLY, _UNPROFILED = "--limit-mm-per-prompt", "--language-model-only", "--skip-mm-profiling"
ENCODED = frozenset({"image", "video"})
_MOST = 4096
"""Characters of a value that is read; longer ones say more than a few numbers."""


def without(arguments: Sequence[str]) -> frozenset[str]:
    """Of `image` and `video`, those that vLLM profiles nothing for: the limit is 0, or nothing is profiled."""
    found: dict[str, bool] = {}
    for name, value in _named(arguments):
        flag, dot, kind = name.partition(".")
        if flag in (_TEXT_ONLY, _UNPROFILED):
            return ENCODED
        if flag == _LIMITS and dot:
            found[kind.removesuffix(".count")] = value == "0"
        elif flag == _LIMITS:
            found |= {kind: limit == 0 for kind, limit in _limits(value)}
    return frozenset(kind for kind in ENCODED if found.get(kind))


def _named(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            following = next(iter(arguments[index + 1 : index + 2]), "")
            yield name.replace("_", "-"), value if equals else following


def _limits(text: str) -> Iterator[tuple[str, object]]:
    """`{"video": 0}`, or with further options `{"video": {"count": 0}}`."""
    try:
        said = json.loads(text) if len(text) <= _MOST else None
    except (ValueError, RecursionError):
        return
    for kind, limit in said.items() if isinstance(said, Mapping) else ():
        yield kind, limit.get("count") if isinstance(limit, Mapping) else limit
