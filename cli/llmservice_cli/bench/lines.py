"""The result of a bench for people: tables, plots of characters, and what the figures do not say by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmservice_cli.load.figures import Spread, in_words
from llmservice_cli.text import table

from .result import Result, Run, labelled
from .traffic import Discipline

NARROWEST, WIDEST = 8, 60
"""Columns of a bar."""
LATE_SECONDS = 0.1
ABOUT = "Seconds; latency and TTFT (time to first token) count from a request's arrival, not from its sending."

Cells = tuple[list[str], list[list[str]]]
"""A header, and rows whose first cell names them."""


def to_lines(result: Result, width: int) -> list[str]:
    """What the command prints, in so many columns where that is possible."""
    return [
        *heading(result),
        "",
        *_table(summary_cells(result)),
        "",
        ABOUT,
        *remarks(result),
        "",
        *_table(vllm_cells(result)),
        "",
        "These count from a request's sending to its last token.",
        *(line for discipline in result.disciplines for line in _plots(result, discipline, width)),
    ]


def _table(cells: Cells) -> list[str]:
    header, rows = cells
    return table(header, rows, right=frozenset(range(1, len(header))))


def heading(result: Result) -> list[str]:
    """What was measured, and with which load."""
    load = result.load
    arrivals = " then ".join(dict.fromkeys(point.load for point in result.points))
    has_batches = any(point.discipline is not Discipline.CONTINUOUS for point in result.points)
    batching = f"; batches of {result.batching.size}, window {result.batching.window:g} s" if has_batches else ""
    words, tokens = (",".join(map(str, lengths)) for lengths in (load.prompt_words, load.output_tokens))
    return [
        f"{result.target} {result.way}, model {result.model}"
        + (f", vLLM {result.server_version}" if result.server_version else ""),
        f"{load.requests} requests, {arrivals}, seed {load.seed}; prompts of {words} words, answers of {tokens} tokens"
        + batching,
    ]


def summary_cells(result: Result) -> Cells:
    """A row for each run, counted from arrival."""
    header = ["DISCIPLINE", "LOAD", "ANSWERED", "FAILED", "MAKESPAN", "REQ/S", "TOKENS/S"]
    header += [f"{what} {percent}" for what in ("LATENCY", "TTFT") for percent in ("P50", "P95", "P99")]
    header += ["GOODPUT", "GOOD"] if result.slo else []
    rows = []
    for run in result.runs:
        point, summary = run.point, run.summary
        rates = (summary.makespan, summary.requests_per_second, summary.output_tokens_per_second)
        rows.append(
            [
                *(str(point.discipline), point.load, f"{summary.answered}/{summary.planned}", str(summary.failed)),
                *map(_figure, (*rates, *_percentiles(summary.latency), *_percentiles(summary.time_to_first_token))),
                *([_figure(summary.goodput), f"{summary.good_share or 0.0:.1%}"] if result.slo else []),
            ]
        )
    return header, rows


def _percentiles(spread: Spread | None) -> Sequence[float | None]:
    return (None, None, None) if spread is None else (spread.p50, spread.p95, spread.p99)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def vllm_cells(result: Result) -> Cells:
    """A row for each figure under vLLM's label, a column for each run."""
    runs = [dict(labelled(run.figures)) for run in result.runs]
    header = ["AS VLLM BENCH SERVE", *(_column(result, run).upper() for run in result.runs)]
    return header, [[label, *(_figure(run[label]) for run in runs)] for label in (runs[0] if runs else ())]


def _column(result: Result, run: Run) -> str:
    """What distinguishes a run from the others."""
    if not result.is_sweep:
        return str(run.point.discipline)
    return run.point.load if len(result.disciplines) == 1 else f"{run.point.discipline} {run.point.load}"


def remarks(result: Result) -> Iterator[str]:
    """What the figures do not say by themselves."""
    yield from result.notes
    for discipline in result.disciplines if result.slo else ():
        yield f"{discipline}: {_keeping(result, discipline)}"
    for run in result.runs:
        point, summary = run.point, run.summary
        name = f"{point.discipline}, {point.load}" if result.is_sweep else str(point.discipline)
        if summary.failures:
            first = next((f" (first: {row.error})" for row in run.rows if row.error), "")
            yield f"{name}: not answered: {in_words(summary.failures)}{first}"
        if summary.interrupted or summary.not_sent:
            yield f"{name}: {summary.interrupted} requests interrupted, {summary.not_sent} never sent"
        late = summary.held_back
        if point.discipline is Discipline.CONTINUOUS and late is not None and late.max > LATE_SECONDS:
            yield (
                f"{name}: this client sent up to {late.max:.2f} s late, which counts as latency:"
                " its machine is too busy for the load"
            )
        if summary.shorter_than_asked:
            yield (
                f"{name}: {summary.shorter_than_asked} answers were shorter than asked for: the server does not"
                " honour ignore_eos or its context is too short, and the runs did not do the same work"
            )


def _keeping(result: Result, discipline: Discipline) -> str:
    """Up to which load the objective is kept."""
    assert result.slo is not None
    run = result.keeping(discipline)
    of_what = f"the SLO ({result.slo}, for {result.slo.share * 100:g}% of the requests)"
    if run is None:
        return f"no load keeps {of_what}"
    point = run.point
    amount = f"{point.rate:g} requests a second" if point.concurrency is None else f"{point.concurrency} clients"
    return f"keeps {of_what} up to {amount}"


def _plots(result: Result, discipline: Discipline, width: int) -> Iterator[str]:
    """Throughput and p99 of the time to the first token against the load; nothing of a single load."""
    runs = result.of(discipline)
    if len(runs) < 2:
        return
    loads, summaries = [run.point.load for run in runs], [run.summary for run in runs]
    requests = [summary.requests_per_second for summary in summaries]
    first = [None if (ttft := summary.time_to_first_token) is None else ttft.p99 * 1000 for summary in summaries]
    of_what = f", {discipline}" if len(result.disciplines) > 1 else ""
    yield from ("", f"answered requests/s{of_what}", *bars(loads, requests, "", width))
    yield from ("", f"TTFT p99{of_what}", *bars(loads, first, " ms", width))


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
        length = max(1, round(room * value / most)) if value and most else 0
        yield f"  {name:>{first}} |{'#' * length:<{room}} {text:>{last}}"
