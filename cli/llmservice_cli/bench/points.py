"""The points of a bench: which discipline sends the load, and how much of it at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmservice_cli.errors import WrongUsage

from .arguments import Options
from .schedule import Discipline

DEFAULT_RATE = 20.0
ALL = "all"


@dataclass(frozen=True, slots=True)
class Point:
    """One run of the load. It has a rate (open loop) or a concurrency (closed loop)."""

    discipline: Discipline
    rate: float | None = None  # arrivals a second, on average
    concurrency: int | None = None  # clients

    @property
    def load(self) -> str:
        """In words."""
        return f"{self.rate:g}/s" if self.concurrency is None else f"{self.concurrency} clients"

    @property
    def amount(self) -> float:
        """By which points of a sweep are ordered."""
        return float(self.concurrency or self.rate or 0)


def points_of(options: Options) -> Sequence[Point]:
    """In the order in which they run. WrongUsage where the options exclude each other."""
    if options.concurrency is not None:
        if options.rate is not None:
            raise WrongUsage("--rate and --concurrency exclude each other", "leave one of them out")
        if options.discipline not in (None, Discipline.CONTINUOUS):
            raise WrongUsage(
                f"--concurrency does not go with --discipline {options.discipline}: its clients send one by one",
                "leave one of them out",
            )
        return [Point(Discipline.CONTINUOUS, concurrency=clients) for clients in dict.fromkeys(options.concurrency)]
    rates = tuple(dict.fromkeys(options.rate or (DEFAULT_RATE,)))
    chosen = options.discipline or (ALL if len(rates) == 1 else Discipline.CONTINUOUS)
    disciplines = list(Discipline) if chosen == ALL else [Discipline(chosen)]
    return [Point(discipline, rate=rate) for discipline in disciplines for rate in rates]
