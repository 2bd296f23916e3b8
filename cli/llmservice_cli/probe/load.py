"""Constant load: when the next request is sent, whatever became of the ones before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .row import Mode, Row, in_turn
from .sender import Sender

Record = Callable[[Row], None]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Either `rate` (requests a second, sent on time even when answers are slow) or `concurrency` is given."""

    duration: float  # seconds in which requests are sent
    modes: Sequence[Mode]
    output_tokens: Sequence[int]
    rate: float | None
    concurrency: int | None


@dataclass
class Load:
    """One load. `stop` ends the sending; what is under way is still awaited."""

    options: LoadOptions
    sender: Sender
    clock: Callable[[], float]
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _next: int = 0

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped.set()

    async def run(self, record: Record) -> None:
        """Until the last request has ended; each is recorded when it ends."""
        began = self.clock()
        async with asyncio.TaskGroup() as group:
            if self.options.concurrency is not None:
                for _ in range(self.options.concurrency):
                    group.create_task(self._one_after_another(began, record))
            else:
                assert self.options.rate is not None
                await self._on_time(began, self.options.rate, group, record)

    async def _on_time(self, began: float, rate: float, group: asyncio.TaskGroup, record: Record) -> None:
        for number in range(round(rate * self.options.duration)):
            if await self._stopped_before(began + number / rate):
                return
            group.create_task(self._send(record))

    async def _one_after_another(self, began: float, record: Record) -> None:
        while self.clock() < began + self.options.duration and not self._stopped.is_set():
            await self._send(record)
            # A server that refuses at once is not flooded.
            await self._stopped_before(self.clock() + 0.01)

    async def _send(self, record: Record) -> None:
        index, self._next = self._next, self._next + 1
        mode, tokens = in_turn(self.options.modes, self.options.output_tokens, index)
        record(await self.sender.send(index, mode, tokens))

    async def _stopped_before(self, moment: float) -> bool:
        try:
            await asyncio.wait_for(self._stopped.wait(), max(moment - self.clock(), 0))
        except TimeoutError:
            return False
        return True
