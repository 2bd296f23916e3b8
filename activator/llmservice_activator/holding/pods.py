"""Which pods of a service answer this process, and which of them gets the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp

from llmservice_activator.holding.limits import Limits

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
