"""Something that is fetched once for all who want it, beside everything else that the event loop does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from .errors import KubeError

logger = logging.getLogger(__name__)

AFTER_FAILURE = 5.0
"""Seconds after a failure in which nothing is fetched again, and whoever waits gets the same failure."""


class SingleFlight:
    """Runs `fetch`, at most one at a time."""

    def __init__(self, fetch: Callable[[], Awaitable[None]]) -> None:
        self._fetch = fetch
        self._task: asyncio.Task[None] | None = None
        self._failed_at = float("-inf")
        self._failure: KubeError | None = None

    async def wait(self) -> None:
        """Until it has been fetched; KubeError where it cannot be."""
        self.start()
        if self._task is not None:
            await asyncio.shield(asyncio.wait({self._task}))
        if self._failure is not None:
            raise self._failure

    def start(self) -> None:
        """Begin, unless somebody did or it failed a moment ago."""
        is_free = self._task is None or self._task.done()
        if is_free and asyncio.get_running_loop().time() - self._failed_at >= AFTER_FAILURE:
            self._task = asyncio.create_task(self._run(), name="refresh of credentials")

    async def _run(self) -> None:
        try:
            await self._fetch()
            self._failure = None
        except KubeError as error:
            self._failure, self._failed_at = error, asyncio.get_running_loop().time()
            logger.warning("%s", error)
