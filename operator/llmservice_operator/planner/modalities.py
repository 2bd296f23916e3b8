"""Which kinds of input a multimodal model is started without, by the flags that have no field of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from llmservice_vllm.flags import Match
from llmservice_vllm.versions import flag_table_or_default

_LIMITS, _TEXT_ONLY, _UNPROFILED = "--limit-mm-per-prompt", "--language-model-only", "--skip-mm-profiling"
ENCODED = frozenset({"image", "video"})
_MOST = 4096
"""Characters of a value that is read; longer ones say more than a few numbers."""


def without(arguments: Sequence[str], version: str) -> frozenset[str]:
    """Of `image` and `video`, those that vLLM profiles nothing for: the limit is 0, or nothing is profiled.

    In every spelling of that vLLM's parser; the last one counts.
    """
    found: dict[str, bool] = {}
    nothing: dict[str, bool] = {}
    for argument, resolution, following in flag_table_or_default(version).grouped(arguments):
        if not isinstance(resolution, Match):
            continue
        flag, value = resolution.flag.name, resolution.value or next(iter(following), "")
        _, dot, kind = argument.partition("=")[0].partition(".")
        if flag in (_TEXT_ONLY, _UNPROFILED):
            nothing[flag] = not resolution.is_negated
        elif flag == _LIMITS and dot:
            found[kind.removesuffix(".count")] = value == "0"
        elif flag == _LIMITS:
            found |= {kind: limit == 0 for kind, limit in _limits(value)}
    return ENCODED if any(nothing.values()) else frozenset(kind for kind in ENCODED if found.get(kind))


def _limits(text: str) -> Iterator[tuple[str, object]]:
    """`{"video": 0}`, or with further options `{"video": {"count": 0}}`."""
    try:
        limits = json.loads(text) if len(text) <= _MOST else None
    except (ValueError, RecursionError):
        return
    for kind, limit in limits.items() if isinstance(limits, Mapping) else ():
        yield kind, limit.get("count") if isinstance(limit, Mapping) else limit
