"""The result of a bench: figures of its rows, ours and those of `vllm bench serve`, the objective, and JSON. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from itertools import pairwise, takewhile
from typing import Any, TypeVar

from llmservice_cli.errors import BadInput
from llmservice_cli.load.figures import Spread, counted, document, percentile, spread

from .traffic import ANSWERED, INTERRUPTED, Batching, Discipline, Gathered, LoadOptions, Point, RequestRecord

KIND, VERSION = "BenchResult", 1
_LIMIT = re.compile(r"(\w+):(\d{1,9}(?:\.\d{1,9})?)(ms|s|)")
T = TypeVar("T")
_REMEDY = "Write ttft, tpot or e2el, a colon and a time such as 500ms or 5s; a number alone is milliseconds."


class Time(StrEnum):
    """What can be limited, in `vllm bench serve`'s words."""

    TTFT = "ttft"  # time to first token
    TPOT = "tpot"  # time per output token after the first
    E2EL = "e2el"  # end-to-end latency


@dataclass(frozen=True)
class Slo:
    """A service level objective: limits in seconds, and the share of all requests that has to be within them."""

    limits: Mapping[Time, float]
    share: float

    def is_met(self, ttft: float | None, tpot: float | None, e2el: float | None) -> bool:
        """By one request. One of a single token has no time per token, which then is no obstacle."""
        measured = {Time.TTFT: ttft, Time.TPOT: tpot or 0.0, Time.E2EL: e2el}
        return all((value := measured[name]) is not None and value <= limit for name, limit in self.limits.items())

    def __str__(self) -> str:
        return ", ".join(f"{name} {limit * 1000:g} ms" for name, limit in self.limits.items())


def slo_of(texts: Iterable[str], share: float) -> Slo | None:
    """As `--slo` names it; None of nothing. BadInput names a part that cannot be used."""
    limits: dict[Time, float] = {}
    for text in texts:
        found = _LIMIT.fullmatch(text)
        if found is None or found[1] not in [*Time]:
            raise BadInput.of("--slo", f"{text!r} is no objective.", _REMEDY)
        limits[Time(found[1])] = float(found[2]) / (1 if found[3] == "s" else 1000)
    return Slo(limits, share) if limits else None


@dataclass(frozen=True, slots=True)
class Summary:
    """One run, named as in the result file. Rates and times are of answered requests; a rate is over the makespan."""

    planned: int
    answered: int
    failures: Mapping[str, int]  # by HTTP status or kind
    interrupted: int
    not_sent: int
    shorter_than_asked: int
    makespan: float  # seconds from the first arrival to the end of the last answer
    requests_per_second: float
    output_tokens_per_second: float
    output_tokens: int
    latency: Spread | None  # from arrival; None where nothing was answered
    time_to_first_token: Spread | None
    held_back: Spread | None  # from arrival to sending: what the client's batching costs
    good: int | None  # that met the objective, counted from their arrival; None without one
    goodput: float | None  # good requests a second
    good_share: float | None  # of all that were planned: one that fails is not good

    @property
    def failed(self) -> int:
        return sum(self.failures.values())


def summarize(planned: int, rows: Sequence[RequestRecord], slo: Slo | None = None) -> Summary:
    """Whatever the order of the rows."""
    answered = [row for row in rows if row.is_answered]
    makespan = max((row.ended for row in answered if row.ended is not None), default=0.0)
    tokens = sum(row.output_tokens for row in answered)
    good = None if slo is None else sum(1 for row in answered if slo.is_met(row.ttft, tpot(row), row.latency))
    return Summary(
        planned=planned,
        answered=len(answered),
        failures=counted(row.outcome for row in rows if row.outcome not in (ANSWERED, INTERRUPTED)),
        interrupted=sum(1 for row in rows if row.outcome == INTERRUPTED),
        not_sent=planned - len(rows),
        shorter_than_asked=sum(1 for row in answered if row.output_tokens < row.asked_tokens),
        makespan=makespan,
        requests_per_second=_rate(len(answered), makespan),
        output_tokens_per_second=_rate(tokens, makespan),
        output_tokens=tokens,
        latency=spread(_known(row.latency for row in answered)),
        time_to_first_token=spread(_known(row.ttft for row in answered)),
        held_back=spread([row.sent - row.arrival for row in answered]),
        good=good,
        goodput=None if good is None else _rate(good, makespan),
        good_share=None if good is None else good / planned,
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def _known(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


# As vllm.benchmarks.serve.calculate_metrics has them: from the sending of a request up to its last token. A client that
# sends late, or holds requests back to make a batch, does not show in them; the summary, which counts from arrival, has
# that.

ITL = "itl"
TIMES = (Time.TTFT, Time.TPOT, ITL, Time.E2EL)
"""In the order in which vLLM prints them."""
GOODPUT = "request_goodput"
LABELS: Mapping[str, str] = {
    "request_throughput": "Request throughput (req/s)",
    GOODPUT: "Request goodput (req/s)",
    "output_throughput": "Output token throughput (tok/s)",
    "total_token_throughput": "Total token throughput (tok/s)",
    **{
        f"{what.lower()}_{name}_ms": f"{what} {name.upper()} (ms)"
        for name in TIMES
        for what in ("Mean", "Median", "P99")
    },
}
"""Of the figures that `vllm bench serve` prints."""
VllmFigures = Mapping[str, float | int | None]
"""By vLLM's names. None: not measured; of the goodput: there is no objective."""


def vllm_figures(rows: Sequence[RequestRecord], slo: Slo | None = None) -> VllmFigures:
    """Whatever the order of the rows. Rates are over the time from the load's begin to the end of the last request, and
    times are of answered requests."""
    answered = [row for row in rows if row.is_answered]
    duration = max((row.ended for row in rows if row.ended is not None), default=0.0)
    prompts = _known(row.prompt_tokens for row in answered)
    has_prompts = len(prompts) == len(answered)  # a server need not count them
    output = sum(row.output_tokens for row in answered)
    good = 0 if slo is None else sum(1 for row in answered if slo.is_met(ttft(row), tpot(row), e2el(row)))
    found: dict[str, float | int | None] = {
        "duration": duration,
        "completed": len(answered),
        "failed": len(rows) - len(answered),
        "total_input_tokens": sum(prompts) if has_prompts else None,
        "total_output_tokens": output,
        "request_throughput": _rate(len(answered), duration),
        GOODPUT: None if slo is None else _rate(good, duration),
        "output_throughput": _rate(output, duration),
        "total_token_throughput": _rate(sum(prompts) + output, duration) if has_prompts else None,
    }
    gaps = [after - before for row in answered for before, after in pairwise(row.pieces)]
    times = (*(_known(map(time, answered)) for time in (ttft, tpot)), gaps, _known(map(e2el, answered)))
    for name, seconds in zip(TIMES, times, strict=True):
        found |= {f"{what}_{name}_ms": value for what, value in _times(seconds).items()}
    return found


def _times(seconds: Sequence[float]) -> Mapping[str, float | None]:
    """Milliseconds."""
    values = sorted(second * 1000 for second in seconds)
    if not values:
        return dict.fromkeys(("mean", "median", "std", "p99"))
    return {
        "mean": statistics.fmean(values),
        "median": percentile(values, 50),
        "std": statistics.pstdev(values),
        "p99": percentile(values, 99),
    }


def ttft(row: RequestRecord) -> float | None:
    """Seconds to the first token."""
    return None if row.first_token is None else row.first_token - row.sent


def e2el(row: RequestRecord) -> float | None:
    """Seconds to the last token."""
    return None if row.last_token is None else row.last_token - row.sent


def tpot(row: RequestRecord) -> float | None:
    """Seconds for each token after the first; None where there is no second."""
    whole, first = e2el(row), ttft(row)
    if whole is None or first is None or row.output_tokens < 2:
        return None
    return (whole - first) / (row.output_tokens - 1)


def labelled(figures: VllmFigures) -> Iterator[tuple[str, float | None]]:
    """Under the labels that `vllm bench serve` prints."""
    return ((label, figures[name]) for name, label in LABELS.items() if name != GOODPUT or figures[name] is not None)


@dataclass(frozen=True)
class Run:
    """One point of a bench."""

    point: Point
    rows: Sequence[RequestRecord]
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
                vllm_figures(each.rows, self.slo),
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

    @property
    def disciplines(self) -> Sequence[Discipline]:
        return list(dict.fromkeys(run.point.discipline for run in self.runs))

    def of(self, discipline: Discipline) -> Sequence[Run]:
        """Its runs by their load, the smallest first."""
        runs = (run for run in self.runs if run.point.discipline is discipline)
        return sorted(runs, key=lambda run: run.point.amount)

    def keeping(self, discipline: Discipline) -> Run | None:
        """The run with the greatest load that keeps the objective, where all with a smaller load keep it too."""
        return next(iter([*takewhile(self._keeps, self.of(discipline))][-1:]), None)

    def _keeps(self, run: Run) -> bool:
        share = run.summary.good_share
        return self.slo is not None and share is not None and share >= self.slo.share


def to_document(result: Result) -> dict[str, Any]:
    """JSON, times in seconds where the name says nothing else. The version rises when a name changes its meaning or
    goes."""
    rates = [rate for rate in dict.fromkeys(point.rate for point in result.points) if rate is not None]
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
            **document(result.load),
            "rate": rates[0] if len(rates) == 1 else None,
            "rates": rates,
            "concurrency": [point.concurrency for point in result.points if point.concurrency is not None],
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
    return {
        "discipline": str(discipline),
        "upToRate": None if run is None else run.point.rate,
        "upToConcurrency": None if run is None else run.point.concurrency,
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "discipline": str(run.point.discipline),
        "rate": run.point.rate,
        "concurrency": run.point.concurrency,
        "summary": document(run.summary),
        "vllmBenchServe": document(run.figures),
        "requests": [_row(row) for row in run.rows],
    }


def _row(row: RequestRecord) -> dict[str, Any]:
    return {name: value for name, value in document(row).items() if name != "pieces" and value is not None}
