"""The result of a bench for people: tables, and what the figures do not say by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmservice_cli.load.figures import PERCENTILES, Spread, in_words
from llmservice_cli.text import table

from . import vllm_figures
from .plot import plots
from .result import Result, Run
from .schedule import Discipline

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
