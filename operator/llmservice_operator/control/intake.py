"""Where what the watches bring goes: a projection in the cache and, where that changed, a key. Nothing else.

What a user does is looked at at once. What children do comes in bursts (a pod that becomes ready changes itself, its
Deployment and its EndpointSlice, several times each), and one look a burst is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llmservice_operator.api.service import Key
from llmservice_operator.control.cache import Cache, newer
from llmservice_operator.control.internal_errors import Contained, InternalErrors, Part
from llmservice_operator.control.kinds import SERVICE_LABEL
from llmservice_operator.kube.resources import LLMSERVICE, Resource
from llmservice_operator.observe.inspections import INSPECTS_LABEL


class Intake:
    """Of all kinds, whoever watches them."""

    def __init__(
        self,
        cache: Cache,
        changed: Callable[[Key], None],
        stirred: Callable[[Key], None],
        errors: InternalErrors | None = None,
    ) -> None:
        self._cache = cache
        self._changed, self._stirred = changed, stirred
        self._errors = errors or InternalErrors()

    def seen(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        """It is there, and this is what it is like; one that cannot be read keeps no other from being read."""
        with self._contained(resource, obj):
            self._enqueue(resource, self._cache.update(resource.kind, obj))

    def gone(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        """It was deleted; this is what it was like."""
        with self._contained(resource, obj) as contained:
            metadata = obj["metadata"]
            where = metadata["namespace"], metadata["name"]
            self._enqueue(resource, self._cache.remove(resource.kind, *where, metadata["uid"]))
        contained.end()

    def listed(
        self, resource: Resource, namespace: str | None, uids: Mapping[tuple[str, str], str], version: str
    ) -> None:
        """What is not in a list, and was not made after it, is gone; its deletion was missed."""
        for where, seen in self._cache.seen(resource.kind, namespace).items():
            if uids.get(where) != seen.uid and not newer(seen.resource_version, version):
                self._enqueue(resource, self._cache.remove(resource.kind, *where, seen.uid))

    def _contained(self, resource: Resource, obj: Mapping[str, Any]) -> Contained:
        metadata = obj.get("metadata") or {}
        labels = metadata.get("labels") or {}
        name = metadata.get("name", "")
        service = name if resource is LLMSERVICE else labels.get(SERVICE_LABEL) or labels.get(INSPECTS_LABEL)
        key = Key(metadata.get("namespace", ""), service) if service else None
        return self._errors.contained(Part.PROJECTION, key, f"of {resource.kind} {name}")

    def _enqueue(self, resource: Resource, keys: Iterable[Key]) -> None:
        tell = self._changed if resource is LLMSERVICE else self._stirred
        for key in keys:
            tell(key)
