"""All objects of one kind, and then every change of them, for ever: a list in pages, and a watch that goes on from it.

One stream a kind feeds a function that is called for each object, without a task, a queue or a copy for each: kopf's
handlers cost most of a millisecond an event, and a service has some fifteen events of its children until it is ready.
As in client-go's reflector (tools/cache/reflector.go) a watch that ends goes on where it was, and one that lost its
place lists again; what is not in that list is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from .errors import Forbidden, Gone, KubeError, from_status
from .resources import Resource
from .transport import Transport
from .wire import parsed

logger = logging.getLogger(__name__)

JSON = dict[str, Any]

PAGE = 250
"""Objects in a page of a list: what is in memory at once."""
WATCH_SECONDS = 600
"""After which the API server is asked to end a watch: the next one carries a token that was read again."""
SILENCE = 90.0
"""Seconds after which a watch that brings nothing is taken for dead: a bookmark comes every minute."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
LONGEST_PAUSE_WITHOUT_RIGHT = 30.0
"""A right comes back when somebody grants it: soon enough to wait for, seldom enough not to fill an audit log."""
BREATH = 32
"""Events in a row after which others have their turn."""


class Sink(Protocol):
    """Where objects go."""

    def seen(self, resource: Resource, obj: JSON) -> None:
        """It is there, and this is what it is like."""

    def gone(self, resource: Resource, obj: JSON) -> None:
        """It was deleted; this is what it was like."""

    def listed(
        self, resource: Resource, namespace: str | None, uids: Mapping[tuple[str, str], str], version: str
    ) -> None:
        """These are all that there were at this version, by (namespace, name)."""


class Informer:
    """One kind, in one namespace or (None) all."""

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        namespace: str | None,
        selector: str,
        sink: Sink,
        *,
        told: Callable[[KubeError | None], None] = lambda _: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._transport, self._resource, self._namespace = transport, resource, namespace
        self._params = {"labelSelector": selector} if selector else {}
        self._told = told
        """Called with None whenever everything that there was has been seen and a watch goes on from there, and with
        the error of each try that failed."""
        self._sink, self._sleep, self._rng = sink, sleep, rng
        self._version: str | None = None
        self._pauses = 0

    async def run(self) -> None:
        """For ever; what fails is told and tried again."""
        while True:
            try:
                if self._version is None:
                    self._version = await self._list()
                if not await self._watch(self._version):
                    await self._pause(LONGEST_PAUSE)
            except Gone:
                self._version = None
                await self._pause(LONGEST_PAUSE)
            except KubeError as error:
                self._told(error)
                is_forbidden = isinstance(error, Forbidden)
                await self._pause(LONGEST_PAUSE_WITHOUT_RIGHT if is_forbidden else LONGEST_PAUSE)
            except Exception:  # an answer that cannot be read must not end the watches of all other kinds
                logger.exception("the watch of %s failed and lists again", self._resource.full_name)
                self._version = None
                await self._pause(LONGEST_PAUSE)

    async def _pause(self, longest: float) -> None:
        """Longer each time, until a watch brings something."""
        full = min(longest, FIRST_PAUSE * 2.0 ** min(self._pauses, 10))
        self._pauses += 1
        await self._sleep(full * (0.5 + self._rng() / 2))

    async def _list(self) -> str:
        """Returns the version to watch from."""
        resource, path = self._resource, self._resource.path(self._namespace)
        params = {**self._params, "limit": str(PAGE)}
        uids: dict[tuple[str, str], str] = {}
        while True:
            page = await self._transport.request("list", resource, path, params=params)
            for item in page.get("items") or ():
                metadata = item["metadata"]
                uids[metadata["namespace"], metadata["name"]] = metadata["uid"]
                # Items of a list carry neither.
                self._tell(self._sink.seen, {"apiVersion": resource.api_version, "kind": resource.kind, **item})
            version, token = str(page["metadata"]["resourceVersion"]), page["metadata"].get("continue")
            if not token:
                self._sink.listed(resource, self._namespace, uids, version)
                return version
            params["continue"] = token

    async def _watch(self, version: str) -> int:
        """Until the API server ends it; returns how many events came."""
        params = {
            **self._params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        path, count = self._resource.path(self._namespace), 0
        lines = self._transport.lines(
            self._resource, path, params=params, silence=SILENCE, opened=lambda: self._told(None)
        )
        async with contextlib.aclosing(lines):
            async for line in lines:
                self._take(await parsed(line))
                count += 1
                if count % BREATH == 0:
                    await asyncio.sleep(0)
        return count

    def _take(self, event: JSON) -> None:
        kind, obj = event["type"], event["object"]
        if kind == "ERROR":
            raise from_status(int(obj.get("code") or 500), obj, right=f"watch {self._resource.full_name}")
        self._version, self._pauses = obj["metadata"]["resourceVersion"], 0
        if kind == "DELETED":
            self._tell(self._sink.gone, obj)
        elif kind != "BOOKMARK":
            self._tell(self._sink.seen, obj)

    def _tell(self, what: Callable[[Resource, JSON], None], obj: JSON) -> None:
        try:
            what(self._resource, obj)
        except Exception:  # a bug that one object brings to light must not blind us to the others
            metadata = obj["metadata"]
            logger.exception("cannot read %s %s/%s", self._resource.kind, metadata["namespace"], metadata["name"])
