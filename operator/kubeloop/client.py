"""Calls of the API server, Events among them. Every write requires that this process holds the Lease.

Events of single pods are read with a short cache.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, Unpack

from kubeloop.errors import Forbidden, Invalid, NotFound, NotLeader
from kubeloop.resources import EVENT, Resource, rfc3339
from kubeloop.transport import REQUEST_TIMEOUT, Options, Transport

APPLY = "application/apply-patch+yaml"  # JSON is YAML
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
METADATA_OF_ONE = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PAGE = 500
NO_IMAGE_VOLUMES = (
    "this cluster has no image volumes, so what comes from image:// would be missing: turn on the feature "
    "gate ImageVolume for API server and kubelets (it is on by default from Kubernetes 1.35), or take it from a claim "
    "(pvc://) or a repository"
)

Manifest = Mapping[str, Any]


class Gate(Protocol):
    """Permits writes while this process holds the Lease."""

    def remaining(self) -> float:
        """Seconds for which writes are permitted; zero or less: none is."""


class AlwaysOpen:
    """For processes without a Lease."""

    def remaining(self) -> float:
        return float("inf")


MAX_LIST_BYTES = 8 * 2**20


class KubeClient:
    """Reads, and writes that the gate permits."""

    def __init__(self, transport: Transport, gate: Gate) -> None:
        self._transport = transport
        self._gate = gate
        self._keeps_image_volumes = False

    # Reads

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any] | None:
        """The live object, or None where it does not exist."""
        try:
            return await self._transport.request("get", resource, resource.path(namespace, name))
        except NotFound:
            return None

    async def list_pages(
        self, resource: Resource, namespace: str | None, *, label_selector: str = "", limit: int = PAGE
    ) -> AsyncIterator[dict[str, Any]]:
        """The pages of a list, as the API server sent them. Gone: the list has to start again."""
        params = {"limit": str(limit)}
        if label_selector:
            params["labelSelector"] = label_selector
        while True:
            page = await self._transport.request("list", resource, resource.path(namespace), params=params)
            yield page
            token = page.get("metadata", {}).get("continue")
            if not token:
                return
            params["continue"] = token

    async def list_some(
        self, resource: Resource, namespace: str, *, field_selector: str, limit: int
    ) -> list[dict[str, Any]]:
        """At most `limit` objects of a field selector (empty: all), in one request.

        Unreachable where the response exceeds MAX_LIST_BYTES: objects may have any content.
        """
        params = {"limit": str(limit), "fieldSelector": field_selector}
        page = await self._transport.request(
            "list", resource, resource.path(namespace), params=params, max_bytes=MAX_LIST_BYTES
        )
        return list(page.get("items") or ())

    # Writes

    async def apply(
        self, resource: Resource, manifest: Manifest, *, manager: str, force: bool = False
    ) -> dict[str, Any]:
        """Server-side apply; returns the stored object. FieldConflict without `force` where another manager owns a
        field.

        Invalid, and nothing is written, where the API server would drop image volumes: without the feature gate it
        silently accepts the rest, and pods would start without them (dropImageVolumes, pkg/api/pod/util.go).
        """
        wanted = _image_volumes(manifest)
        if wanted and not self._keeps_image_volumes:
            if wanted - _image_volumes(await self._apply(resource, manifest, manager, force, dryRun="All")):
                raise Invalid(NO_IMAGE_VOLUMES, code=422)
            self._keeps_image_volumes = True
        return await self._apply(resource, manifest, manager, force)

    async def apply_status(self, resource: Resource, manifest: Manifest, *, manager: str) -> dict[str, Any]:
        """Server-side apply of /status with force: the operator owns all of it."""
        return await self._apply(resource, manifest, manager, True, "status")

    async def _apply(
        self,
        resource: Resource,
        manifest: Manifest,
        manager: str,
        force: bool,
        subresource: str | None = None,
        **more: str,
    ) -> dict[str, Any]:
        metadata = manifest["metadata"]
        path = resource.path(metadata["namespace"], metadata["name"], subresource)
        params = {"fieldManager": manager, "force": "true" if force else "false", **more}
        return await self._write("patch", resource, path, body=manifest, params=params, content_type=APPLY)

    async def json_patch(
        self, resource: Resource, namespace: str, name: str, operations: list[dict[str, Any]], *, manager: str
    ) -> dict[str, Any]:
        """Change single fields, also fields that other managers own, which apply cannot."""
        path, params = resource.path(namespace, name), {"fieldManager": manager}
        return await self._write("patch", resource, path, body=operations, params=params, content_type=JSON_PATCH)

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, patch: Manifest, *, manager: str
    ) -> dict[str, Any]:
        """Change the fields of a patch. A uid in its metadata is a precondition."""
        path, params = resource.path(namespace, name), {"fieldManager": manager}
        return await self._write("patch", resource, path, body=patch, params=params, content_type=MERGE_PATCH)

    async def metadata_of(
        self, resource: Resource, namespace: str, name: str, *, manager: str
    ) -> dict[str, Any] | None:
        """Metadata of an object that may be changed but not read; None where it does not exist.

        Sends an empty apply as a dry run, by a manager that owns nothing, and asks for the metadata only.
        """
        empty = {"apiVersion": resource.api_version, "kind": resource.kind}
        answer = await self._write(
            "patch",
            resource,
            resource.path(namespace, name),
            body=empty | {"metadata": {"name": name, "namespace": namespace}},
            params={"fieldManager": manager, "force": "false", "dryRun": "All"},
            content_type=APPLY,
            accept=METADATA_OF_ONE,
        )
        metadata: dict[str, Any] = answer["metadata"]
        # The response to a dry run that would create the object has no resourceVersion.
        return metadata if metadata.get("resourceVersion") else None

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        propagation: str = "Background",
        grace: int | None = None,
    ) -> dict[str, Any] | None:
        """Delete the object with this uid; `grace` in seconds, None: the object's own grace period.

        Returns the object where finalizers keep it, None where it is gone.
        """
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": propagation,
            **({} if grace is None else {"gracePeriodSeconds": grace}),
        }
        try:
            answer = await self._write("delete", resource, resource.path(namespace, name), body=body)
        except NotFound:
            return None
        return answer if answer.get("kind") == resource.kind else None

    async def create(self, resource: Resource, manifest: Manifest) -> dict[str, Any]:
        """Create an object. AlreadyExists where the name is taken."""
        return await self._write("create", resource, resource.path(manifest["metadata"]["namespace"]), body=manifest)

    async def update(self, resource: Resource, manifest: Manifest) -> dict[str, Any]:
        """Replace an object. Conflict where its resourceVersion is not the manifest's."""
        path = resource.path(manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        return await self._write("update", resource, path, body=manifest)

    async def create_event(self, event: Manifest) -> None:
        """Create an Event in the namespace of its metadata."""
        await self.create(EVENT, event)

    async def _write(self, verb: str, resource: Resource, path: str, **options: Unpack[Options]) -> dict[str, Any]:
        options["timeout"] = self._time_to_write
        return await self._transport.request(verb, resource, path, **options)

    def _time_to_write(self) -> float:
        """Timeout of a write in seconds, so that it ends before another process can hold the Lease; NotLeader without
        one. Called before each attempt."""
        remaining = self._gate.remaining()
        if remaining <= 0:
            raise NotLeader("this process does not hold the lease: nothing was written")
        return min(REQUEST_TIMEOUT, remaining)


def _image_volumes(manifest: Manifest) -> set[str]:
    pod = ((manifest.get("spec") or {}).get("template") or {}).get("spec") or {}
    return {volume["name"] for volume in pod.get("volumes") or () if "image" in volume}


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
        """Events by pod name, or KIND/NAME of another object; None where they may not be listed. Other errors are
        raised."""
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
        kind, _, name = pod.rpartition("/")
        involved = f"involvedObject.kind={kind or 'Pod'},involvedObject.name={name}"
        listed = await self._kube.list_some(EVENT, namespace, field_selector=involved, limit=MOST_EVENTS)
        found = tuple(map(_short, listed))
        if len(self._kept) < _MOST_KEPT:
            self._kept[namespace, pod] = (now, found)
        return found


def _short(event: JSON) -> JSON:
    """The fields that are kept of an Event."""
    kept = {name: event[name] for name in ("reason", "series", "lastTimestamp", "eventTime") if name in event}
    return kept | {"message": str(event.get("message") or "")[:LONGEST_POD_MESSAGE]}
