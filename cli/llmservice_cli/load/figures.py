"""From times and kinds to figures, and when they are shown while a load runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

# What is shown while a load runs.

IN_A_LOG = 10.0
"""Seconds between two lines where nobody watches a terminal."""


@asynccontextmanager
async def repeated(show: Callable[[], None], seconds: float) -> AsyncIterator[None]:
    """Calls `show` after every so many seconds of the block."""
    task = asyncio.create_task(_repeat(show, seconds))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _repeat(show: Callable[[], None], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        show()


PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds."""

    mean: float
    percentiles: Mapping[int, float]
    longest: float


def spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    ordered = sorted(values)
    return Spread(
        mean=sum(ordered) / len(ordered),
        percentiles={percent: percentile(ordered, percent) for percent in PERCENTILES},
        longest=ordered[-1],
    )


def spread_document(spread: Spread | None) -> dict[str, float] | None:
    """As the result files have it; null of nothing."""
    if spread is None:
        return None
    percentiles = {f"p{percent}": round(value, 4) for percent, value in spread.percentiles.items()}
    return {"mean": round(spread.mean, 4), **percentiles, "max": round(spread.longest, 4)}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of sorted values, between neighbours in proportion (as numpy's default and `vllm bench` do)."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def counted(words: Iterable[str]) -> Mapping[str, int]:
    """How often each word occurs, in the order of the alphabet."""
    return dict(sorted(Counter(words).items()))


def in_words(counts: Mapping[str, int]) -> str:
    """`1 × cut, 6 × not-connected`."""
    return ", ".join(f"{count} × {word}" for word, count in counts.items())
