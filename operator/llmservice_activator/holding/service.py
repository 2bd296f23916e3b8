"""One service: its pods, which of them gets the next request, and its held requests, of which the next is chosen by
`Slots`, across services.

Round-robin over namespaces, then over their services; first in, first out within a service, so that many requests of
one service delay only its own. Responses may take minutes, so a namespace without a request at a pod may use one slot
beyond the total.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import aiohttp
from kubeloop.resources import Key
from llmservice_api.holding import LastUse
from llmservice_runtime.access import Keys, parse_keys

from llmservice_activator.holding.interface import HeldRequests, HoldingTarget, Refusal
from llmservice_activator.holding.limits import Entry, HoldingLimits, Ledger, Limits

W = TypeVar("W", bound=Hashable)


class SlotQueue(Generic[W]):
    """Slots of the process for requests at pods, and the requests that wait for one."""

    def __init__(self, slots: int, of_one_namespace: int) -> None:
        self._slots, self._of_one_namespace = slots, of_one_namespace
        self._used = 0
        self._at_pods: Counter[Key | str] = Counter()
        """By service and by namespace."""
        self._limits: dict[Key, int] = {}
        self._waiting: OrderedDict[str, OrderedDict[Key, OrderedDict[W, None]]] = OrderedDict()

    def limit(self, key: Key, at_once: int) -> None:
        """Set the requests of a service that may be at pods; 0, the default: none."""
        if at_once:
            self._limits[key] = at_once
        else:
            self._limits.pop(key, None)

    def enter(self, key: Key, waiter: W, *, first: bool = False) -> None:
        """Wait for a slot; `first`: before others of the service."""
        queue = self._waiting.setdefault(key.namespace, OrderedDict()).setdefault(key, OrderedDict())
        queue[waiter] = None
        if first:
            queue.move_to_end(waiter, last=False)

    def leave(self, key: Key, waiter: W) -> None:
        """Stop to wait; no effect on a request that does not."""
        services = self._waiting.get(key.namespace, OrderedDict())
        queue = services.get(key, OrderedDict())
        queue.pop(waiter, None)
        self._clean(key, queue)

    def next(self) -> W | None:
        """The next request; it has a slot until `done`."""
        for namespace, services in self._waiting.items():
            for key, queue in services.items():
                if self._may_go(key):
                    waiter, _ = queue.popitem(last=False)
                    self._waiting.move_to_end(namespace)
                    services.move_to_end(key)
                    self._clean(key, queue)
                    self._take(key)
                    return waiter
        return None

    def take(self, key: Key) -> bool:
        """Take a slot without waiting; False where none is free or others of the service wait."""
        if key in self._waiting.get(key.namespace, ()) or not self._may_go(key):
            return False
        self._take(key)
        return True

    def done(self, key: Key) -> None:
        self._used -= 1
        for each in (key, key.namespace):
            self._at_pods[each] -= 1
            if not self._at_pods[each]:
                del self._at_pods[each]

    def _take(self, key: Key) -> None:
        self._used += 1
        self._at_pods[key] += 1
        self._at_pods[key.namespace] += 1

    def _may_go(self, key: Key) -> bool:
        of_namespace = self._at_pods[key.namespace]
        return (
            (self._used < self._slots or not of_namespace)
            and of_namespace < self._of_one_namespace
            and self._at_pods[key] < self._limits.get(key, 0)
        )

    def _clean(self, key: Key, queue: OrderedDict[W, None]) -> None:
        services = self._waiting.get(key.namespace)
        if services is not None and not queue:
            services.pop(key, None)
            if not services:
                del self._waiting[key.namespace]


HEALTH_PATH = "/health"
FAILURES = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
"""Errors of connections to a pod."""
LONGEST_PAUSE = 16
"""Longest pause between checks of a ready pod that does not answer, in multiples of the first."""


@dataclass(eq=False, slots=True)
class _Pod:
    url: str
    answers: bool = False
    requests: int = 0
    """Requests of this process at the pod."""
    check: asyncio.Task[None] | None = None


class Pods:
    """The ready pods. A pod is used after it answered GET /health with 200 to this process: routes to a new address may
    lag behind its endpoint."""

    def __init__(
        self, session: aiohttp.ClientSession, changed: Callable[[], None], limits: Limits, at_once: asyncio.Semaphore
    ) -> None:
        """`at_once` limits the checks of all pods in a namespace."""
        self._session, self._changed, self._limits, self._at_once = session, changed, limits, at_once
        self._pods: dict[str, _Pod] = {}

    @property
    def any_answers(self) -> bool:
        """Whether a request can be sent."""
        return any(pod.answers for pod in self._pods.values())

    def update(self, urls: Collection[str]) -> None:
        """Set the ready pods; new ones are checked first."""
        for url in [url for url in self._pods if url not in urls]:
            self._end_check(self._pods.pop(url))
        for url in urls:
            if url not in self._pods:
                self._pods[url] = _Pod(url)
                self._start_check(self._pods[url])
        self._changed()

    @contextmanager
    def choose(self, refused: Collection[str]) -> Iterator[str | None]:
        """The base URL of the pod with the min_replicas requests of this process, except those refused; None if there
        is none."""
        usable = (pod for pod in self._pods.values() if pod.answers and pod.url not in refused)
        pod = min(usable, key=lambda pod: pod.requests, default=None)
        if pod is None:
            yield None
            return
        pod.requests += 1
        try:
            yield pod.url
        finally:
            pod.requests -= 1

    def mark_failed(self, url: str) -> None:
        """A connection failed: use the pod again after another check."""
        self._check_again(url, 0)

    def mark_draining(self, url: str) -> None:
        """The pod is draining and refuses requests: check it again after a pause, since it passes health checks."""
        self._check_again(url, self._limits.draining_check_seconds)

    def _check_again(self, url: str, pause: float) -> None:
        pod = self._pods.get(url)
        if pod is not None and pod.answers:
            pod.answers = False
            self._start_check(pod, pause)
            self._changed()

    async def close(self) -> None:
        checks = [pod.check for pod in self._pods.values() if pod.check is not None]
        for pod in self._pods.values():
            self._end_check(pod)
        self._pods.clear()
        await asyncio.gather(*checks, return_exceptions=True)

    def _start_check(self, pod: _Pod, pause: float = 0) -> None:
        pod.check = asyncio.create_task(self._check(pod, pause), name=f"health of {pod.url}")

    def _end_check(self, pod: _Pod) -> None:
        pod.answers = False
        if pod.check is not None:
            pod.check.cancel()

    async def _check(self, pod: _Pod, pause: float) -> None:
        await asyncio.sleep(pause)
        pause = self._limits.retry_health_seconds
        while not await self._is_healthy(pod.url):
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE * self._limits.retry_health_seconds)
        pod.answers, pod.check = True, None
        self._changed()

    async def _is_healthy(self, url: str) -> bool:
        timeout = aiohttp.ClientTimeout(total=self._limits.health_seconds)
        try:
            async with (
                self._at_once,
                self._session.get(url + HEALTH_PATH, timeout=timeout, allow_redirects=False) as response,
            ):
                return response.status == 200
        except FAILURES:
            return False


class Waiter:
    """A held request."""

    def __init__(self, service: Service, entry: Entry, arrived: float) -> None:
        self.service, self.entry, self.arrived = service, entry, arrived
        self.has_slot = False
        self.changed = asyncio.Event()
        """Set when it has a slot, or the service refuses."""

    def release(self) -> None:
        """Send it to a pod."""
        self.has_slot = True
        self.entry.release()
        self.service.waiting.pop(self, None)
        self.changed.set()


class Service:
    """State of one service uid. `release_waiting` is called when requests may be released."""

    def __init__(
        self,
        target: HoldingTarget,
        session: aiohttp.ClientSession,
        ledger: Ledger,
        slots: SlotQueue[Waiter],
        release_waiting: Callable[[], None],
        limits: Limits,
        checks: asyncio.Semaphore,
    ) -> None:
        self.target, self.key, self.uid = target, target.key, target.uid
        self.keys: Keys | None = None
        self.listener: asyncio.Server | None = None
        self.port = 0
        """The port it listens on; 0: none."""
        self.last_connection = 0.0
        """Time of the last connection, by the event loop's clock; 0: none came."""
        self.last_held: LastUse | None = None
        """The last request that was held."""
        self.waiting: dict[Waiter, None] = {}
        self._ledger, self._slots, self._release_waiting = ledger, slots, release_waiting
        self.pods = Pods(session, self._limit, limits, checks)

    def update(self, target: HoldingTarget) -> None:
        """Take over everything but the port."""
        if self.keys is None or target.keys != self.target.keys:
            self.keys = None if target.keys is None else parse_keys("\n".join(target.keys).encode())
        self.target = target
        self._ledger.bound(self.key, HoldingLimits(target.max_requests, target.max_bytes))
        self.pods.update(target.pods)
        if target.refusal is not None:
            for waiter in self.waiting:
                waiter.changed.set()

    async def close(self, refusal: Refusal) -> None:
        """Answer held requests, and those that still arrive, with this."""
        self.close_listener()
        self._ledger.forget(self.key)
        await self.pods.close()
        self._slots.limit(self.key, 0)
        self.target = dataclasses.replace(self.target, refusal=refusal)
        for waiter in self.waiting:
            waiter.changed.set()

    def close_listener(self) -> None:
        """Accept no more connections."""
        if self.listener is not None:
            self.listener.close()
        self.listener, self.port = None, 0

    def held(self) -> HeldRequests:
        """Complete requests that wait."""
        if not self.waiting:
            return HeldRequests()
        size = sum(waiter.entry.bytes for waiter in self.waiting)
        return HeldRequests(len(self.waiting), size, min(waiter.arrived for waiter in self.waiting))

    def _limit(self) -> None:
        is_open = self.pods.any_answers and self.target.refusal is None
        self._slots.limit(self.key, self.target.at_once if is_open else 0)
        self._release_waiting()
