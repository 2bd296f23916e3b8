"""When requests are sent: at given moments, or each when the one before has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

Send = Callable[[int], Coroutine[Any, Any, None]]
"""Sends the request of this number, from 0 on, and returns when it has ended."""
PAUSE_SECONDS = 0.01
"""Between two requests of one client, so that a server that refuses at once is not flooded."""


@dataclass
class Pace:
    """Moments are by `clock`, in seconds. `stop` ends the sending; what is under way is still awaited."""

    clock: Callable[[], float]
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        self._stopped.set()

    async def at(self, moments: Iterable[float], send: Send) -> None:
        """One request at each moment, also while earlier ones go on, until the last has ended."""
        async with asyncio.TaskGroup() as group:
            for number, moment in enumerate(moments):
                if await self._is_stopped_before(moment):
                    return
                group.create_task(send(number))

    async def in_turn(self, clients: int, end: float, send: Send) -> None:
        """So many clients, each of which sends when its request before has ended, until the moment `end`."""
        numbers = count()

        async def one_after_another() -> None:
            while self.clock() < end and not self._stopped.is_set():
                await send(next(numbers))
                await self._is_stopped_before(self.clock() + PAUSE_SECONDS)

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(one_after_another())

    async def _is_stopped_before(self, moment: float) -> bool:
        try:
            await asyncio.wait_for(self._stopped.wait(), max(moment - self.clock(), 0))
        except TimeoutError:
            return False
        return True
