"""From rows to figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmservice_cli.load.figures import Spread, counted, spread

from .slo import Slo
from .traffic import ANSWERED, INTERRUPTED, Row
from .vllm_figures import tpot


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
