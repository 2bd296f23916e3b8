"""When a client that makes batches sends the next one. Pure: the arrivals of a load are known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Discipline(StrEnum):
    """How a client sends what arrives."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    CONTINUOUS = "continuous"


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests `first` up to, not including, `end`, all sent at `start` (seconds after the first arrival)."""

    first: int
    end: int
    start: float


def next_batch(arrivals: Sequence[float], first: int, free_at: float, size: int, window: float | None) -> Batch:
    """The batch that begins with request `first`, for a client whose last batch ended at `free_at`.

    Without a window (static) it is sent when it is full. With one (dynamic) it is sent when it is full or when its
    oldest request has waited for `window` seconds, whichever is first. Neither waits for more than there is: the last
    batch goes when the last request has arrived.
    """
    end = min(first + size, len(arrivals))
    full_at = arrivals[end - 1]
    due = full_at if window is None else min(full_at, arrivals[first] + window)
    start = max(free_at, due)
    there = sum(1 for arrival in arrivals[first:end] if arrival <= start)
    return Batch(first, first + there, start)
