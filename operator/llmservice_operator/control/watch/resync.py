"""The LLMServices of one namespace, or of all: what kopf's watch brings, and the lists that find what it missed.

kopf 1.45 tells neither when it has listed everything nor which objects vanished while it did not watch. So the
informers' list goes into the same event handler: before kopf starts, after kopf lists, after its watch ended, and every
ten minutes. docs/architecture.md has the rule for all kinds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from llmservice_operator.control.containment.internal_errors import InternalErrors, Part
from llmservice_operator.control.watch.ingest import EventHandler
from llmservice_operator.control.watch.sync_state import WATCH, SyncState
from llmservice_operator.kube.errors import KubeError
from llmservice_operator.kube.informer import list_all
from llmservice_operator.kube.resources import LLMSERVICE, Resource
from llmservice_operator.kube.transport import Transport

INTERVAL = 600.0
"""Seconds between two lists of LLMServices whose watch goes on."""
AFTER_RELIST = 3.0
"""Seconds from the first object that kopf lists until they are listed here: kopf brings them one by one."""
RETRY = 5.0
"""Seconds after which a list that failed is tried again."""
CURRENT = 5.0
"""Seconds for which a watch that brought something is taken to have brought all that there was before."""


class Resync:
    """The LLMServices of one namespace, or (None) of all. kopf calls `event`, `started` and `ended`."""

    def __init__(
        self,
        transport: Transport,
        handler: EventHandler,
        namespace: str | None,
        sync: SyncState,
        *,
        errors: InternalErrors | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport, self._handler, self._namespace, self._sync = transport, handler, namespace, sync
        self._errors = errors or InternalErrors()
        self._sleep, self._clock = sleep, clock
        self.listed = asyncio.Event()
        """Set while kopf may watch: a list succeeded since its watch ended last."""
        self._due = asyncio.Event()
        self._delay = 0.0
        self._is_complete = False
        self._heard_at = float("-inf")
        self._deleted: set[str] = set()
        """uids whose deletion the watch showed since the last list began: a page of it may still have them."""

    # Called by kopf

    def event(self, kind: str | None, obj: Mapping[str, Any]) -> None:
        """An LLMService was listed by kopf (None), ADDED, MODIFIED or DELETED."""
        if kind == "DELETED":
            self._deleted.add(obj["metadata"]["uid"])
            self._handler.deleted(LLMSERVICE, obj)
        else:
            self._handler.updated(LLMSERVICE, obj)
        if kind is None:
            self._list_again(after=AFTER_RELIST)
        else:
            self._heard_at = self._clock()

    def started(self) -> None:
        """kopf watches from now on."""
        self._sync.synced(self._namespace, WATCH)

    def ended(self, why: str) -> None:
        """kopf's watch ended; it may start again once `listed` is set."""
        self._sync.failed(self._namespace, WATCH, why)
        self.listed.clear()
        self._list_again(after=0.0)

    # Read by others

    def is_current(self) -> bool:
        """Whether the cache has what the API server had a moment ago: nothing was missed since the last list, and the
        watch, which keeps the order of changes, brought something in the last seconds."""
        return self._is_complete and self._clock() - self._heard_at < CURRENT

    async def run(self) -> None:
        """List now, and again whenever something may have been missed; never returns."""
        while True:
            self._due.clear()
            wait = RETRY
            with self._errors.contained(Part.RESYNC):
                wait = await self._list()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._due.wait()
                await self._sleep(self._delay)

    async def _list(self) -> float:
        """List once; returns the seconds until the next list."""
        self._deleted.clear()
        try:
            version, uids = await list_all(self._transport, LLMSERVICE, self._namespace, self._take)
        except KubeError as error:
            self._sync.failed(self._namespace, LLMSERVICE.full_name, error)
            return RETRY
        self._handler.listed(LLMSERVICE, self._namespace, uids, version)
        self._is_complete = not self._due.is_set()
        self.listed.set()
        self._sync.synced(self._namespace, LLMSERVICE.full_name)
        return INTERVAL

    def _take(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        if obj["metadata"]["uid"] not in self._deleted:
            self._handler.updated(resource, obj)

    def _list_again(self, after: float) -> None:
        self._delay, self._is_complete = after, False
        self._due.set()
