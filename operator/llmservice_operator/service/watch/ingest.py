"""The event handler of all watches and lists: stores a projection in the cache and queues a key if it changed.

A changed LLMService is reconciled at once. Changes of children come in bursts (a pod that becomes ready changes itself,
its workload and its EndpointSlice, several times each), which are combined into one reconcile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kubeloop.cache import Cache, Seen, newer
from kubeloop.resources import POD, Key, Resource
from llmservice_api.constants import INSPECTS_LABEL, SERVICE_LABEL
from llmservice_api.kinds import LLMSERVICE

from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.service.containment import InternalErrors, Part


class _Unreadable(NamedTuple):
    """An object that could not be projected, and its open error."""

    seen: Seen
    key: Key | None
    subject: str


class EventHandler:
    """A `kubeloop.informer.ResourceEventHandler` for all kinds, also for kopf's watch of LLMServices."""

    def __init__(
        self,
        cache: Cache,
        changed: Callable[[Key], None],
        children_changed: Callable[[Key], None],
        errors: InternalErrors | None = None,
        pod_deleted: Callable[[PodFacts], None] = lambda pod: None,
    ) -> None:
        """`pod_deleted` gets the last state of a service's deleted pod: it may vanish before a pass of its service."""
        self.cache = cache
        self._changed, self._children_changed, self._pod_deleted = changed, children_changed, pod_deleted
        self._errors = errors or InternalErrors()
        self._unreadable: dict[tuple[str, str, str], _Unreadable] = {}
        """By kind, namespace and name: the cache lacks these, or has an earlier version."""

    def updated(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        """An object was added or changed. An unreadable one is recorded as an internal error, once per version."""
        key, subject = _about(resource, obj)
        metadata = obj.get("metadata") or {}
        where = resource.kind, metadata.get("namespace", ""), metadata.get("name", "")
        known = Seen(metadata.get("uid", ""), metadata.get("resourceVersion", ""))
        before = self._unreadable.get(where)
        if before is not None and before.seen == known:
            return
        with self._errors.contained(Part.PROJECTION, key, subject) as contained:
            self._enqueue(resource, self.cache.update(resource.kind, obj))
        self._unreadable.pop(where, None)
        if before is not None and before.key != key:
            self._ended(before)
        if contained.failed:
            self._unreadable[where] = _Unreadable(known, key, subject)

    def deleted(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        if resource is POD and self._is_known(obj):
            self.updated(resource, obj)
        key, subject = _about(resource, obj)
        with self._errors.contained(Part.PROJECTION, key, subject) as contained:
            metadata = obj["metadata"]
            where = metadata["namespace"], metadata["name"]
            before = self._unreadable.pop((resource.kind, *where), None)
            if before is not None:
                self._ended(before)
            self._remove(resource, *where, metadata["uid"])
        if key is not None and not contained.failed:
            self._errors.ended(Part.PROJECTION, key, subject)

    def listed(
        self, resource: Resource, namespace: str | None, uids: Mapping[tuple[str, str], str], version: str
    ) -> None:
        """Remove what the list lacks and is not newer: its deletion was missed."""
        for where, seen in self.cache.seen(resource.kind, namespace).items():
            if uids.get(where) != seen.uid and not newer(seen.resource_version, version):
                self._remove(resource, *where, seen.uid)
        for (kind, place, name), before in list(self._unreadable.items()):
            is_meant = kind == resource.kind and namespace in (None, place)
            if (
                is_meant
                and uids.get((place, name)) != before.seen.uid
                and not newer(before.seen.resource_version, version)
            ):
                self._ended(self._unreadable.pop((kind, place, name)))

    def _is_known(self, pod: Mapping[str, Any]) -> bool:
        """Whether the cache has the pod with this uid, not a later one of the same name."""
        metadata = pod.get("metadata") or {}
        known = self.cache.get(POD.kind, metadata.get("namespace", ""), metadata.get("name", ""))
        return known is not None and known.uid == metadata.get("uid")

    def _remove(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        last = self.cache.get(resource.kind, namespace, name)
        keys = self.cache.remove(resource.kind, namespace, name, uid)
        if keys and isinstance(last, PodFacts):
            self._pod_deleted(last)
        self._enqueue(resource, keys)

    def _ended(self, unreadable: _Unreadable) -> None:
        if unreadable.key is not None:
            self._errors.ended(Part.PROJECTION, unreadable.key, unreadable.subject)

    def _enqueue(self, resource: Resource, keys: Iterable[Key]) -> None:
        enqueue = self._changed if resource is LLMSERVICE else self._children_changed
        for key in keys:
            enqueue(key)


def _about(resource: Resource, obj: Mapping[str, Any]) -> tuple[Key | None, str]:
    """The service that an object belongs to by its labels (None: none), and its name in an error."""
    metadata = obj.get("metadata") or {}
    labels = metadata.get("labels") or {}
    name = metadata.get("name", "")
    service = name if resource is LLMSERVICE else labels.get(SERVICE_LABEL) or labels.get(INSPECTS_LABEL)
    return (Key(metadata.get("namespace", ""), service) if service else None), f"of {resource.kind} {name}"
