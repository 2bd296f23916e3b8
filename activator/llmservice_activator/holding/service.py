"""One service: its target, its pods, and the requests that wait for them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import aiohttp
from llmservice_operator.api.holding import LastUse
from llmservice_runtime import access
from llmservice_runtime.access import Keys

from llmservice_activator.holding.ledger import Bounds, Entry, Ledger
from llmservice_activator.holding.limits import Limits
from llmservice_activator.holding.pods import Pods
from llmservice_activator.holding.target import Held, Refusal, Target
from llmservice_activator.holding.turns import Turns


class Waiter:
    """One request that is held."""

    def __init__(self, service: Service, entry: Entry, arrived: float) -> None:
        self.service, self.entry, self.arrived = service, entry, arrived
        self.has_slot = False
        self.changed = asyncio.Event()
        """It has a slot, or the service refuses."""

    def release(self) -> None:
        """It is sent to a pod."""
        self.has_slot = True
        self.entry.release()
        self.service.waiting.pop(self, None)
        self.changed.set()


class Service:
    """State of one uid; `settled` is called when requests may be released."""

    def __init__(
        self,
        target: Target,
        session: aiohttp.ClientSession,
        ledger: Ledger,
        turns: Turns[Waiter],
        settled: Callable[[], None],
        limits: Limits,
        checks: asyncio.Semaphore,
    ) -> None:
        self.target, self.key, self.uid = target, target.key, target.uid
        self.keys: Keys | None = None
        self.listener: asyncio.Server | None = None
        self.port = 0
        """At which it is listened; 0: none."""
        self.last_connection = 0.0
        """When the last one came, by the loop's time; 0: none did."""
        self.last_held: LastUse | None = None
        """The last request that began to be held."""
        self.waiting: dict[Waiter, None] = {}
        self._ledger, self._turns, self._settled = ledger, turns, settled
        self.pods = Pods(session, self._limit, limits, checks)

    def update(self, target: Target) -> None:
        """All but the port."""
        if self.keys is None or target.keys != self.target.keys:
            self.keys = None if target.keys is None else access.parse_keys("\n".join(target.keys).encode())
        self.target = target
        self._ledger.bound(self.key, Bounds(target.max_requests, target.max_bytes))
        self.pods.update(target.pods)
        if target.refusal is not None:
            for waiter in self.waiting:
                waiter.changed.set()

    async def close(self, refusal: Refusal) -> None:
        """Answer what is held, and what still comes over its connections, with this."""
        self.close_listener()
        self._ledger.forget(self.key)
        await self.pods.close()
        self._turns.limit(self.key, 0)
        self.target = dataclasses.replace(self.target, refusal=refusal)
        for waiter in self.waiting:
            waiter.changed.set()

    def close_listener(self) -> None:
        """Accept no more connections."""
        if self.listener is not None:
            self.listener.close()
        self.listener, self.port = None, 0

    def held(self) -> Held:
        """Complete requests that wait."""
        if not self.waiting:
            return Held()
        size = sum(waiter.entry.bytes for waiter in self.waiting)
        return Held(len(self.waiting), size, min(waiter.arrived for waiter in self.waiting))

    def _limit(self) -> None:
        is_open = self.pods.any_answers and self.target.refusal is None
        self._turns.limit(self.key, self.target.at_once if is_open else 0)
        self._settled()
