"""Listeners of all services that may be at zero."""

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
from llmservice_activator.holding.interface import Admits, HeldRequests, HoldingTarget, Refusal, Renews, RequestMetrics
from llmservice_activator.holding.ledger import Ledger
from llmservice_activator.holding.limits import Limits
from llmservice_activator.holding.service import Service, Waiter
from llmservice_activator.holding.slots import SlotQueue

logger = logging.getLogger(__name__)

GONE = Refusal(503, "Deleted", "The LLMService does not exist any longer, or it always has a replica now. Try again.")
STOPPING = Refusal(503, "Stopping", "The process that holds requests ends. Try again.")
CUT_SECONDS = 2.0
"""In which held requests are answered after `stop` is cancelled."""


class HoldingServer:
    """Answers, holds and forwards requests. Call start, then update; stop at the end.

    `wake` is called when a request starts to wait, and every `wake_seconds` while one of its service waits; it must not
    block. `held_by_others` returns the requests of a service that other activators hold; they count towards its limit.
    """

    def __init__(
        self,
        *,
        wake: Callable[[Key], None],
        count: RequestMetrics,
        held_by_others: Callable[[Key], Awaitable[int]],
        admits: Admits,
        renews: Renews,
        limits: Limits | None = None,
        host: str = "",
    ) -> None:
        self._wake, self._count, self._limits, self._host = wake, count, limits or Limits(), host
        self._held_by_others = held_by_others
        self._admits, self._renews = admits, renews
        self._services: dict[Key, Service] = {}
        self._ledger = Ledger(self._limits.held_bytes)
        self._checks: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By namespace, while it has a service."""
        self._slots: SlotQueue[Waiter] = SlotQueue(self._limits.slots, self._limits.slots_of_one_namespace)
        self._change = asyncio.Lock()
        self._requests = 0
        self._no_requests = asyncio.Event()
        self._no_requests.set()
        self._shared: Shared | None = None
        self._connections: Connections | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopping = False

    async def start(self) -> None:
        """Call before the first update."""
        session = forward.new_session(self._limits)
        self._shared = Shared(
            session,
            self._ledger,
            self._slots,
            self._wake,
            self._held_by_others,
            self._release_waiting,
            self._count,
            self._limits,
            self._admits,
            self._renews,
        )
        self._connections = Connections(self._handle, self._limits)
        self._wake_again()

    async def update(self, target: HoldingTarget) -> None:
        """Add or change a service. OSError where its port cannot be opened: all else is applied, and the next update
        retries."""
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
                service = Service(
                    target, shared.session, self._ledger, self._slots, self._release_waiting, self._limits, checks
                )
                self._services[target.key] = service
            service.update(target)
            await self._listen(service, target.port)

    async def remove(self, key: Key) -> None:
        """Answer the held requests and close the port. Requests at pods are finished."""
        async with self._change:
            await self._remove(key)

    async def stop(self) -> None:
        """Accept no more connections; return when no request is in progress. If cancelled, held requests get 503 and
        the others end."""
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

    def held(self, key: Key) -> HeldRequests:
        service = self._services.get(key)
        return HeldRequests() if service is None else service.held()

    def all_held(self) -> Mapping[Key, HeldRequests]:
        return {key: service.held() for key, service in self._services.items() if service.waiting}

    def last_held(self) -> Mapping[Key, LastUse]:
        return {key: found for key, service in self._services.items() if (found := service.last_held) is not None}

    def in_progress(self) -> int:
        """Requests that are received, held, forwarded or answered."""
        return self._requests

    def last_connection(self, key: Key | None = None) -> float:
        """Time of the last connection to a service, or to any, by the event loop's clock; 0: none came."""
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

    def _release_waiting(self) -> None:
        while (waiter := self._slots.next()) is not None:
            waiter.release()

    def _wake_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._limits.wake_seconds, self._wake_again)
        for key in self.all_held():
            self._wake(key)
