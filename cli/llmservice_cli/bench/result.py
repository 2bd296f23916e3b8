"""The result of a bench, and the two ways to write it down: JSON for programs, a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from llmservice_cli.load.figures import PERCENTILES, Spread, in_words, spread_document
from llmservice_cli.text import table

from .arrivals import LoadOptions
from .run import Batching, Gathered
from .schedule import Discipline
from .summary import Summary, summarize
from .traffic import Row

VERSION = 1
LATE_SECONDS = 0.1


@dataclass(frozen=True)
class Result:
    """Everything that was asked for, and all that came of it."""

    started: datetime
    target: str
    way: str
    model: str
    server_version: str | None
    load: LoadOptions
    batching: Batching
    warmup: int
    timeout: float
    is_partial: bool
    gathered: Sequence[Gathered]

    @property
    def summaries(self) -> dict[Discipline, Summary]:
        """In the order in which they ran."""
        return {each.discipline: summarize(each.planned, each.rows) for each in self.gathered}

    @property
    def has_failures(self) -> bool:
        return any(summary.failed for summary in self.summaries.values())


def to_document(result: Result) -> dict[str, Any]:
    """JSON, times in seconds. The version rises when a name changes its meaning or goes."""
    return {
        "kind": "BenchResult",
        "version": VERSION,
        "started": result.started.isoformat(timespec="seconds"),
        "partial": result.is_partial,
        "target": {
            "name": result.target,
            "way": result.way,
            "model": result.model,
            "vllmVersion": result.server_version,
        },
        "parameters": {
            **{_camel(name): value for name, value in asdict(result.load).items()},
            "batch": result.batching.size,
            "window": result.batching.window,
            "warmup": result.warmup,
            "timeout": result.timeout,
        },
        "disciplines": [_discipline(each, result.summaries[each.discipline]) for each in result.gathered],
    }


def _discipline(gathered: Gathered, summary: Summary) -> dict[str, Any]:
    rows = sorted(gathered.rows, key=lambda row: row.index)
    return {
        "discipline": str(gathered.discipline),
        "summary": {
            "planned": summary.planned,
            "answered": summary.answered,
            "failures": dict(summary.failures),
            "interrupted": summary.interrupted,
            "notSent": summary.not_sent,
            "shorterThanAsked": summary.shorter_than_asked,
            "makespan": round(summary.makespan, 4),
            "requestsPerSecond": round(summary.requests_per_second, 4),
            "outputTokensPerSecond": round(summary.output_tokens_per_second, 4),
            "outputTokens": summary.output_tokens,
            "latency": spread_document(summary.latency),
            "timeToFirstToken": spread_document(summary.ttft),
            "heldBack": spread_document(summary.held_back),
        },
        "requests": [_row(row) for row in rows],
    }


def _row(row: Row) -> dict[str, Any]:
    found = {
        _camel(name): round(value, 4) if isinstance(value, float) else value for name, value in asdict(row).items()
    }
    return {name: value for name, value in found.items() if value is not None}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def to_lines(result: Result) -> list[str]:
    """The table that the command prints."""
    load = result.load
    return [
        f"{result.target} {result.way}, model {result.model}"
        + (f", vLLM {result.server_version}" if result.server_version else ""),
        f"{load.requests} requests, {load.rate:g} a second on average, seed {load.seed}; prompts of"
        f" {_choice(load.prompt_words)} words, answers of {_choice(load.output_tokens)} tokens; batches of"
        f" {result.batching.size}, window {result.batching.window:g} s",
        "",
        *_table(result.summaries),
        "",
        "Seconds; latency and TTFT (time to first token) count from a request's arrival, not from its sending.",
        *_remarks(result),
    ]


def _choice(values: Sequence[int]) -> str:
    """8,8,96 as it was asked for."""
    return ",".join(str(value) for value in values)


def _table(summaries: dict[Discipline, Summary]) -> list[str]:
    header = ["DISCIPLINE", "ANSWERED", "FAILED", "MAKESPAN", "REQ/S", "TOKENS/S"]
    header += [f"{what} P{percent}" for what in ("LATENCY", "TTFT") for percent in PERCENTILES]
    rows = []
    for discipline, summary in summaries.items():
        figures = [summary.makespan, summary.requests_per_second, summary.output_tokens_per_second]
        rows.append(
            [
                str(discipline),
                f"{summary.answered}/{summary.planned}",
                str(summary.failed),
                *(f"{figure:.2f}" for figure in figures),
                *_percentiles(summary.latency),
                *_percentiles(summary.ttft),
            ]
        )
    return table(header, rows, right=frozenset(range(1, len(header))))


def _percentiles(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-"] * len(PERCENTILES)
    return [f"{value:.2f}" for value in spread.percentiles.values()]


def _remarks(result: Result) -> Iterator[str]:
    """What the figures do not say by themselves."""
    for discipline, summary in result.summaries.items():
        if summary.failures:
            yield f"{discipline}: not answered: {in_words(summary.failures)}{_first_error(result, discipline)}"
        if summary.interrupted or summary.not_sent:
            yield f"{discipline}: {summary.interrupted} requests interrupted, {summary.not_sent} never sent"
        late = summary.held_back
        if discipline is Discipline.CONTINUOUS and late is not None and late.longest > LATE_SECONDS:
            yield (
                f"{discipline}: this client sent up to {late.longest:.2f} s late, which counts as latency:"
                " its machine is too busy for the load"
            )
        if summary.shorter_than_asked:
            yield (
                f"{discipline}: {summary.shorter_than_asked} answers were shorter than asked for: the server does not"
                " honour ignore_eos or its context is too short, and the disciplines did not do the same work"
            )


def _first_error(result: Result, discipline: Discipline) -> str:
    (gathered,) = (each for each in result.gathered if each.discipline is discipline)
    return next((f" (first: {row.error})" for row in gathered.rows if row.error), "")
