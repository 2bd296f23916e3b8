"""A sweep in a terminal: a bar for each load, of characters. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .result import Result
from .schedule import Discipline

FULL = "#"
NARROWEST, WIDEST = 8, 60
"""Columns of a bar."""


def plots(result: Result, discipline: Discipline, width: int) -> Iterator[str]:
    """Throughput and p99 of the time to the first token against the load; nothing of a single load."""
    runs = result.of(discipline)
    if len(runs) < 2:
        return
    loads = [run.point.load for run in runs]
    requests = [run.summary.requests_per_second for run in runs]
    ttft = [None if run.summary.ttft is None else run.summary.ttft.percentiles[99] * 1000 for run in runs]
    of_what = f", {discipline}" if len(result.disciplines) > 1 else ""
    for title, values, unit in ((f"answered requests/s{of_what}", requests, ""), (f"TTFT p99{of_what}", ttft, " ms")):
        yield ""
        yield title
        yield from bars(loads, values, unit, width)


def bars(names: Sequence[str], values: Sequence[float | None], unit: str, width: int) -> Iterator[str]:
    """A line each; the greatest value has the whole of the room that `width` columns leave."""
    written = [
        "-" if value is None else f"{value:.{0 if value >= 100 else 3}{'f' if value >= 100 else 'g'}}{unit}"
        for value in values
    ]
    first, last = max(map(len, names)), max(map(len, written))
    room = min(WIDEST, max(NARROWEST, width - first - last - 6))
    most = max((value for value in values if value is not None), default=0.0)
    for name, value, text in zip(names, values, written, strict=True):
        length = round(room * value / most) if value and most else 0
        yield f"  {name:>{first}} |{FULL * max(length, 1 if value else 0):<{room}} {text:>{last}}"
