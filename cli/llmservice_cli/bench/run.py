"""Plays a load at one point and gathers a row for every request that was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from llmservice_cli.errors import WrongUsage
from llmservice_cli.load.pace import Pace

from .arguments import Options
from .traffic import Completions, Discipline, Planned, Row, next_batch

# The points of a bench: which discipline sends the load, and how much of it at a time.

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


@dataclass
class Gathered:
    """What is known so far: it grows while a load runs, and holds what there is when that is interrupted."""

    point: Point
    planned: int
    sent: int = 0
    rows: list[Row] = field(default_factory=list)

    @property
    def under_way(self) -> int:
        return self.sent - len(self.rows)

    @property
    def failed(self) -> int:
        return sum(1 for row in self.rows if not row.is_answered)


@dataclass(frozen=True)
class Batching:
    """Of the clients that make batches."""

    size: int
    window: float  # seconds; of the dynamic one


@dataclass(frozen=True)
class Player:
    completions: Completions
    batching: Batching

    async def play(self, load: Sequence[Planned], gathered: Gathered) -> None:
        pace, point = Pace(self.completions.clock), gathered.point
        began = pace.clock()
        if point.concurrency is not None:
            await self._in_turn(load, gathered, point.concurrency, began)
        elif point.discipline is Discipline.CONTINUOUS:
            send = partial(self._send, load, gathered, began, None)
            await pace.at([began + planned.arrival for planned in load], send)
        else:
            await self._in_batches(load, gathered, pace, began)

    async def _in_turn(self, load: Sequence[Planned], gathered: Gathered, clients: int, began: float) -> None:
        """A request arrives when a client is free for it, without a pause: the load ends even if all are refused."""
        waiting = iter(range(len(load)))

        async def one_after_another() -> None:
            for number in waiting:
                arrived = replace(load[number], arrival=self.completions.clock() - began)
                await self._send([arrived], gathered, began, None, 0)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(clients, len(load))):
                group.create_task(one_after_another())

    async def _in_batches(self, load: Sequence[Planned], gathered: Gathered, pace: Pace, began: float) -> None:
        arrivals = [planned.arrival for planned in load]
        window = self.batching.window if gathered.point.discipline is Discipline.DYNAMIC else None
        first = number = 0
        while first < len(load):
            batch = next_batch(arrivals, first, pace.clock() - began, self.batching.size, window)
            members = load[batch.first : batch.end]
            send = partial(self._send, members, gathered, began, number)
            await pace.at([began + batch.start] * len(members), send)  # ends with its longest member
            first, number = batch.end, number + 1

    async def _send(
        self, load: Sequence[Planned], gathered: Gathered, began: float, batch: int | None, number: int
    ) -> None:
        gathered.sent += 1
        await self.completions.send(load[number], began=began, batch=batch, record=gathered.rows.append)
