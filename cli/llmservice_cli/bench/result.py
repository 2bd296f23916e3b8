"""The result of a bench, and its form for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from itertools import takewhile
from typing import Any

from llmservice_cli.load.figures import Spread, counted, spread, spread_document

from . import vllm_figures
from .run import Batching, Gathered, Point
from .slo import Slo
from .traffic import ANSWERED, INTERRUPTED, Discipline, LoadOptions, Row
from .vllm_figures import VllmFigures, tpot

# From rows to figures.


@dataclass(frozen=True, slots=True)
class Summary:
    """One discipline. Rates and times are of answered requests; a rate is over the makespan."""

    planned: int
    answered: int
    failures: Mapping[str, int]  # by HTTP status or kind
    interrupted: int
    not_sent: int
    makespan: float  # seconds from the first arrival to the end of the last answer
    output_tokens: int
    shorter_than_asked: int
    latency: Spread | None  # None where nothing was answered
    ttft: Spread | None
    held_back: Spread | None  # from arrival to sending: what the client's batching costs
    good: int | None = None  # that met the objective, counted from their arrival; None without one

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def requests_per_second(self) -> float:
        return self.answered / self.makespan if self.makespan else 0.0

    @property
    def output_tokens_per_second(self) -> float:
        return self.output_tokens / self.makespan if self.makespan else 0.0

    @property
    def goodput(self) -> float | None:
        """Good requests a second."""
        return None if self.good is None else self.good / self.makespan if self.makespan else 0.0

    @property
    def good_share(self) -> float | None:
        """Of all that were planned: one that fails is not good."""
        return None if self.good is None else self.good / self.planned


def summarize(planned: int, rows: Sequence[Row], slo: Slo | None = None) -> Summary:
    """Whatever the order of the rows."""
    answered = [row for row in rows if row.is_answered]
    return Summary(
        planned=planned,
        answered=len(answered),
        failures=counted(row.outcome for row in rows if row.outcome not in (ANSWERED, INTERRUPTED)),
        interrupted=sum(1 for row in rows if row.outcome == INTERRUPTED),
        not_sent=planned - len(rows),
        makespan=max((row.ended for row in answered if row.ended is not None), default=0.0),
        output_tokens=sum(row.output_tokens for row in answered),
        shorter_than_asked=sum(1 for row in answered if row.output_tokens < row.asked_tokens),
        latency=spread([row.latency for row in answered if row.latency is not None]),
        ttft=spread([row.ttft for row in answered if row.ttft is not None]),
        held_back=spread([row.sent - row.arrival for row in answered]),
        good=None if slo is None else sum(1 for row in answered if slo.is_met(row.ttft, tpot(row), row.latency)),
    )


KIND, VERSION = "BenchResult", 1


@dataclass(frozen=True)
class Run:
    """One point of a bench."""

    point: Point
    rows: Sequence[Row]
    summary: Summary  # from arrival
    figures: VllmFigures  # from sending


@dataclass(frozen=True)
class Result:
    """Everything that was asked for, and all that came of it."""

    started: datetime
    target: str
    way: str
    model: str
    server_version: str | None
    load: LoadOptions  # its rate is that of the first point
    points: Sequence[Point]
    batching: Batching
    warmup: int
    timeout: float
    is_partial: bool
    gathered: Sequence[Gathered]
    slo: Slo | None = None
    notes: Sequence[str] = ()
    """What the way to the server does to the figures."""

    @cached_property
    def runs(self) -> Sequence[Run]:
        """In the order in which they ran."""
        return [
            Run(
                each.point,
                sorted(each.rows, key=lambda row: row.index),
                summarize(each.planned, each.rows, self.slo),
                vllm_figures.vllm_figures(each.rows, self.slo),
            )
            for each in self.gathered
        ]

    @property
    def is_sweep(self) -> bool:
        """Over loads; otherwise it has one run for each discipline."""
        return len({point.load for point in self.points}) > 1

    @property
    def has_failures(self) -> bool:
        return any(run.summary.failed for run in self.runs)

    def of(self, discipline: Discipline) -> Sequence[Run]:
        """Its runs by their load, the smallest first."""
        return sorted(
            (run for run in self.runs if run.point.discipline is discipline), key=lambda run: run.point.amount
        )

    def keeping(self, discipline: Discipline) -> Run | None:
        """The run with the greatest load that keeps the objective, where all with a smaller load keep it too."""
        return next(iter([*takewhile(self.keeps, self.of(discipline))][-1:]), None)

    def keeps(self, run: Run) -> bool:
        """Whether enough of its requests are good."""
        share = run.summary.good_share
        return self.slo is not None and share is not None and share >= self.slo.share

    @property
    def disciplines(self) -> Sequence[Discipline]:
        return list(dict.fromkeys(run.point.discipline for run in self.runs))


def to_document(result: Result) -> dict[str, Any]:
    """JSON, times in seconds where the name says nothing else. The version rises when a name changes its meaning or
    goes."""
    rates = [rate for rate in dict.fromkeys(point.rate for point in result.points) if rate is not None]
    clients = [clients for point in result.points if (clients := point.concurrency) is not None]
    return {
        "kind": KIND,
        "version": VERSION,
        "started": result.started.isoformat(timespec="seconds"),
        "partial": result.is_partial,
        "target": {
            "name": result.target,
            "way": result.way,
            "notes": list(result.notes),
            "model": result.model,
            "vllmVersion": result.server_version,
        },
        "parameters": {
            **{_camel(name): value for name, value in asdict(result.load).items()},
            "rate": rates[0] if len(rates) == 1 else None,
            "rates": rates,
            "concurrency": clients,
            "batch": result.batching.size,
            "window": result.batching.window,
            "warmup": result.warmup,
            "timeout": result.timeout,
            "slo": None if result.slo is None else _slo(result.slo),
        },
        "keepsSlo": [_keeping(result, discipline) for discipline in result.disciplines] if result.slo else [],
        "disciplines": [_run(run) for run in result.runs],
    }


def _slo(slo: Slo) -> dict[str, float]:
    return {**{f"{name}_ms": limit * 1000 for name, limit in slo.limits.items()}, "share": slo.share}


def _keeping(result: Result, discipline: Discipline) -> dict[str, Any]:
    run = result.keeping(discipline)
    point = None if run is None else run.point
    return {
        "discipline": str(discipline),
        "upToRate": None if point is None else point.rate,
        "upToConcurrency": None if point is None else point.concurrency,
    }


def _run(run: Run) -> dict[str, Any]:
    summary = run.summary
    return {
        "discipline": str(run.point.discipline),
        "rate": run.point.rate,
        "concurrency": run.point.concurrency,
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
            "good": summary.good,
            "goodput": _rounded(summary.goodput),
            "goodShare": _rounded(summary.good_share),
        },
        "vllmBenchServe": vllm_figures.document(run.figures),
        "requests": [_row(row) for row in run.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    found = {_camel(name): _rounded(value) for name, value in asdict(row).items() if name != "pieces"}
    return {name: value for name, value in found.items() if value is not None}


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
