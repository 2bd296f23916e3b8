"""What is shown on standard error while a load runs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TextIO

from llmservice_cli.load.display import IN_A_LOG, repeated
from llmservice_cli.text import duration

from .points import Point
from .run import Gathered

ON_A_TERMINAL = 0.5


@asynccontextmanager
async def shown(gathered: Gathered, points: Sequence[Point], out: TextIO | None) -> AsyncIterator[None]:
    """A line that renews itself on a terminal, one every ten seconds elsewhere; nothing without `out`.

    `points` are all of the bench, that of `gathered` among them.
    """
    if out is None:
        yield
        return
    began, live = time.monotonic(), out.isatty()

    def show(end: str) -> None:
        begin = "\r" if live else ""
        out.write(f"{begin}{line(gathered, points, time.monotonic() - began)}{end}")
        out.flush()

    try:
        async with repeated(lambda: show("" if live else "\n"), ON_A_TERMINAL if live else IN_A_LOG):
            yield
    finally:
        show("\n")


def line(gathered: Gathered, points: Sequence[Point], seconds: float) -> str:
    """As wide whatever the numbers are, so that it covers the one before."""
    left = time_left(gathered, points, seconds)
    point = gathered.point
    place = f"{points.index(point) + 1}/{len(points)} {point.discipline} {point.load}"
    return (
        f"{place:<28}  {len(gathered.rows):>5} of {gathered.planned} ended, {gathered.under_way:>4} under way,"
        f" {gathered.failed:>4} failed, {seconds:6.1f} s"
        f"{'' if left is None or left < 1 else f', about {duration(left)} left':<20}"
    )


def time_left(gathered: Gathered, points: Sequence[Point], seconds: float) -> float | None:
    """Seconds that this run and those after it still take, by what this one has done so far; None: nothing is known.

    A rate gives the time of its arrivals. A later number of clients is taken to need as long as this one does, and
    more where there are fewer clients.
    """
    ended, point = len(gathered.rows), gathered.point
    whole = seconds * gathered.planned / ended if ended else None
    if point.rate is not None:
        whole = max(whole or 0.0, gathered.planned / point.rate)
    if whole is None:
        return None
    later = points[points.index(point) + 1 :]
    rest = sum(
        whole * max(1.0, (point.concurrency or 1) / other.concurrency)
        if other.concurrency is not None
        else gathered.planned / (other.rate or 1.0)
        for other in later
    )
    return max(0.0, whole - seconds) + rest
