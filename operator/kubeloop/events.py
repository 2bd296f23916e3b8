"""Builds Events for the API server, and reads the Events of single pods with a short cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kubeloop.client import KubeClient
from kubeloop.errors import Forbidden
from kubeloop.resources import EVENT, Resource
from kubeloop.timestamps import rfc3339

JSON = Mapping[str, Any]

LONGEST_MESSAGE = 1024
"""Characters; the API server refuses longer messages."""


@dataclass(frozen=True, slots=True)
class InvolvedObject:
    resource: Resource
    namespace: str
    name: str
    uid: str
    resource_version: str


def manifest(
    involved: InvolvedObject,
    name: str,
    type_: str,
    reason: str,
    message: str,
    *,
    now: datetime,
    component: str,
    instance: str,
) -> dict[str, Any]:
    """An Event named `name`, of type Normal or Warning, that happened once. The message is cut to LONGEST_MESSAGE."""
    stamp = rfc3339(now)
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": name, "namespace": involved.namespace},
        "involvedObject": {
            "apiVersion": involved.resource.api_version,
            "kind": involved.resource.kind,
            "name": involved.name,
            "namespace": involved.namespace,
            "uid": involved.uid,
            "resourceVersion": involved.resource_version,
        },
        "type": type_,
        "reason": reason,
        "message": message[:LONGEST_MESSAGE],
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": instance,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


KEPT_SECONDS = 1.5
REFUSED_SECONDS = 300.0
"""Seconds until the next try after a missing permission: each try is an entry of the audit log."""
MOST_EVENTS = 100
LONGEST_POD_MESSAGE = 4096
"""Characters. The API server stores messages of any length from anyone who may write Events."""
_MOST_KEPT = 1000


class PodEventReader:
    """Events of pods, cached for KEPT_SECONDS."""

    def __init__(self, kube: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._kept: dict[tuple[str, str], tuple[float, tuple[JSON, ...]]] = {}
        self._refused_until: dict[str, float] = {}

    async def of(self, namespace: str, pods: Iterable[str]) -> Mapping[str, tuple[JSON, ...]] | None:
        """Events by pod name; None where they may not be listed. Other errors are raised."""
        now = self._clock()
        if self._refused_until.get(namespace, 0.0) > now:
            return None
        self._kept = {which: kept for which, kept in self._kept.items() if now - kept[0] < KEPT_SECONDS}
        self._refused_until = {where: until for where, until in self._refused_until.items() if until > now}
        try:
            return {pod: await self._of(namespace, pod, now) for pod in pods}
        except Forbidden:
            self._refused_until[namespace] = now + REFUSED_SECONDS
            return None

    async def _of(self, namespace: str, pod: str, now: float) -> tuple[JSON, ...]:
        known = self._kept.get((namespace, pod))
        if known is not None:
            return known[1]
        involved = f"involvedObject.kind=Pod,involvedObject.name={pod}"
        listed = await self._kube.list_some(EVENT, namespace, field_selector=involved, limit=MOST_EVENTS)
        found = tuple(map(_short, listed))
        if len(self._kept) < _MOST_KEPT:
            self._kept[namespace, pod] = (now, found)
        return found


def _short(event: JSON) -> JSON:
    """The fields that are kept of an Event."""
    kept = {name: event[name] for name in ("reason", "series", "lastTimestamp", "eventTime") if name in event}
    return kept | {"message": str(event.get("message") or "")[:LONGEST_POD_MESSAGE]}
