"""The result of a bench for people: tables, and what the figures do not say by themselves."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TextIO

from llmservice_cli.load.figures import IN_A_LOG, PERCENTILES, Spread, in_words, repeated
from llmservice_cli.text import duration, table

from . import vllm_figures
from .result import Result, Run
from .run import Gathered, Point
from .traffic import Discipline

# A sweep in a terminal: a bar for each load, of characters. Pure.

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


# What is shown on standard error while a load runs.

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


LATE_SECONDS = 0.1
ABOUT = "Seconds; latency and TTFT (time to first token) count from a request's arrival, not from its sending."
AS_VLLM = "AS VLLM BENCH SERVE"


def to_lines(result: Result, width: int) -> list[str]:
    """What the command prints, in so many columns where that is possible."""
    return [
        *heading(result),
        "",
        *summary_table(result),
        "",
        ABOUT,
        *remarks(result),
        "",
        *vllm_table(result),
        "",
        "These count from a request's sending to its last token.",
        *(line for discipline in result.disciplines for line in plots(result, discipline, width)),
    ]


def heading(result: Result) -> list[str]:
    """What was measured, and with which load."""
    load = result.load
    arrivals = " then ".join(dict.fromkeys(point.load for point in result.points))
    has_batches = any(point.discipline is not Discipline.CONTINUOUS for point in result.points)
    batching = f"; batches of {result.batching.size}, window {result.batching.window:g} s" if has_batches else ""
    return [
        f"{result.target} {result.way}, model {result.model}"
        + (f", vLLM {result.server_version}" if result.server_version else ""),
        f"{load.requests} requests, {arrivals}, seed {load.seed}; prompts of"
        f" {_choice(load.prompt_words)} words, answers of {_choice(load.output_tokens)} tokens{batching}",
    ]


def _choice(values: Sequence[int]) -> str:
    """8,8,96 as it was asked for."""
    return ",".join(str(value) for value in values)


def summary_table(result: Result) -> list[str]:
    header, rows = summary_cells(result)
    return table(header, rows, right=frozenset(range(1, len(header))))


def summary_cells(result: Result) -> tuple[list[str], list[list[str]]]:
    """A header and a row for each run, counted from arrival."""
    header = ["DISCIPLINE", "LOAD", "ANSWERED", "FAILED", "MAKESPAN", "REQ/S", "TOKENS/S"]
    header += [f"{what} P{percent}" for what in ("LATENCY", "TTFT") for percent in PERCENTILES]
    header += ["GOODPUT", "GOOD"] if result.slo else []
    rows = []
    for run in result.runs:
        summary = run.summary
        figures = [summary.makespan, summary.requests_per_second, summary.output_tokens_per_second]
        rows.append(
            [
                str(run.point.discipline),
                run.point.load,
                f"{summary.answered}/{summary.planned}",
                str(summary.failed),
                *(f"{figure:.2f}" for figure in figures),
                *_percentiles(summary.latency),
                *_percentiles(summary.ttft),
                *([f"{summary.goodput or 0.0:.2f}", f"{summary.good_share or 0.0:.1%}"] if result.slo else []),
            ]
        )
    return header, rows


def _percentiles(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-"] * len(PERCENTILES)
    return [f"{value:.2f}" for value in spread.percentiles.values()]


def vllm_table(result: Result) -> list[str]:
    header, rows = vllm_cells(result)
    return table(header, rows, right=frozenset(range(1, len(header))))


def vllm_cells(result: Result) -> tuple[list[str], list[list[str]]]:
    """A row for each figure under vLLM's label, a column for each run."""
    runs = [dict(vllm_figures.labelled(run.figures)) for run in result.runs]
    header = [AS_VLLM, *(_column(result, run).upper() for run in result.runs)]
    rows = [[label, *(_figure(run[label]) for run in runs)] for label in (runs[0] if runs else ())]
    return header, rows


def _column(result: Result, run: Run) -> str:
    """What distinguishes a run from the others."""
    if not result.is_sweep:
        return str(run.point.discipline)
    return run.point.load if len(result.disciplines) == 1 else f"{run.point.discipline} {run.point.load}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def remarks(result: Result) -> Iterator[str]:
    """What the figures do not say by themselves."""
    yield from result.notes
    for discipline in result.disciplines if result.slo else ():
        yield f"{discipline}: {keeping(result, discipline)}"
    for run in result.runs:
        point, summary = run.point, run.summary
        name = f"{point.discipline}, {point.load}" if result.is_sweep else str(point.discipline)
        if summary.failures:
            first = next((f" (first: {row.error})" for row in run.rows if row.error), "")
            yield f"{name}: not answered: {in_words(summary.failures)}{first}"
        if summary.interrupted or summary.not_sent:
            yield f"{name}: {summary.interrupted} requests interrupted, {summary.not_sent} never sent"
        late = summary.held_back
        if point.discipline is Discipline.CONTINUOUS and late is not None and late.longest > LATE_SECONDS:
            yield (
                f"{name}: this client sent up to {late.longest:.2f} s late, which counts as latency:"
                " its machine is too busy for the load"
            )
        if summary.shorter_than_asked:
            yield (
                f"{name}: {summary.shorter_than_asked} answers were shorter than asked for: the server does not"
                " honour ignore_eos or its context is too short, and the runs did not do the same work"
            )


def keeping(result: Result, discipline: Discipline) -> str:
    """Up to which load the objective is kept."""
    assert result.slo is not None
    run = result.keeping(discipline)
    wanted = f"{result.slo.share * 100:g}%"
    of_what = f"the SLO ({result.slo}, for {wanted} of the requests)"
    if run is None:
        return f"no load keeps {of_what}"
    point = run.point
    amount = f"{point.rate:g} requests a second" if point.concurrency is None else f"{point.concurrency} clients"
    return f"keeps {of_what} up to {amount}"
