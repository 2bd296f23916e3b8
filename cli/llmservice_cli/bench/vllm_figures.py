"""The figures of one run by the definitions of `vllm bench serve` (vllm.benchmarks.serve.calculate_metrics). Pure.

They count from the sending of a request, up to its last token. A client that sends late, or holds requests back to
make a batch, does not show in them: the summary, which counts from arrival, has that.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmservice_cli.load.figures import percentile

from .slo import Slo, Time
from .traffic import Row

ITL = "itl"
NAMES: Mapping[str, str] = {Time.TTFT: "TTFT", Time.TPOT: "TPOT", ITL: "ITL", Time.E2EL: "E2EL"}
"""In the order in which vLLM prints them."""


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds."""

    mean: float
    median: float
    std: float
    p99: float


@dataclass(frozen=True)
class VllmFigures:
    """Rates are over `duration`, and times of answered requests."""

    duration: float  # seconds from the load's begin to the end of the last request
    completed: int
    failed: int
    input_tokens: int | None  # None where the server does not count prompts
    output_tokens: int
    good: int | None  # None without an objective
    times: Mapping[str, Times | None]  # by the keys of NAMES; None where there is none

    @property
    def request_throughput(self) -> float:
        return self._rate(self.completed)

    @property
    def request_goodput(self) -> float | None:
        return None if self.good is None else self._rate(self.good)

    @property
    def output_throughput(self) -> float:
        return self._rate(self.output_tokens)

    @property
    def total_token_throughput(self) -> float | None:
        return None if self.input_tokens is None else self._rate(self.input_tokens + self.output_tokens)

    def _rate(self, count: int) -> float:
        return count / self.duration if self.duration else 0.0


def vllm_figures(rows: Sequence[Row], slo: Slo | None = None) -> VllmFigures:
    """Whatever the order of the rows."""
    answered = [row for row in rows if row.is_answered]
    prompts = [row.prompt_tokens for row in answered]
    values = {
        Time.TTFT: [value for row in answered if (value := ttft(row)) is not None],
        Time.TPOT: [value for row in answered if (value := tpot(row)) is not None],
        ITL: [gap for row in answered for gap in gaps(row)],
        Time.E2EL: [value for row in answered if (value := e2el(row)) is not None],
    }
    return VllmFigures(
        duration=max((row.ended for row in rows if row.ended is not None), default=0.0),
        completed=len(answered),
        failed=len(rows) - len(answered),
        input_tokens=None if None in prompts else sum(tokens or 0 for tokens in prompts),
        output_tokens=sum(row.output_tokens for row in answered),
        good=None if slo is None else sum(1 for row in answered if slo.is_met(ttft(row), tpot(row), e2el(row))),
        times={name: _times(values[name]) for name in NAMES},
    )


def ttft(row: Row) -> float | None:
    """Seconds to the first token."""
    return None if row.first_token is None else row.first_token - row.sent


def e2el(row: Row) -> float | None:
    """Seconds to the last token."""
    return None if row.last_token is None else row.last_token - row.sent


def tpot(row: Row) -> float | None:
    """Seconds for each token after the first; None where there is no second."""
    whole, first = e2el(row), ttft(row)
    if whole is None or first is None or row.output_tokens < 2:
        return None
    return (whole - first) / (row.output_tokens - 1)


def gaps(row: Row) -> Iterator[float]:
    """Seconds between two pieces of the answer."""
    return (after - before for before, after in pairwise(row.pieces))


def _times(seconds: Sequence[float]) -> Times | None:
    if not seconds:
        return None
    values = sorted(second * 1000 for second in seconds)
    return Times(
        mean=statistics.fmean(values),
        median=percentile(values, 50),
        std=statistics.pstdev(values),
        p99=percentile(values, 99),
    )


def document(figures: VllmFigures, places: int | None = 4) -> dict[str, float | int | None]:
    """Under vLLM's own names, rounded to so many decimal places."""
    found: dict[str, float | int | None] = {
        "duration": figures.duration,
        "completed": figures.completed,
        "failed": figures.failed,
        "total_input_tokens": figures.input_tokens,
        "total_output_tokens": figures.output_tokens,
        "request_throughput": figures.request_throughput,
        "request_goodput": figures.request_goodput,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": figures.total_token_throughput,
    }
    for name, times in figures.times.items():
        for what in ("mean", "median", "std", "p99"):
            found[f"{what}_{name}_ms"] = None if times is None else getattr(times, what)
    if places is None:
        return found
    return {name: round(value, places) if isinstance(value, float) else value for name, value in found.items()}


def labelled(figures: VllmFigures) -> Iterator[tuple[str, float | None]]:
    """Under the labels that `vllm bench serve` prints."""
    yield "Request throughput (req/s)", figures.request_throughput
    if figures.good is not None:
        yield "Request goodput (req/s)", figures.request_goodput
    yield "Output token throughput (tok/s)", figures.output_throughput
    yield "Total token throughput (tok/s)", figures.total_token_throughput
    for name, label in NAMES.items():
        times = figures.times[name]
        yield f"Mean {label} (ms)", None if times is None else times.mean
        yield f"Median {label} (ms)", None if times is None else times.median
        yield f"P99 {label} (ms)", None if times is None else times.p99
