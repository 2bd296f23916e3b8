"""The LLMServices of one namespace, or of all: what kopf's watch brings, and the lists that find what it missed.

kopf 1.45 reports neither the end of its list nor objects that vanished while it did not watch. So the
informers' list goes into the same event handler: before kopf starts, until its first event, after kopf lists, after
its watch ended, and every ten minutes. docs/architecture.md has the rule for all kinds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Any

from llmservice_operator.control.containment import InternalErrors, Part
from llmservice_operator.control.watch.cache import Seen
from llmservice_operator.control.watch.ingest import EventHandler
from llmservice_operator.control.watch.sync_state import WATCH, SyncState
from llmservice_operator.kube.errors import KubeError
from llmservice_operator.kube.informer import list_all
from llmservice_operator.kube.resources import LLMSERVICE, Resource
from llmservice_operator.kube.transport import Transport

logger = logging.getLogger(__name__)

INTERVAL = 600.0
"""Seconds between two lists of LLMServices whose watch goes on."""
AFTER_RELIST, LONGEST_RELIST = 3.0, 60.0
"""Seconds from the last object that kopf lists, and at most from the first, until they are listed here: kopf brings
them one by one."""
RETRY = 5.0
"""Seconds after which a list that failed is tried again."""
FIRST_EVENT, LONGEST_FIRST_EVENT = 10.0, 60.0
"""Seconds between two lists while kopf has brought nothing: of no objects it never does, so more and more."""
CURRENT = 5.0
"""Seconds for which a watch that brought something is taken to have brought all that there was before."""
NAMED = 5
"""LLMServices that a warning names."""


class WatchesNothingError(Exception):
    """kopf goes on, but brings none of the LLMServices that there are."""


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
        self._due_at = 0.0
        self._is_complete = False
        self._heard_at = float("-inf")
        self._deleted: set[str] = set()
        """uids whose deletion the watch showed since the last list began: a page of it may still have them."""
        self._heard: dict[str, float] = {}
        """When the watch brought each LLMService last, by uid, or when kopf began to bring the list that had it. The
        older ones go at each list."""
        self._list_began = float("-inf")
        self._relist_began: float | None = None
        self._started, self._has_brought = asyncio.Event(), asyncio.Event()
        self._has_objects = False
        """Whether the last list had any."""

    # Called by kopf

    def event(self, kind: str | None, obj: Mapping[str, Any]) -> None:
        """An LLMService was listed by kopf (None), ADDED, MODIFIED or DELETED."""
        self._has_brought.set()
        heard_at = self._clock()
        if kind is None:  # kopf brings the objects of its list one by one, and they are as old as the first
            self._relist_began = heard_at if self._relist_began is None else self._relist_began
            heard_at = self._relist_began
        self._heard[obj["metadata"]["uid"]] = heard_at
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
        """kopf has its credentials, and watches from now on."""
        self._started.set()
        self._sync.synced(self._namespace, WATCH)

    def ended(self, why: KubeError | str) -> None:
        """kopf's watch ended, for a reason as in SyncState.failed; it may start again once `listed` is set."""
        self._sync.failed(self._namespace, WATCH, why)
        self.listed.clear()
        self._heard_at = float("-inf")
        self._heard.clear()
        self._started.clear()
        self._has_brought.clear()
        self._list_again(after=0.0)

    async def check_first_event(self) -> None:
        """List until kopf, once started, brings its first event; WatchesNothingError where there are objects and it
        brings none, else it never returns.

        kopf discovers the kinds once. If a new CRD is not in every API server's discovery yet, kopf watches nothing
        until it is restarted.
        """
        await self._started.wait()
        waited, self._has_objects = 0.0, False
        while True:
            pause = min(LONGEST_FIRST_EVENT, max(FIRST_EVENT, waited))
            await self._sleep(pause)
            waited += pause
            if self._has_brought.is_set():
                await asyncio.Event().wait()
            if self._has_objects:
                raise WatchesNothingError(f"no event came, and there are objects, {pause:.0f} s after a list had some")
            self._list_again(after=0.0)

    # Read by others

    def is_current(self, uid: str) -> bool:
        """Whether the cache has this LLMService as it was in the API server a moment ago.

        Either it was itself brought in the last seconds, or nothing was missed since the last list and the watch, which
        keeps the order of changes, brought something in the last seconds.
        """
        heard_at = max(self._heard.get(uid, float("-inf")), self._heard_at if self._is_complete else float("-inf"))
        return self._clock() - heard_at < CURRENT

    async def run(self) -> None:
        """List now, and again whenever something may have been missed; never returns."""
        is_routine = False
        while True:
            self._due.clear()
            wait = RETRY
            with self._errors.contained(Part.RESYNC):
                before = self._known()
                wait = await self._list()
                if is_routine:
                    await self._warn_of_missed(before ^ self._known())
            is_routine = wait == INTERVAL
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._due.wait()
                is_routine = False
                latest = self._clock() + LONGEST_RELIST
                while (left := min(self._due_at, latest) - self._clock()) > 0:
                    await self._sleep(left)

    def _known(self) -> Set[tuple[tuple[str, str], Seen]]:
        return self._handler.cache.seen(LLMSERVICE.kind, self._namespace).items()

    async def _warn_of_missed(self, changed: Set[tuple[tuple[str, str], Seen]]) -> None:
        """The watch may bring a moment later what changed while the list was read."""
        if changed and self._started.is_set():
            await self._sleep(CURRENT)
            missed = sorted({f"{where[0]}/{where[1]}" for where, seen in changed if not self._was_heard(seen.uid)})
            if missed and self._started.is_set():
                some = ", ".join(missed[:NAMED])
                logger.warning("the watch of LLMServices missed changes of %d, found by a list: %s", len(missed), some)

    def _was_heard(self, uid: str) -> bool:
        """Whether the watch brought anything about it since the last list began."""
        return self._heard.get(uid, float("-inf")) >= self._list_began

    async def _list(self) -> float:
        """List once; returns the seconds until the next list."""
        self._deleted.clear()
        self._list_began, self._relist_began = self._clock(), None
        self._heard = {uid: at for uid, at in self._heard.items() if self._list_began - at < CURRENT}
        try:
            version, uids = await list_all(self._transport, LLMSERVICE, self._namespace, self._take)
        except KubeError as error:
            self._sync.failed(self._namespace, LLMSERVICE.full_name, error)
            return RETRY
        self._handler.listed(LLMSERVICE, self._namespace, uids, version)
        self._has_objects = bool(uids)
        self._is_complete = not self._due.is_set()
        self.listed.set()
        self._sync.synced(self._namespace, LLMSERVICE.full_name)
        return INTERVAL

    def _take(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        if obj["metadata"]["uid"] not in self._deleted:
            self._handler.updated(resource, obj)

    def _list_again(self, after: float) -> None:
        self._due_at, self._is_complete = self._clock() + after, False
        self._due.set()
