"""All objects of one kind and every later change, and the cache of their projections.

An informer lists in pages and continues with a watch. One stream a kind calls a handler for each object, without a
task, a queue or a copy for each. As in client-go's reflector (tools/cache/reflector.go) a watch that ends is resumed,
and after 410 the kind is listed again; objects that are not in that list are gone.

Updates of the cache return the keys of services whose projections changed. `SyncState` has which watches are synced,
for each namespace and each part (kopf's watch, and one informer per child kind). A namespace is warm once all its parts
are synced; from then on its services are reconciled. A namespace that is gone or lacks its Role delays no other. The
state follows from the API server's answers to the watches; permissions are not queried.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from kubeloop.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    KubeError,
    NotFound,
    ServerError,
    SilentStream,
    TooManyRequests,
    from_status,
    lacks_right,
)
from kubeloop.resources import Key, Resource
from kubeloop.transport import Transport, parsed

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


RawObject = Mapping[str, Any]


class Facts(Protocol):
    """Fields of every projection. Equality ignores the version: equal projections lead to the same decision."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...
    @property
    def service(self) -> str | None:
        """Name of the owning service; None for objects of others."""


Project = Callable[[RawObject, Any], Facts]
"""Of an object, and of the facts that are known of it already or expected after a write, or None."""


Index = Callable[[Any], Iterable[Hashable]]
"""Takes a projection; returns the values that it is found by."""


class Seen(NamedTuple):
    """Identity of a cached object."""

    uid: str
    resource_version: str


class _Entry(NamedTuple):
    key: Key
    facts: Facts


class Cache:
    """Projections by kind and by service. Not thread-safe: used on the event loop only."""

    def __init__(self, kinds: Mapping[str, Project], indices: Mapping[str, Index] = MappingProxyType({})) -> None:
        self._kinds, self._indices = kinds, indices
        self._by: dict[tuple[str, Hashable], dict[Key, Facts]] = {}
        self._entries: dict[str, dict[tuple[str, str], _Entry]] = {kind: {} for kind in kinds}
        self._by_service: dict[Key, dict[str, dict[str, Any]]] = {}
        self._expected: dict[tuple[str, str, str], Facts] = {}

    @contextmanager
    def expecting(self, kind: str, facts: Facts) -> Iterator[None]:
        """Within the block `facts` returns no key: the watch may bring a write before its response arrives.

        Any other projection returns one, also from the response: an edit by somebody else may be in the response only,
        and the watch then brings a version that is known.
        """
        written = (kind, facts.namespace, facts.name)
        self._expected[written] = facts
        try:
            yield
        finally:
            del self._expected[written]

    def update(self, kind: str, raw: RawObject) -> tuple[Key, ...]:
        """Project and store an object. Returns the keys of the services that changed: none to two."""
        metadata = raw["metadata"]
        where = (metadata["namespace"], metadata["name"])
        old = self._entries[kind].get(where)
        if old is not None and _is_known(metadata, old.facts):
            return ()
        known = self._expected.get((kind, *where), None if old is None else old.facts)
        return self.put(kind, self._kinds[kind](raw, known))

    def put(self, kind: str, facts: Facts) -> tuple[Key, ...]:
        """Store a projection; returns keys as `update` does."""
        where = (facts.namespace, facts.name)
        old = self._entries[kind].get(where)
        if old is not None and _is_older(facts, old.facts):
            return ()
        if facts.service is None:
            return self._drop(kind, *where)
        key = Key(facts.namespace, facts.service)
        left = self._drop(kind, *where) if old is not None and old.key != key else ()
        if kind in self._indices:
            self._index(kind, None if old is None else old.facts, facts)
        self._entries[kind][where] = _Entry(key, facts)
        self._by_service.setdefault(key, {}).setdefault(kind, {})[facts.name] = facts
        if old is None or left or facts not in (old.facts, self._expected.get((kind, *where))):
            return (*left, key)
        return ()

    def remove(self, kind: str, namespace: str, name: str, uid: str) -> tuple[Key, ...]:
        """Remove an object; returns its key if it was cached. A later object of the same name stays."""
        entry = self._entries[kind].get((namespace, name))
        if entry is None or entry.facts.uid != uid:
            return ()
        return self._drop(kind, namespace, name)

    def get(self, kind: str, namespace: str, name: str) -> Any:
        entry = self._entries[kind].get((namespace, name))
        return None if entry is None else entry.facts

    def of_service(self, key: Key) -> Mapping[str, Mapping[str, Any]]:
        """Projections of the objects of one service, by kind and name."""
        return self._by_service.get(key, {})

    def all_keys(self) -> Iterator[Key]:
        return iter(tuple(self._by_service))

    def all_of(self, kind: str) -> Iterator[Any]:
        return (entry.facts for entry in self._entries[kind].values())

    def indexed(self, kind: str, value: Hashable) -> Iterator[Any]:
        """Projections that the index finds under this value."""
        return iter(tuple(self._by.get((kind, value), {}).values()))

    def _index(self, kind: str, old: Facts | None, new: Facts | None) -> None:
        index = self._indices[kind]
        if old is not None:
            for value in index(old):
                found = self._by.get((kind, value), {})
                found.pop(Key(old.namespace, old.name), None)
                if not found:
                    self._by.pop((kind, value), None)
        if new is not None:
            for value in index(new):
                self._by.setdefault((kind, value), {})[Key(new.namespace, new.name)] = new

    def seen(self, kind: str, namespace: str | None = None) -> dict[tuple[str, str], Seen]:
        """Identities of all objects of a kind by (namespace, name), for comparison with a list."""
        return {
            where: Seen(entry.facts.uid, entry.facts.resource_version)
            for where, entry in self._entries[kind].items()
            if namespace is None or where[0] == namespace
        }

    def _drop(self, kind: str, namespace: str, name: str) -> tuple[Key, ...]:
        entry = self._entries[kind].pop((namespace, name), None)
        if entry is None:
            return ()
        if kind in self._indices:
            self._index(kind, entry.facts, None)
        children = self._by_service[entry.key]
        del children[kind][name]
        if not children[kind]:
            del children[kind]
        if not children:
            del self._by_service[entry.key]
        return (entry.key,)


def newer(one: str, other: str) -> bool:
    """Whether a resourceVersion is later than another; False where one of them is not a number."""
    return one.isdecimal() and other.isdecimal() and int(one) > int(other)


def _is_older(facts: Facts, known: Facts) -> bool:
    return facts.uid == known.uid and newer(known.resource_version, facts.resource_version)


def _is_known(metadata: RawObject, known: Facts) -> bool:
    """Whether the cache has this version or a later one: responses to own writes arrive before the watch brings
    them."""
    uid, version = metadata["uid"], metadata.get("resourceVersion", "")
    return bool(uid == known.uid and (version == known.resource_version or newer(known.resource_version, version)))


_PASSING = (Conflict, Gone, ServerError, TooManyRequests)
_NAMED = 20


def watch_of(parent: Resource) -> str:
    """Name of the part for kopf's watch; the others are named after their resources."""
    return f"watch of {parent.kind}s"


def problem_of(error: KubeError) -> str:
    """One line that names the missing permission, or describes the error."""
    if lacks_right(error):
        return f"missing right: {error.right}"
    return " ".join(str(error).split())


def is_lasting(error: KubeError) -> bool:
    """Whether the error needs somebody's action, unlike an overloaded or unavailable API server."""
    return isinstance(error, ApiError) and not isinstance(error, _PASSING)


@dataclass(slots=True)
class _Part:
    is_synced: bool = False
    problem: str = ""
    cause: type | None = None
    is_forbidden: bool = False
    is_lasting: bool = False


class Unwatched(NamedTuple):
    """Numbers of parts in one namespace."""

    forbidden: int
    """Without permission to watch."""
    broken: int
    """With any problem, including a missing permission."""


class SyncState:
    """State of the watches, for the workers and /readyz.

    `namespaces`: those that are watched, or (None,) for all together. `parent`: the kind whose keys are queued.
    `on_warm` is called once for each namespace, `on_hidden` whenever its set of hidden kinds changes.
    """

    def __init__(
        self,
        namespaces: Iterable[str | None],
        parent: Resource,
        children: Iterable[Resource] = (),
        *,
        on_warm: Callable[[str | None], None] = lambda _: None,
        on_hidden: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._parent = parent
        names = (watch_of(parent), *(resource.full_name for resource in (parent, *children)))
        self._parts = {namespace: {name: _Part() for name in names} for namespace in namespaces}
        self._hidden: dict[str | None, frozenset[str]] = dict.fromkeys(self._parts, frozenset())
        self._warm: set[str | None] = set()
        self._on_warm, self._on_hidden = on_warm, on_hidden
        self.listable = asyncio.Event()
        """Set once the parents of one namespace may be listed."""
        self.settled = asyncio.Event()
        """Set once one namespace is warm, and each other one is warm or blocked."""

    def synced(self, namespace: str | None, part: str) -> None:
        """A part was listed and its watch is running."""
        state = self._parts[namespace][part]
        if state.problem:
            logger.info("%s%s is watched again", _where(namespace), part)
        self._parts[namespace][part] = _Part(is_synced=True)
        if part == self._parent.full_name:
            self.listable.set()
        self._update_warm(namespace)

    def failed(self, namespace: str | None, part: str, error: KubeError | str) -> None:
        """A part cannot be watched now. Logged when the kind of problem changes, not on each attempt."""
        known = self._parts[namespace][part]
        problem, lasts = (error, True) if isinstance(error, str) else (problem_of(error), is_lasting(error))
        if isinstance(error, NotFound):
            problem = f"the CRD {self._parent.full_name} is not installed; waiting for it"
        if not known.problem or known.cause is not type(error):
            logger.warning("%scannot watch %s: %s", _where(namespace), part, problem if lasts else error)
        self._parts[namespace][part] = _Part(
            is_synced=known.is_synced,
            problem=problem,
            cause=type(error),
            is_forbidden=isinstance(error, Forbidden),
            is_lasting=lasts,
        )
        self._update_warm(namespace)

    def hide(self, namespace: str | None, resource: Resource) -> None:
        """An optional kind may not be listed; `show` reverses it."""
        self._set_hidden(namespace, self._hidden[namespace] | {resource.kind})
        self._parts[namespace][resource.full_name] = _Part(is_synced=True)
        self._update_warm(namespace)

    def show(self, namespace: str | None, resource: Resource) -> None:
        """A hidden kind may be listed again, and is synced."""
        self.synced(namespace, resource.full_name)
        self._set_hidden(namespace, self._hidden[namespace] - {resource.kind})

    def is_warm(self, namespace: str) -> bool:
        """Whether services of this namespace may be reconciled."""
        return self._scope(namespace) in self._warm

    def hidden(self, namespace: str) -> frozenset[str]:
        """Optional kinds that cannot be listed in this namespace."""
        return self._hidden.get(self._scope(namespace), frozenset())

    def working(self) -> Collection[str | None]:
        """Warm namespaces without a lasting problem."""
        return [namespace for namespace in self._warm if not any(p.is_lasting for p in self._of(namespace))]

    def unwatched(self) -> Iterator[tuple[str | None, Unwatched]]:
        """For each namespace the numbers of parts that cannot be watched now."""
        for namespace, parts in self._parts.items():
            forbidden = sum(part.is_forbidden for part in parts.values())
            yield namespace, Unwatched(forbidden, broken=sum(bool(part.problem) for part in parts.values()))

    def problems(self) -> list[str]:
        """One line for each namespace and problem, or for what is not synced yet."""
        lines = [line for namespace in self._parts for line in self._problems_of(namespace)]
        more = len(lines) - _NAMED
        return lines if more <= 0 else [*lines[:_NAMED], f"and {more} more"]

    def _problems_of(self, namespace: str | None) -> Iterator[str]:
        where, problems = _where(namespace), dict.fromkeys(p.problem for p in self._of(namespace) if p.problem)
        yield from (where + problem for problem in problems)
        if not problems and namespace not in self._warm:
            awaited = (name for name, part in self._parts[namespace].items() if not part.is_synced)
            yield f"{where}not synced yet: {', '.join(awaited)}"

    def _of(self, namespace: str | None) -> Collection[_Part]:
        return self._parts[namespace].values()

    def _scope(self, namespace: str) -> str | None:
        return namespace if namespace in self._parts else None

    def _set_hidden(self, namespace: str | None, kinds: frozenset[str]) -> None:
        if kinds != self._hidden[namespace]:
            self._hidden[namespace] = kinds
            self._on_hidden(namespace)

    def _update_warm(self, namespace: str | None) -> None:
        if namespace not in self._warm and all(part.is_synced for part in self._of(namespace)):
            self._warm.add(namespace)
            self._on_warm(namespace)
        if self._warm and all(ns in self._warm or any(p.problem for p in self._of(ns)) for ns in self._parts):
            self.settled.set()


def _where(namespace: str | None) -> str:
    return "" if namespace is None else f"namespace {namespace}: "
