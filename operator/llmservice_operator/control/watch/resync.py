"""Finds LLMServices whose events kopf did not bring: a list of metadata, in pages, compared with the cache in memory.

A watch that lost its place lists again, and objects that vanished meanwhile send no event (kopf 1.45 keeps no list to
compare with). So after such a relist, and every ten minutes whatever happens, one list is compared with the cache.
Nothing is asked about single objects. The same comparison tells at the start when the cache is complete. Each namespace
has its own, so that one which cannot be listed holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from llmservice_operator.control.containment.internal_errors import InternalErrors, Part
from llmservice_operator.control.watch.cache import Seen, newer
from llmservice_operator.control.watch.ingest import Intake
from llmservice_operator.control.watch.kinds import PARENT
from llmservice_operator.control.watch.sync_state import SyncState
from llmservice_operator.kube.client import KubeClient
from llmservice_operator.kube.errors import Gone, KubeError
from llmservice_operator.kube.resources import LLMSERVICE

logger = logging.getLogger(__name__)

INTERVAL = 600.0
AFTER_RELIST = 3.0
"""A relist sends its objects one by one; compare when they have come in."""
AFTER_FAILURE = 30.0
"""Seconds after which a comparison that failed is made again."""
GRACE = 5.0
"""How long a watch may lag behind a list before the list is believed."""

CURRENT = 5.0
"""Seconds for which a watch that brought something is taken to have brought all that there was before."""

Listed = dict[tuple[str, str], Seen]


class Difference(NamedTuple):
    """What a list says against the cache."""

    vanished: dict[tuple[str, str], Seen]
    missed: frozenset[tuple[str, str]]
    """Not in the cache, or older there."""


def compare(cached: Listed, listed: Listed, list_version: str) -> Difference:
    """Pure: objects that came after the list was made are no difference."""
    vanished = {
        where: seen
        for where, seen in cached.items()
        if (where not in listed or listed[where].uid != seen.uid) and not newer(seen.resource_version, list_version)
    }
    missed = frozenset(
        where
        for where, seen in listed.items()
        if where not in cached
        or cached[where].uid != seen.uid
        or newer(seen.resource_version, cached[where].resource_version)
    )
    return Difference(vanished, missed)


class Resync:
    """Runs `check` for one namespace, or (None) all together: now and then, and on demand."""

    def __init__(
        self,
        kube: KubeClient,
        intake: Intake,
        namespace: str | None,
        sync: SyncState,
        *,
        interval: float = INTERVAL,
        errors: InternalErrors | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._intake, self._cache = intake, intake.cache
        self._errors = errors or InternalErrors()
        self._namespace, self._sync = namespace, sync
        self._interval = interval
        self._sleep, self._clock = sleep, clock
        self._heard_at = float("-inf")
        self._wake = asyncio.Event()
        self._arrived = asyncio.Event()
        self._is_complete = False

    def arrived(self) -> None:
        """The watch brought something."""
        self._heard_at = self._clock()
        self._arrived.set()

    def is_current(self) -> bool:
        """Whether the watch brought something a moment ago: in their order, so that nothing older is to come."""
        return self._clock() - self._heard_at < CURRENT

    def relisted(self) -> None:
        """The watch listed: at the start, or since because it lost its place."""
        if self._is_complete:
            self._wake.set()

    async def run(self) -> None:
        """Wait for the cache to be complete, then compare for ever."""
        await self._wait_until_complete()
        self._is_complete = True
        self._sync.synced(self._namespace, LLMSERVICE.full_name)
        wait = self._interval
        while True:
            await self._due(wait)
            with self._errors.contained(Part.RESYNC):
                wait = await self._try()

    async def _try(self) -> float:
        """Seconds until the next comparison."""
        try:
            await self.check()
        except KubeError as error:
            self._sync.failed(self._namespace, LLMSERVICE.full_name, error)
            return min(self._interval, AFTER_FAILURE)
        self._sync.synced(self._namespace, LLMSERVICE.full_name)
        return self._interval

    async def _wait_until_complete(self) -> None:
        """Until everything that one list shows is in the cache; a new list when that takes long."""
        while True:
            try:
                listed, version = await self._list()
            except KubeError as error:
                self._sync.failed(self._namespace, LLMSERVICE.full_name, error)
                await self._sleep(GRACE)
                continue
            missing = self._missed(listed, version)
            with contextlib.suppress(TimeoutError):
                # One after the other: comparing all at each arrival would grow with the square of their number.
                while missing:
                    if self._has(missing[-1], listed[missing[-1]]):
                        missing.pop()
                        continue
                    self._arrived.clear()
                    async with asyncio.timeout(GRACE):
                        await self._arrived.wait()
                return

    def _has(self, where: tuple[str, str], listed: Seen) -> bool:
        """Whether this very object came in, as it was in the list or later; one that cannot be read stays out of the
        cache, and is waited for by nobody."""
        known = self._cache.get(PARENT, *where)
        is_known = (
            known is not None and known.uid == listed.uid and not newer(listed.resource_version, known.resource_version)
        )
        return is_known or self._intake.is_unreadable(LLMSERVICE, where, listed)

    def _missed(self, listed: Listed, version: str) -> list[tuple[str, str]]:
        missed = compare(self._cache.seen(PARENT, self._namespace), listed, version).missed
        return [where for where in missed if not self._intake.is_unreadable(LLMSERVICE, where, listed[where])]

    async def _due(self, wait: float) -> None:
        """When so many seconds are over, or the watch listed again and what it listed has come in."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._wake.wait()
            await self._sleep(AFTER_RELIST)
            self._wake.clear()

    async def check(self) -> None:
        """Compare once."""
        listed, version = await self._list()
        for where, name in compare(self._cache.seen(PARENT, self._namespace), listed, version).vanished:
            logger.info("LLMService %s/%s vanished while nobody watched", where, name)
        self._intake.listed(LLMSERVICE, self._namespace, {where: seen.uid for where, seen in listed.items()}, version)
        if self._missed(listed, version):
            await self._catch_up(listed, version)

    async def _catch_up(self, listed: Listed, version: str) -> None:
        """Give the watch its time; what it still has not shown then is taken from a full list."""
        await self._sleep(GRACE)
        if not self._missed(listed, version):
            return
        logger.warning("the watch of LLMServices lags behind the cluster: reading all of them")
        async for page in self._kube.list_pages(LLMSERVICE, self._namespace):
            for item in page.get("items") or ():
                # Items of a list carry neither.
                self._intake.seen(LLMSERVICE, {"apiVersion": LLMSERVICE.api_version, "kind": LLMSERVICE.kind, **item})

    async def _list(self) -> tuple[Listed, str]:
        try:
            return await self._list_once()
        except Gone:  # the continue token grew too old between two pages
            return await self._list_once()

    async def _list_once(self) -> tuple[Listed, str]:
        listed: Listed = {}
        version = ""
        async for page in self._kube.list_pages(LLMSERVICE, self._namespace, metadata_only=True):
            version = version or page["metadata"]["resourceVersion"]
            for item in page.get("items") or ():
                metadata = item["metadata"]
                listed[metadata["namespace"], metadata["name"]] = Seen(metadata["uid"], metadata["resourceVersion"])
        return listed, version
