"""Processor time of one call, for bounds that are orders of magnitude away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


def within(seconds: float, work: Callable[[], R], *, tries: int = 3) -> R:
    """What `work` returns; AssertionError where each of so many tries takes longer.

    One alone may have a collection of garbage in it, of all that a test process holds.
    """
    taken = []
    for _ in range(tries):
        began = time.thread_time()
        found = work()
        taken.append(time.thread_time() - began)
        if taken[-1] < seconds:
            return found
    raise AssertionError(f"not within {seconds} s of CPU: {taken}")
