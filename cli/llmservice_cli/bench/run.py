"""Plays a load by one discipline and gathers a row for every request that was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from llmservice_cli.load.pace import Pace

from .arrivals import Planned
from .schedule import Discipline, next_batch
from .traffic import Completions, Row


@dataclass
class Gathered:
    """What is known so far: it grows while a load runs, and holds what there is when that is interrupted."""

    discipline: Discipline
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
        pace = Pace(self.completions.clock)
        began = pace.clock()
        if gathered.discipline is not Discipline.CONTINUOUS:
            await self._in_batches(load, gathered, pace, began)
            return

        await pace.at([began + planned.arrival for planned in load], partial(self._send, load, gathered, began, None))

    async def _in_batches(self, load: Sequence[Planned], gathered: Gathered, pace: Pace, began: float) -> None:
        arrivals = [planned.arrival for planned in load]
        window = self.batching.window if gathered.discipline is Discipline.DYNAMIC else None
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
