"""The objects of one kind by kopf's watch, and the lists that find what it misses.

kopf is the frame: handlers, login, and the watch. Only `on.event` handlers are used: they add no finalizer and no
annotation to anybody's object, and kopf never patches what it watches. Its own indices are not used: while it lists,
every object's handler waits for all others' (work that grows with the square of their number). What its watch leaves
out, in 1.45, and what that costs here:

* It reports neither the end of its list nor objects that vanished while it did not watch. So a list like the informers'
  goes into the same event handler: before kopf starts, until its first event, after kopf lists, after its watch ended,
  and every ten minutes (`Resync`).
* It discovers the kinds once. If a new CRD is not in every API server's discovery yet, it watches nothing until it is
  started again (`Resync.check_first_event`).
* Its watch ends for good with any error of its tasks: a lost place (410) that is the answer to its request, or an
  answer that is no JSON. So it is started again (`Watch`).

docs/architecture.md has the rule for all kinds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
import kopf

from kubeloop.credentials import Credentials
from kubeloop.errors import KubeError, Unreachable
from kubeloop.informer import (
    Cache,
    ResourceEventHandler,
    Seen,
    SyncState,
    list_all,
    watch_of,
)
from kubeloop.resources import Resource
from kubeloop.transport import Transport

logger = logging.getLogger(__name__)

INTERVAL = 600.0
"""Seconds between two lists while the watch runs."""
AFTER_RELIST, LONGEST_RELIST = 3.0, 60.0
"""Seconds from the last object of kopf's own list until the objects are listed here, and at most from the first: kopf
reports them one by one."""
RETRY = 5.0
"""Seconds until a failed list is retried."""
FIRST_EVENT, LONGEST_FIRST_EVENT = 10.0, 60.0
"""Seconds between two lists before kopf's first event. They grow, since kopf brings no event where no objects exist."""
CURRENT_SECONDS = 5.0
"""Seconds after an event for which the watch counts as current."""
MAX_NAMED = 5
"""Objects named in a warning."""


class CachingHandler(ResourceEventHandler, Protocol):
    @property
    def cache(self) -> Cache: ...


class WatchesNothingError(Exception):
    """kopf runs, but reports none of the existing objects."""


class Resync:
    """Lists the objects of one namespace, or (None) of all. kopf calls `event`, `started` and `ended`."""

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        handler: CachingHandler,
        namespace: str | None,
        sync: SyncState,
        *,
        contained: Callable[[], AbstractContextManager[object]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.resource = resource
        self._transport, self._handler, self._namespace, self._sync = transport, handler, namespace, sync
        self._contained = contained
        self._sleep, self._clock = sleep, clock
        self.listed = asyncio.Event()
        """Set while kopf may watch: a list succeeded since its watch last ended."""
        self._due = asyncio.Event()
        self._due_at = 0.0
        self._is_complete = False
        self._last_event_at = float("-inf")
        self._deleted: set[str] = set()
        """uids that the watch deleted since the last list began: a page of that list may still have them."""
        self._event_times: dict[str, float] = {}
        """By uid: time of the last watch event, or of the first object of kopf's list with it. Lists drop older
        entries."""
        self._list_began = float("-inf")
        self._relist_began: float | None = None
        self._started, self._has_event = asyncio.Event(), asyncio.Event()
        self._has_objects = False
        """Whether the last list had any objects."""

    # Called by kopf

    def event(self, kind: str | None, obj: dict[str, Any]) -> None:
        """An object was listed by kopf (None), ADDED, MODIFIED or DELETED."""
        self._has_event.set()
        event_at = self._clock()
        if kind is None:  # kopf reports a list object by object; all are as old as the first
            self._relist_began = event_at if self._relist_began is None else self._relist_began
            event_at = self._relist_began
        self._event_times[obj["metadata"]["uid"]] = event_at
        if kind == "DELETED":
            self._deleted.add(obj["metadata"]["uid"])
            self._handler.deleted(self.resource, obj)
        else:
            self._handler.updated(self.resource, obj)
        if kind is None:
            self._list_again(after=AFTER_RELIST)
        else:
            self._last_event_at = self._clock()

    def started(self) -> None:
        """kopf has credentials and starts to watch."""
        self._started.set()
        self._sync.synced(self._namespace, watch_of(self.resource))

    def ended(self, why: KubeError | str) -> None:
        """kopf's watch ended, with a reason as in SyncState.failed; it may start again once `listed` is set."""
        self._sync.failed(self._namespace, watch_of(self.resource), why)
        self.listed.clear()
        self._last_event_at = float("-inf")
        self._event_times.clear()
        self._started.clear()
        self._has_event.clear()
        self._list_again(after=0.0)

    async def check_first_event(self) -> None:
        """List until kopf brings its first event. WatchesNothingError where objects exist and kopf brings none;
        otherwise never returns."""
        await self._started.wait()
        waited, self._has_objects = 0.0, False
        while True:
            pause = min(LONGEST_FIRST_EVENT, max(FIRST_EVENT, waited))
            await self._sleep(pause)
            waited += pause
            if self._has_event.is_set():
                await asyncio.Event().wait()
            if self._has_objects:
                raise WatchesNothingError(f"no event came, and there are objects, {pause:.0f} s after a list had some")
            self._list_again(after=0.0)

    # Read by others

    def is_current(self, uid: str) -> bool:
        """Whether the cached object was current in the API server a moment ago.

        True where the watch brought it within CURRENT_SECONDS, or brought anything within that time and missed nothing
        since the last list: a watch keeps the order of changes.
        """
        event_at = max(
            self._event_times.get(uid, float("-inf")), self._last_event_at if self._is_complete else float("-inf")
        )
        return self._clock() - event_at < CURRENT_SECONDS

    async def run(self) -> None:
        """List now, and again whenever the watch may have missed something; never returns."""
        is_routine = False
        while True:
            self._due.clear()
            wait = RETRY
            with self._contained():
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
        return self._handler.cache.seen(self.resource.kind, self._namespace).items()

    async def _warn_of_missed(self, changed: Set[tuple[tuple[str, str], Seen]]) -> None:
        """Log objects that only the list found, unless the watch brings them a moment later."""
        if changed and self._started.is_set():
            await self._sleep(CURRENT_SECONDS)
            missed = sorted({f"{where[0]}/{where[1]}" for where, seen in changed if not self._had_event(seen.uid)})
            if missed and self._started.is_set():
                some = ", ".join(missed[:MAX_NAMED])
                logger.warning(
                    "the %s missed changes of %d, found by a list: %s", watch_of(self.resource), len(missed), some
                )

    def _had_event(self, uid: str) -> bool:
        """Whether the watch brought an event about it since the last list began."""
        return self._event_times.get(uid, float("-inf")) >= self._list_began

    async def _list(self) -> float:
        """List once; returns the seconds until the next list."""
        self._deleted.clear()
        self._list_began, self._relist_began = self._clock(), None
        self._event_times = {
            uid: at for uid, at in self._event_times.items() if self._list_began - at < CURRENT_SECONDS
        }
        try:
            version, uids = await list_all(self._transport, self.resource, self._namespace, self._take)
        except KubeError as error:
            self._sync.failed(self._namespace, self.resource.full_name, error)
            return RETRY
        self._handler.listed(self.resource, self._namespace, uids, version)
        self._has_objects = bool(uids)
        self._is_complete = not self._due.is_set()
        self.listed.set()
        self._sync.synced(self._namespace, self.resource.full_name)
        return INTERVAL

    def _take(self, resource: Resource, obj: dict[str, Any]) -> None:
        if obj["metadata"]["uid"] not in self._deleted:
            self._handler.updated(resource, obj)

    def _list_again(self, after: float) -> None:
        self._due_at, self._is_complete = self._clock() + after, False
        self._due.set()


FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds from the end of kopf's watch until it is restarted."""
STOPS_WITHIN = 1.5
"""Seconds in which cancelled tasks of kopf have to end."""
LOGIN_AGAIN = 5.0
"""Seconds until a failed login is retried; kopf would wait for a minute."""


class NoStorage(kopf.DiffBaseStorage, kopf.ProgressStorage):
    """Storages that store nothing: no handler needs differences, and copies of all bodies took half of kopf's time."""

    def build(self, **_: Any) -> Any:
        return {}

    def clear(self, *, essence: Any) -> Any:
        return essence

    def fetch(self, **_: Any) -> None: ...

    store = purge = touch = fetch


@dataclass(frozen=True, kw_only=True)
class _Connection(kopf.ConnectionInfo):
    """kopf's class, with the TLS context of `Credentials`: kopf has no setting for `tls-server-name`."""

    context: ssl.SSLContext | None = field(default=None, compare=False)

    def as_ssl_context(self) -> ssl.SSLContext:
        """The context, or kopf's default for a plain http server."""
        return self.context if self.context is not None else super().as_ssl_context()


def registry(credentials: Credentials, resync: Resync) -> kopf.OperatorRegistry:
    made, resource = kopf.OperatorRegistry(), resync.resource

    @kopf.on.event(resource.group, resource.version, resource.plural, registry=made)
    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        resync.event(event["type"], dict(event["object"]))

    @kopf.on.login(registry=made, backoff=LOGIN_AGAIN)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        # Called again whenever the API server rejects the token.
        found = await connection(credentials)
        resync.started()
        return found

    return made


async def connection(credentials: Credentials) -> kopf.ConnectionInfo:
    """kopf's connection data, with a new token."""
    credentials.token.forget()
    return _Connection(
        server=credentials.server,
        token=await credentials.token(),
        default_namespace=credentials.namespace,
        proxy_url=credentials.proxy,
        context=credentials.ssl_context(),
    )


def settings(resource: Resource) -> kopf.OperatorSettings:
    """Settings with which kopf watches and writes nothing."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    # kopf would otherwise remove its default finalizer from objects of another kopf operator.
    made.persistence.finalizer = f"{resource.group}/never-set"
    # kopf would otherwise list and watch CRDs and namespaces, which needs further permissions.
    made.scanning.disabled = True
    made.persistence.diffbase_storage = NoStorage()
    made.persistence.progress_storage = NoStorage()
    made.watching.server_timeout = 600
    made.watching.connect_timeout = 5.0
    made.watching.chunk_size = 500
    made.networking.request_timeout = 30.0
    made.networking.connect_timeout = 5.0
    # A longer failure ends the watch; then the objects are listed until that succeeds, and /readyz shows the cause.
    made.networking.error_backoffs = (0.5, 1, 2, 3, 5)
    made.queueing.exit_timeout = 0.5
    # kopf would otherwise kill the process some minutes after its tasks were cancelled.
    made.process.ultimate_exiting_timeout = None
    return made


class Watch:
    """kopf's watch of one namespace, or of all, restarted whenever it ends.

    It ends with any of kopf's tasks, or where kopf reports none of the existing objects. `kopf.operator` would cancel
    every task of the process that is younger than itself, so the tasks of `kopf.spawn_tasks` are awaited here. Each
    namespace has its own kopf, since a namespace that may not be listed ends the watch of all.
    """

    def __init__(
        self,
        credentials: Credentials,
        resync: Resync,
        namespace: str | None,
        identity: str,
        *,
        spawned: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`spawned` is called after each start, when kopf has replaced the handlers of SIGTERM and SIGINT."""
        self._credentials, self._resync, self._namespace, self._identity = credentials, resync, namespace, identity
        self._spawned, self._sleep = spawned, sleep

    async def run(self) -> None:
        """Never returns; cancel it to end kopf."""
        pause = FIRST_PAUSE
        while True:
            await self._resync.listed.wait()
            began = time.monotonic()
            why = await self._once()
            self._resync.ended(why)
            logger.error("the %s ended and is started again: %s", watch_of(self._resync.resource), why)
            pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else min(LONGEST_PAUSE, pause * 2)
            await self._sleep(pause)

    async def _once(self) -> KubeError | str:
        """Run kopf until one of its tasks ends; returns the reason."""
        tasks = await kopf.spawn_tasks(
            registry=registry(self._credentials, self._resync),
            # Otherwise kopf asks the system for the user's name, which a UID need not have.
            identity=self._identity,  # type: ignore[arg-type]  # kopf's NewType is private
            settings=settings(self._resync.resource),
            standalone=True,
            clusterwide=self._namespace is None,
            namespaces=() if self._namespace is None else (self._namespace,),
        )
        self._spawned()  # No await before it: signals reach their handlers in the event loop only.
        tasks = [*tasks, asyncio.create_task(self._resync.check_first_event(), name="first event")]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended, _ = await asyncio.wait(tasks, timeout=STOPS_WITHIN)
        errors = [task.exception() for task in (*done, *ended) if not task.cancelled()]
        return next((_reason(error) for error in errors if error is not None), "a task of kopf's returned")


def _reason(error: BaseException) -> KubeError | str:
    """A KubeError where the API server is unavailable or overloaded, which passes by itself; else a text.

    kopf does not export its errors; they are recognized by their `status`.
    """
    what, status = f"{type(error).__name__}: {error}", getattr(error, "status", None)
    is_away = isinstance(error, aiohttp.ClientConnectionError | TimeoutError)
    is_busy = isinstance(status, int) and (status == 429 or status >= 500)
    return Unreachable(what) if is_away or is_busy else what
