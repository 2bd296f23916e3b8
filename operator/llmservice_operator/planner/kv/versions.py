"""How earlier vLLMs counted their KV cache, beside what engines.py says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmservice_operator.planner.engines import engine


@dataclass(frozen=True, slots=True)
class Counting:
    """What it checks and what it prints."""

    spare_block: bool = True
    """One block that no request gets is left out of the check of the longest request."""
    by_concurrency: bool = True
    """Tokens are concurrency times length; before, blocks times their size, as if each group had its share of them."""


_SINCE: tuple[tuple[int, Counting], ...] = (
    # vLLM PR 47272 (July 2026) reserves the null block; the 0.22 of June still gave `auto` every one.
    (26, Counting()),
    # vLLM issue 40691: 0.19 divides the blocks evenly among groups.
    (20, Counting(spare_block=False)),
    (0, Counting(spare_block=False, by_concurrency=False)),
)


def counting(version: str | None) -> Counting:
    """Of a version as people write it; what names no number is the version that this operator is made for."""
    if not engine(version).is_v1:
        return _SINCE[-1][1]
    found = re.search(r"\b0\.(\d+)", version or "")
    return next(rule for first, rule in _SINCE if found is None or int(found[1]) >= first)
