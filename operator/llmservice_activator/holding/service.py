"""One service: its target, its pods and which of them gets the next request, and the requests that wait for them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp
from llmservice_api.holding import LastUse
from llmservice_runtime.access import Keys, parse_keys

from llmservice_activator.holding.ledger import Bounds, Entry, Ledger
from llmservice_activator.holding.limits import Limits
from llmservice_activator.holding.target import Held, Refusal, Target
from llmservice_activator.holding.turns import Turns

HEALTH_PATH = "/health"
FAILURES = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
"""Of a connection to a pod."""
LONGEST_PAUSE = 16
"""Between checks of a pod that is ready and does not answer, by the first pause."""


@dataclass(eq=False, slots=True)
class _Pod:
    url: str
    answers: bool = False
    requests: int = 0
    """Of ours, at it."""
    check: asyncio.Task[None] | None = None


class Pods:
    """A pod whose endpoint is ready is used after it answered GET /health with 200 to this process: routes to a new
    address may lag behind its endpoint."""

    def __init__(
        self, session: aiohttp.ClientSession, changed: Callable[[], None], limits: Limits, at_once: asyncio.Semaphore
    ) -> None:
        """`at_once`: for checks of all pods of a namespace."""
        self._session, self._changed, self._limits, self._at_once = session, changed, limits, at_once
        self._pods: dict[str, _Pod] = {}

    @property
    def any_answers(self) -> bool:
        """Whether a request can be sent."""
        return any(pod.answers for pod in self._pods.values())

    def update(self, urls: Collection[str]) -> None:
        """Use these, after a check of those that are new."""
        for url in [url for url in self._pods if url not in urls]:
            self._end_check(self._pods.pop(url))
        for url in urls:
            if url not in self._pods:
                self._pods[url] = _Pod(url)
                self._start_check(self._pods[url])
        self._changed()

    @contextmanager
    def choose(self, refused: Collection[str]) -> Iterator[str | None]:
        """The base URL of the pod with the fewest requests of ours, except those; None where there is none."""
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

    def doubt(self, url: str) -> None:
        """A connection to it failed: it is used again after another check."""
        self._check_again(url, 0)

    def rest(self, url: str) -> None:
        """It ends, and refuses requests meanwhile: the same after a pause, since it passes checks."""
        self._check_again(url, self._limits.rest_seconds)

    def _check_again(self, url: str, pause: float) -> None:
        pod = self._pods.get(url)
        if pod is not None and pod.answers:
            pod.answers = False
            self._start_check(pod, pause)
            self._changed()

    async def close(self) -> None:
        """Use none."""
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
            self.keys = None if target.keys is None else parse_keys("\n".join(target.keys).encode())
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
