"""Projections of the watched objects. Updates return the keys of services whose projections changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from kubeloop.resources import Key

JSON = Mapping[str, Any]


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


Project = Callable[[JSON, Any], Facts]
"""Of an object, and of the facts that are known of it already or expected after a write, or None."""


Index = Callable[[Any], Hashable | None]
"""Takes a projection; returns the value that it is found by, or None to leave it out of the index."""


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

    def update(self, kind: str, raw: JSON) -> tuple[Key, ...]:
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
        if old is not None and (value := index(old)) is not None:
            found = self._by.get((kind, value), {})
            found.pop(Key(old.namespace, old.name), None)
            if not found:
                self._by.pop((kind, value), None)
        if new is not None and (value := index(new)) is not None:
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


def _is_known(metadata: JSON, known: Facts) -> bool:
    """Whether the cache has this version or a later one: responses to own writes arrive before the watch brings
    them."""
    uid, version = metadata["uid"], metadata.get("resourceVersion", "")
    return bool(uid == known.uid and (version == known.resource_version or newer(known.resource_version, version)))
