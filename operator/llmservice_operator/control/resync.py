"""Finds what the watches missed: lists of metadata, in pages, compared with the cache in memory.

A watch that lost its place lists again, and objects that vanished meanwhile send no event (kopf 1.45 keeps no list to
compare with). So after such a relist, and every ten minutes whatever happens, one list a kind is compared with the
cache. Nothing is asked about single objects. The same comparison tells at the start when the cache is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from llmservice_operator.api.service import Key
from llmservice_operator.control.cache import Cache, Seen, newer
from llmservice_operator.control.kinds import WATCHED, is_ours, selector
from llmservice_operator.kube.client import KubeClient
from llmservice_operator.kube.errors import Forbidden, Gone, KubeError
from llmservice_operator.kube.resources import ENDPOINT_SLICE, JOB, Resource

logger = logging.getLogger(__name__)

INTERVAL = 600.0
AFTER_RELIST = 3.0
"""A relist sends its objects one by one; compare when they have come in."""
GRACE = 5.0
"""How long a watch may lag behind a list before the list is believed."""

DISPENSABLE = (JOB, ENDPOINT_SLICE)
"""Without these services run all the same: their models are not looked at before, and a ready pod counts as reached."""

TRIES = 3

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
    """Runs `check` for each kind, in turn and on demand."""

    def __init__(
        self,
        kube: KubeClient,
        cache: Cache,
        enqueue: Callable[[Key], None],
        namespaces: Iterable[str | None],
        *,
        interval: float = INTERVAL,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._enqueue = enqueue
        self._namespaces = tuple(namespaces)
        self._interval = interval
        self._sleep = sleep
        self._asked: set[str] = set()
        self._wake = asyncio.Event()
        self._arrived = asyncio.Event()
        self.warm = asyncio.Event()
        """Set as soon as the cache holds everything that there was at the start."""
        self.hidden: set[str] = set()
        """Kinds that the operator has no right to list, as far as it can do without: until it is started again, since
        their watches ended too."""

    def arrived(self) -> None:
        """The watches brought something."""
        self._arrived.set()

    def relisted(self, kind: str) -> None:
        """A watch of this kind listed: at the start, or since because it lost its place."""
        if self.warm.is_set():
            self._asked.add(kind)
            self._wake.set()

    async def run(self) -> None:
        """Wait for the cache to be complete, then compare for ever."""
        for resource in WATCHED:
            for namespace in self._namespaces:
                await self._wait_for(resource, namespace)
        self.warm.set()
        while True:
            kinds = await self._due()
            for resource in WATCHED:
                if resource.kind in kinds and resource.kind not in self.hidden:
                    await self._check_all(resource)

    async def _wait_for(self, resource: Resource, namespace: str | None) -> None:
        """Until everything that one list shows is in the cache; a new list when that takes long."""
        tries = 0
        while resource.kind not in self.hidden:
            tries += 1
            try:
                listed, version = await self._list(resource, namespace)
            except KubeError as error:
                # An API server that starts may refuse for some seconds what it grants later.
                if isinstance(error, Forbidden) and resource in DISPENSABLE and tries >= TRIES:
                    self._do_without(resource, error)
                    return
                logger.warning("cannot list %s: %s", resource.plural, error)
                await self._sleep(GRACE)
                continue
            with contextlib.suppress(TimeoutError):
                while compare(self._cache.seen(resource.kind, namespace), listed, version).missed:
                    self._arrived.clear()
                    async with asyncio.timeout(GRACE):
                        await self._arrived.wait()
                return

    def _do_without(self, resource: Resource, error: Forbidden) -> None:
        self.hidden.add(resource.kind)
        logger.warning("going on without %s until the operator is started again: %s", resource.plural, error)

    async def _due(self) -> set[str]:
        """Kinds to check: all of them when the interval is over, else those that were relisted."""
        try:
            async with asyncio.timeout(self._interval):
                await self._wake.wait()
        except TimeoutError:
            self._asked.clear()
            return {resource.kind for resource in WATCHED}
        await self._sleep(AFTER_RELIST)
        self._wake.clear()
        kinds, self._asked = self._asked, set()
        return kinds

    async def _check_all(self, resource: Resource) -> None:
        try:
            for namespace in self._namespaces:
                await self.check(resource, namespace)
        except KubeError as error:
            logger.warning("cannot compare %s with the cluster, trying again later: %s", resource.plural, error)

    async def check(self, resource: Resource, namespace: str | None) -> None:
        """One kind in one namespace (None: all of them)."""
        listed, version = await self._list(resource, namespace)
        found = compare(self._cache.seen(resource.kind, namespace), listed, version)
        for (where, name), seen in found.vanished.items():
            for key in self._cache.remove(resource.kind, where, name, seen.uid):
                logger.info("%s %s/%s vanished while nobody watched", resource.kind, where, name)
                self._enqueue(key)
        if found.missed:
            await self._catch_up(resource, namespace, listed, version)

    async def _catch_up(self, resource: Resource, namespace: str | None, listed: Listed, version: str) -> None:
        """Give the watch its time; what it still has not shown then is taken from a full list."""
        await self._sleep(GRACE)
        if not compare(self._cache.seen(resource.kind, namespace), listed, version).missed:
            return
        logger.warning("the watch of %s lags behind the cluster: reading all of them", resource.plural)
        async for page in self._kube.list_pages(resource, namespace, label_selector=selector(resource)):
            for item in page.get("items") or ():
                # Items of a list carry neither.
                item = {"apiVersion": resource.api_version, "kind": resource.kind, **item}
                for key in self._cache.update(resource.kind, item):
                    self._enqueue(key)

    async def _list(self, resource: Resource, namespace: str | None) -> tuple[Listed, str]:
        try:
            return await self._list_once(resource, namespace)
        except Gone:  # the continue token grew too old between two pages
            return await self._list_once(resource, namespace)

    async def _list_once(self, resource: Resource, namespace: str | None) -> tuple[Listed, str]:
        listed: Listed = {}
        version = ""
        pages = self._kube.list_pages(resource, namespace, label_selector=selector(resource), metadata_only=True)
        async for page in pages:
            version = version or page["metadata"]["resourceVersion"]
            for item in page.get("items") or ():
                metadata = item["metadata"]
                if not is_ours(resource, metadata):
                    continue
                listed[metadata["namespace"], metadata["name"]] = Seen(metadata["uid"], metadata["resourceVersion"])
        return listed, version
