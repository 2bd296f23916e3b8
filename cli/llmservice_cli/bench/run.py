"""Plays a load by one discipline and gathers a row for every request that was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from .load import Planned
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
    """Sends the requests of one load; time is an argument."""

    completions: Completions
    batching: Batching
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]

    async def play(self, load: Sequence[Planned], gathered: Gathered) -> None:
        """Until the last one has ended."""
        began = self.clock()
        if gathered.discipline is Discipline.CONTINUOUS:
            await self._continuous(load, gathered, began)
        else:
            await self._in_batches(load, gathered, began)

    async def _continuous(self, load: Sequence[Planned], gathered: Gathered, began: float) -> None:
        async with asyncio.TaskGroup() as group:
            for planned in load:
                await self._until(began + planned.arrival)
                group.create_task(self._send(planned, gathered, began, None))

    async def _in_batches(self, load: Sequence[Planned], gathered: Gathered, began: float) -> None:
        arrivals = [planned.arrival for planned in load]
        window = self.batching.window if gathered.discipline is Discipline.DYNAMIC else None
        first = number = 0
        while first < len(load):
            batch = next_batch(arrivals, first, self.clock() - began, self.batching.size, window)
            await self._until(began + batch.start)
            async with asyncio.TaskGroup() as group:  # ends with its longest member
                for planned in load[batch.first : batch.end]:
                    group.create_task(self._send(planned, gathered, began, number))
            first, number = batch.end, number + 1

    async def _send(self, planned: Planned, gathered: Gathered, began: float, batch: int | None) -> None:
        gathered.sent += 1
        await self.completions.send(planned, began=began, batch=batch, record=gathered.rows.append)

    async def _until(self, moment: float) -> None:
        if (pause := moment - self.clock()) > 0:
            await self.sleep(pause)
