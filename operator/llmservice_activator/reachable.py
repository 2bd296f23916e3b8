"""Whether requests to a service's ClusterIP come to an activator: asked through it, as clients do."""

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

KEPT = 2.0
"""Seconds that a result holds."""
ATTEMPTS, AT_ONCE = 8, 4
"""Connections: one of several may go to a pod that serves still."""
PATIENCE = 0.7
"""Seconds of each."""
LARGEST = 1024
SERVICES = 4096
"""Results that are kept."""
CONNECTIONS = 64
"""At once, over all services."""


def url_of(key: Key, port: int) -> str:
    """Where clients in the cluster reach a service."""
    return f"http://{key.name}.{key.namespace}.svc:{port}"


class Reachability:
    """Asks over connections of its own; use it as a context manager."""

    def __init__(self, url: Callable[[Key, int], str] = url_of, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._clock = url, clock
        self._session: aiohttp.ClientSession | None = None
        self._known: dict[tuple[Key, str, int], tuple[float, asyncio.Task[bool]]] = {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # Names are looked up each time: a Service may be made anew.
            connector=aiohttp.TCPConnector(force_close=True, limit=CONNECTIONS, use_dns_cache=False),
            timeout=aiohttp.ClientTimeout(total=PATIENCE),
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
        """Whether an activator's listener for this very service answers behind the Service's port."""
        known, now = self._known.get((key, uid, port)), self._clock()
        if known is None or now - known[0] >= KEPT:
            self._known = {each: found for each, found in self._known.items() if now - found[0] < KEPT}
            if len(self._known) >= SERVICES:
                return False
            known = self._known[key, uid, port] = now, asyncio.create_task(self._ask(self._url(key, port), uid))
        return await asyncio.shield(known[1])

    async def _ask(self, url: str, uid: str) -> bool:
        for _ in range(ATTEMPTS // AT_ONCE):
            if any(await asyncio.gather(*(self._is_ours(url, uid) for _ in range(AT_ONCE)))):
                return True
        return False

    async def _is_ours(self, url: str, uid: str) -> bool:
        if self._session is None:
            raise RuntimeError("it is not open: use `async with`")
        try:
            async with self._session.get(url + ACTIVATOR_PATH, allow_redirects=False) as response:
                return response.status == 200 and uid_of(await response.content.read(LARGEST)) == uid
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError):
            return False


def uid_of(body: bytes) -> str | None:
    """Of what a listener answers at ACTIVATOR_PATH; None where it is something else."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        return None
    uid = answer.get("uid") if isinstance(answer, dict) else None
    return uid if isinstance(uid, str) else None
