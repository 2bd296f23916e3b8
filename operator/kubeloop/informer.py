"""All objects of one kind and every later change: a list in pages, and a watch that continues from it.

One stream a kind calls a handler for each object, without a task, a queue or a copy for each. As in client-go's
reflector (tools/cache/reflector.go) a watch that ends is resumed, and after 410 the kind is listed again; objects that
are not in that list are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from kubeloop.errors import Forbidden, Gone, KubeError, NotFound, SilentStream, from_status
from kubeloop.resources import Resource
from kubeloop.transport import Transport
from kubeloop.wire import parsed

logger = logging.getLogger(__name__)

JSON = dict[str, Any]

PAGE = 250
"""Objects in a page of a list, and so in memory at once."""
WATCH_SECONDS = 600
"""Longest duration of one watch; the next one uses a fresh token."""
SILENCE = 90.0
"""Seconds without an event after which a watch is resumed. Bookmarks come every minute, but not for a kind without
changes since the watch began (cacheWatcher.process in k8s.io/apiserver), so silence is not an error."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
LONGEST_PAUSE_WITHOUT_RIGHT = 30.0
"""For a missing permission or CRD: found soon after it is added, without filling an audit log."""
YIELD_AFTER = 32
"""Events in a row before the event loop runs other tasks."""


class ResourceEventHandler(Protocol):
    """Receives the objects of lists and watches. Its methods do not raise; they report what they cannot read."""

    def updated(self, resource: Resource, obj: JSON) -> None:
        """An object that was listed, added or changed."""

    def deleted(self, resource: Resource, obj: JSON) -> None:
        """The last state of a deleted object."""

    def listed(
        self, resource: Resource, namespace: str | None, uids: Mapping[tuple[str, str], str], version: str
    ) -> None:
        """The uids, by (namespace, name), of all objects at this resourceVersion."""


async def list_all(
    transport: Transport,
    resource: Resource,
    namespace: str | None,
    updated: Callable[[Resource, JSON], None],
    params: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, dict[tuple[str, str], str]]:
    """Call `updated` for each object, page by page; returns the list's resourceVersion and the uids by (namespace,
    name).

    Gone where the list took too long: start again.
    """
    query = {**params, "limit": str(PAGE)}
    uids: dict[tuple[str, str], str] = {}
    while True:
        page = await transport.request("list", resource, resource.path(namespace), params=query)
        for item in page.get("items") or ():
            metadata = item["metadata"]
            uids[metadata["namespace"], metadata["name"]] = metadata["uid"]
            # Items of a list have neither kind nor apiVersion.
            updated(resource, {"apiVersion": resource.api_version, "kind": resource.kind, **item})
        token = page["metadata"].get("continue")
        if not token:
            return str(page["metadata"]["resourceVersion"]), uids
        query["continue"] = token


class Informer:
    """Lists and watches one kind, in one namespace or (None) all."""

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        namespace: str | None,
        selector: str,
        handler: ResourceEventHandler,
        *,
        report: Callable[[KubeError | None], None] = lambda _: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._transport, self._resource, self._namespace = transport, resource, namespace
        self._params = {"labelSelector": selector} if selector else {}
        self._report = report
        """Called with None when a list is complete and its watch continues, and with the error of each failed
        attempt."""
        self._handler, self._sleep, self._rng = handler, sleep, rng
        self._version: str | None = None
        self._pauses = 0

    async def run(self) -> None:
        """List and watch; never returns. Errors are reported and retried."""
        while True:
            try:
                if self._version is None:
                    self._version = await self._list()
                if not await self._watch(self._version):
                    await self._pause(LONGEST_PAUSE)
            except Gone as error:
                if self._version is None:
                    self._report(error)  # A failed watch is followed by a list, a failed list is reported.
                self._version = None
                await self._pause(LONGEST_PAUSE)
            except SilentStream as quiet:
                logger.debug("%s, and is asked for again", quiet.message)
            except KubeError as error:
                self._report(error)
                if isinstance(error, NotFound):
                    self._version = None  # A reinstalled CRD starts with other objects.
                is_missing = isinstance(error, Forbidden | NotFound)
                await self._pause(LONGEST_PAUSE_WITHOUT_RIGHT if is_missing else LONGEST_PAUSE)
            except Exception:  # An unreadable answer must not end the watches of other kinds.
                logger.exception("the watch of %s failed and lists again", self._resource.full_name)
                self._report(KubeError("an answer of the API server cannot be read; see the log"))
                self._version = None
                await self._pause(LONGEST_PAUSE)

    async def _pause(self, longest: float) -> None:
        """Wait, longer each time until a watch brings something."""
        full = min(longest, FIRST_PAUSE * 2.0 ** min(self._pauses, 10))
        self._pauses += 1
        await self._sleep(full * (0.5 + self._rng() / 2))

    async def _list(self) -> str:
        """List once; returns the resourceVersion to watch from."""
        version, uids = await list_all(
            self._transport, self._resource, self._namespace, self._handler.updated, self._params
        )
        self._handler.listed(self._resource, self._namespace, uids, version)
        return version

    async def _watch(self, version: str) -> int:
        """Watch until the API server ends it; returns the number of events."""
        params = {
            **self._params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        path, count = self._resource.path(self._namespace), 0
        lines = self._transport.lines(
            self._resource, path, params=params, silence=SILENCE, opened=lambda: self._report(None)
        )
        async with contextlib.aclosing(lines):
            async for line in lines:
                self._take(await parsed(line))
                count += 1
                if count % YIELD_AFTER == 0:
                    await asyncio.sleep(0)
        return count

    def _take(self, event: JSON) -> None:
        kind, obj = event["type"], event["object"]
        if kind == "ERROR":
            raise from_status(int(obj.get("code") or 500), obj, right=f"watch {self._resource.full_name}")
        self._version, self._pauses = obj["metadata"]["resourceVersion"], 0
        if kind == "DELETED":
            self._handler.deleted(self._resource, obj)
        elif kind != "BOOKMARK":
            self._handler.updated(self._resource, obj)
