"""The listeners of all services that may be at zero."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from weakref import WeakValueDictionary

from aiohttp import web
from kubeloop import log
from kubeloop.resources import Key
from llmservice_api.holding import LastUse

from llmservice_activator.holding import forward
from llmservice_activator.holding.connections import Connections
from llmservice_activator.holding.exchange import Exchange, Shared
from llmservice_activator.holding.ledger import Ledger
from llmservice_activator.holding.limits import Limits
from llmservice_activator.holding.service import Service, Waiter
from llmservice_activator.holding.target import Admits, Count, Held, Refusal, Renews, Target
from llmservice_activator.holding.turns import Turns

logger = logging.getLogger(__name__)

GONE = Refusal(503, "Deleted", "The LLMService does not exist any longer, or it always has a replica now. Try again.")
STOPPING = Refusal(503, "Stopping", "The process that holds requests ends. Try again.")
CUT_SECONDS = 2.0
"""For answers to what is still held when `stop` is cancelled."""


class HoldingServer:
    """Answers, holds and forwards requests. `wake` is called at each request that begins to be held, and every
    `wake_seconds` while any of its service is held; it must not block. `elsewhere` says how many requests of a service
    other activators hold; they count towards its bound. Use start, then update; stop at the end."""

    def __init__(
        self,
        *,
        wake: Callable[[Key], None],
        count: Count,
        elsewhere: Callable[[Key], Awaitable[int]],
        admits: Admits,
        renews: Renews,
        limits: Limits | None = None,
        host: str = "",
    ) -> None:
        self._wake, self._count, self._limits, self._host = wake, count, limits or Limits(), host
        self._elsewhere = elsewhere
        self._admits, self._renews = admits, renews
        self._services: dict[Key, Service] = {}
        self._ledger = Ledger(self._limits.held_bytes)
        self._checks: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By namespace: for as long as one of its services has it."""
        self._turns: Turns[Waiter] = Turns(self._limits.slots, self._limits.slots_of_one_namespace)
        self._change = asyncio.Lock()
        self._requests = 0
        self._no_requests = asyncio.Event()
        self._no_requests.set()
        self._shared: Shared | None = None
        self._connections: Connections | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopping = False

    async def start(self) -> None:
        """Before the first update."""
        session = forward.new_session(self._limits)
        self._shared = Shared(
            session,
            self._ledger,
            self._turns,
            self._wake,
            self._elsewhere,
            self._pump,
            self._count,
            self._limits,
            self._admits,
            self._renews,
        )
        self._connections = Connections(self._handle, self._limits)
        self._wake_again()

    async def update(self, target: Target) -> None:
        """Take over a service or what changed of it. OSError where its port cannot be had: everything else holds, and
        the next update tries again."""
        async with self._change:
            shared = self._started()
            service = self._services.get(target.key)
            if service is not None and service.uid != target.uid:
                await self._remove(target.key)
                service = None
            if service is None:
                checks = self._checks.setdefault(
                    target.key.namespace, asyncio.Semaphore(self._limits.checks_of_one_namespace)
                )
                service = Service(target, shared.session, self._ledger, self._turns, self._pump, self._limits, checks)
                self._services[target.key] = service
            service.update(target)
            await self._listen(service, target.port)

    async def remove(self, key: Key) -> None:
        """Answer what is held and close the port. Requests at pods are finished."""
        async with self._change:
            await self._remove(key)

    async def stop(self) -> None:
        """Accept no more connections, and return when no request is in progress. Where it is cancelled, held requests
        get 503 and the others end."""
        async with self._change:
            self._is_stopping = True
            for service in self._services.values():
                service.close_listener()
        try:
            await self._no_requests.wait()
        finally:
            for key in list(self._services):
                await self._remove(key, STOPPING)
            if self._timer is not None:
                self._timer.cancel()
            if self._connections is not None:
                await self._connections.shutdown(CUT_SECONDS)
            if self._shared is not None:
                await self._shared.session.close()

    def held(self, key: Key) -> Held:
        """What is held of a service."""
        service = self._services.get(key)
        return Held() if service is None else service.held()

    def all_held(self) -> Mapping[Key, Held]:
        """Of the services that hold something."""
        return {key: service.held() for key, service in self._services.items() if service.waiting}

    def last_held(self) -> Mapping[Key, LastUse]:
        """The last request that began to be held, of the services that had one."""
        return {key: found for key, service in self._services.items() if (found := service.last_held) is not None}

    def in_progress(self) -> int:
        """Requests that are received, held, forwarded or answered."""
        return self._requests

    def last_connection(self, key: Key | None = None) -> float:
        """When the last connection to a service came, or to any, by the loop's time; 0: none did."""
        if key is not None:
            return self._services[key].last_connection if key in self._services else 0
        return self._connections.last if self._connections is not None else 0

    def is_listening(self, uid: str, port: int) -> bool:
        """Whether connections to this port are accepted for this uid."""
        return any(service.uid == uid and service.port == port for service in self._services.values()) and bool(port)

    def _started(self) -> Shared:
        if self._shared is None:
            raise RuntimeError("start it first")
        return self._shared

    async def _listen(self, service: Service, port: int) -> None:
        if service.port == port or self._is_stopping:
            return
        service.close_listener()
        assert self._connections is not None
        service.listener = await self._connections.listen(service, self._host, port)
        service.port = port
        logger.info("holding at port %d", port, extra={log.KEY: service.key})

    async def _remove(self, key: Key, refusal: Refusal = GONE) -> None:
        service = self._services.pop(key, None)
        if service is not None:
            await service.close(refusal)

    async def _handle(self, service: Service, request: web.BaseRequest) -> web.StreamResponse:
        self._requests += 1
        self._no_requests.clear()
        try:
            return await Exchange(self._started(), service, request).run()
        finally:
            self._requests -= 1
            if not self._requests:
                self._no_requests.set()

    def _pump(self) -> None:
        while (waiter := self._turns.next()) is not None:
            waiter.release()

    def _wake_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._limits.wake_seconds, self._wake_again)
        for key in self.all_held():
            self._wake(key)
