"""Whether requests to a service's ClusterIP reach an activator: tested by connections to it, as clients make them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import aiohttp
import orjson
from kubeloop.resources import Key
from llmservice_runtime.contract import ACTIVATOR_PATH

CACHE_SECONDS = 2.0
"""Seconds that a result is cached."""
ATTEMPTS, CONCURRENT_ATTEMPTS = 8, 4
"""Connections per test: one of several may go to a pod that still serves."""
ATTEMPT_SECONDS = 0.7
"""Seconds for each connection."""
MAX_BYTES = 1024
MAX_CACHED = 4096
"""Cached results."""
MAX_CONNECTIONS = 64
"""Concurrent connections over all services."""


def url_of(key: Key, port: int) -> str:
    return f"http://{key.name}.{key.namespace}.svc:{port}"


class Reachability:
    """Tests over its own connections; an asynchronous context manager."""

    def __init__(self, url: Callable[[Key, int], str] = url_of, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._clock = url, clock
        self._session: aiohttp.ClientSession | None = None
        self._known: dict[tuple[Key, str, int], tuple[float, asyncio.Task[bool]]] = {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # Names are resolved each time: a Service may be recreated.
            connector=aiohttp.TCPConnector(force_close=True, limit=MAX_CONNECTIONS, use_dns_cache=False),
            timeout=aiohttp.ClientTimeout(total=ATTEMPT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, task in self._known.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._known.values()), return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def is_reached(self, key: Key, uid: str, port: int) -> bool:
        """Whether an activator's listener for this uid answers behind the Service's port."""
        known, now = self._known.get((key, uid, port)), self._clock()
        if known is None or now - known[0] >= CACHE_SECONDS:
            self._known = {each: found for each, found in self._known.items() if now - found[0] < CACHE_SECONDS}
            if len(self._known) >= MAX_CACHED:
                return False
            known = self._known[key, uid, port] = now, asyncio.create_task(self._ask(self._url(key, port), uid))
        return await asyncio.shield(known[1])

    async def _ask(self, url: str, uid: str) -> bool:
        for _ in range(ATTEMPTS // CONCURRENT_ATTEMPTS):
            if any(await asyncio.gather(*(self._has_uid(url, uid) for _ in range(CONCURRENT_ATTEMPTS)))):
                return True
        return False

    async def _has_uid(self, url: str, uid: str) -> bool:
        if self._session is None:
            raise RuntimeError("it is not open: use `async with`")
        try:
            async with self._session.get(url + ACTIVATOR_PATH, allow_redirects=False) as response:
                return response.status == 200 and uid_of(await response.content.read(MAX_BYTES)) == uid
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError):
            return False


def uid_of(body: bytes) -> str | None:
    """The uid in a listener's response at ACTIVATOR_PATH; None for other responses."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        return None
    uid = answer.get("uid") if isinstance(answer, dict) else None
    return uid if isinstance(uid, str) else None
