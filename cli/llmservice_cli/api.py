"""The commands' requests: the operator's client, with the calls that only commands make, and lists that go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from kubeloop.client import AlwaysOpen, KubeClient
from kubeloop.errors import Gone, NotFound, ServerError, TooManyRequests, Unreachable, from_status
from kubeloop.resources import POD, Resource, proxy_path
from kubeloop.transport import Transport, object_of

FIELD_MANAGER = USER_AGENT = "llmservice-cli"
MERGE_PATCH = "application/merge-patch+json"
MOST_PROXIED = 16 * 2**20
"""Bytes of a pod's answer."""

Json = dict[str, Any]


def status_of(found: Json) -> Json:
    """The status of an object, empty where there is none yet."""
    status: Json = found.get("status") or {}
    return status


def nodes_of(service: Json) -> int:
    """Of a replica of an LLMService; `auto` as its status has it."""
    stated, effective = service.get("spec") or {}, status_of(service).get("effective") or {}
    found = ((each.get("parallelism") or {}).get("nodes") for each in (stated, effective))
    return next((nodes for nodes in found if isinstance(nodes, int)), 1)


def labels_of(found: Json) -> Mapping[str, str]:
    """The labels of an object."""
    labels: Mapping[str, str] = found["metadata"].get("labels") or {}
    return labels


def name_of(found: Json) -> str:
    """The name of an object, with its namespace where it has one."""
    metadata = found["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


def container_statuses(pod: Json) -> Iterator[Json]:
    """Of all containers of a pod, init containers first."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        yield from status_of(pod).get(kind) or ()


class Api(KubeClient):
    """One API server. Failures are those of kube.errors."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport, AlwaysOpen())

    # Reads

    async def list_all(self, resource: Resource, namespace: str | None, *, label_selector: str = "") -> list[Json]:
        """The items of one namespace, or of all, read in pages."""
        pages = self.list_pages(resource, namespace, label_selector=label_selector)
        return [item async for page in pages for item in page.get("items") or ()]

    async def list_selected(self, resource: Resource, namespace: str | None, selector: Mapping[str, str]) -> Json:
        """A list with the resourceVersion from which `selected_events` goes on. `selector` is what the API server
        takes: labelSelector, fieldSelector, limit; empty: all."""
        return await self._transport.request("list", resource, resource.path(namespace), params=dict(selector))

    async def selected_events(
        self,
        resource: Resource,
        namespace: str | None,
        selector: Mapping[str, str],
        *,
        since: str,
        seconds: int,
        silence: float,
    ) -> AsyncGenerator[Json, None]:
        """The events of a watch until the server ends it, which it is asked to do after `seconds`.

        Unreachable where it breaks off, or sends nothing for `silence` seconds.
        """
        path = resource.path(namespace)
        params = {
            **selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(seconds),
        }
        async for line in self._transport.lines(resource, path, params=params, silence=silence):
            yield await object_of(line, f"watch {path}")

    async def proxied(
        self, resource: Resource, namespace: str, name: str, port: int, path: str, *, max_bytes: int = MOST_PROXIED
    ) -> str:
        """The answer of a pod or Service to GET on `port`, through the API server; `path` starts with a slash.
        Unreachable where it has more than `max_bytes` bytes."""
        whole = proxy_path(resource, namespace, name, port) + path
        body = await self._transport.read("get", resource, whole, accept="*/*", max_bytes=max_bytes)
        return body.decode(errors="replace")

    async def version(self) -> Json:
        """What the API server says of its own version: `gitVersion` and others."""
        return await self._transport.request("get", Resource("", "v1", "version", "Version"), "/version")

    async def cluster_object(self, resource: Resource, name: str) -> Json | None:
        """The live object of a kind without namespaces, or None where there is none."""
        try:
            return await self._transport.request("get", resource, resource.path(None, name))
        except NotFound:
            return None

    async def review(self, resource: Resource, spec: Mapping[str, Any]) -> Json:
        """The status of a review, such as a SelfSubjectAccessReview, which is stored nowhere; its creationTimestamp
        is the API server's clock."""
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        return await self._transport.request("create", resource, resource.path(None), body=body)

    async def log_tail(
        self, namespace: str, pod: str, container: str, *, previous: bool, lines: int, max_bytes: int
    ) -> str:
        """The last lines of a container's log, at most `max_bytes` of them; `previous`: of the one that ended before.
        Unreachable where the API server sends more."""
        params = {
            "container": container,
            "previous": "true" if previous else "false",
            "tailLines": str(lines),
            "limitBytes": str(max_bytes),
            "timestamps": "true",
        }
        path = POD.path(namespace, pod, "log")
        body = await self._transport.read("get", POD, path, params=params, accept="*/*", max_bytes=max_bytes)
        return body.decode(errors="replace")

    def log_chunks(
        self, namespace: str, pod: str, params: Mapping[str, str], *, silence: float | None
    ) -> AsyncGenerator[bytes]:
        """A container's log as it comes, with or without its end. Unreachable where it breaks off, or nothing comes for
        `silence` seconds; KubeError."""
        path = POD.path(namespace, pod, "log")
        return self._transport.chunks("get", POD, path, params=params, silence=silence, accept="*/*")

    # Writes

    async def token_for(self, resource: Resource, namespace: str, name: str, seconds: int) -> Json:
        """The TokenRequest of a service account, with a token in its status that ends after `seconds`."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        path = resource.path(namespace, name, "token")
        return await self._transport.request("create", resource, path, body=body)

    async def create(self, resource: Resource, manifest: Mapping[str, Any]) -> Json:
        """A plain create: an apply would need the right to patch, too."""
        path = resource.path(manifest["metadata"]["namespace"])
        return await self._transport.request("create", resource, path, body=manifest)

    async def merge(self, resource: Resource, namespace: str, name: str, change: Mapping[str, Any]) -> Json:
        """A merge patch: these fields and no others. A field that the kind does not have is an error, not dropped."""
        return await self._transport.request(
            "patch",
            resource,
            resource.path(namespace, name),
            params={"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"},
            body=change,
            content_type=MERGE_PATCH,
        )


WATCH_SECONDS = 300
"""After which the API server is asked to end a watch; the list after it shows a change that got lost."""
SILENCE = 90.0
"""Seconds without a bookmark after which a watch is taken for dead."""
PAUSE = 1.0
Objects = Mapping[str, Json]
"""By uid: a name may come back."""


async def versions(
    kube: Api, resource: Resource, namespace: str | None, selector: Mapping[str, str], warn: Callable[[str], None]
) -> AsyncGenerator[Objects]:
    """All that the selector selects, for ever. An API server that answered once may fail for a while."""
    has_answered = False
    while True:
        try:
            async with aclosing(_once(kube, resource, namespace, selector)) as found:
                async for objects in found:
                    has_answered = True
                    yield objects
        except (ServerError, TooManyRequests, Unreachable) as error:
            if not has_answered:
                raise
            warn(error.message)
        except Gone:
            pass  # the list is read anew
        await asyncio.sleep(PAUSE)


async def _once(
    kube: Api, resource: Resource, namespace: str | None, selector: Mapping[str, str]
) -> AsyncGenerator[Objects]:
    """Until the API server ends the watch."""
    listed = await kube.list_selected(resource, namespace, selector)
    objects: dict[str, Json] = {one["metadata"]["uid"]: one for one in listed.get("items") or ()}
    yield dict(objects)
    since = str(listed["metadata"]["resourceVersion"])
    watched = kube.selected_events(resource, namespace, selector, since=since, seconds=WATCH_SECONDS, silence=SILENCE)
    async with aclosing(watched) as events:
        async for event in events:
            kind, found = event["type"], event["object"]
            if kind == "ERROR":
                raise from_status(int(found.get("code") or 500), found, right=f"watch {resource.full_name}")
            if kind == "DELETED":
                objects.pop(found["metadata"]["uid"], None)
            elif kind in ("ADDED", "MODIFIED"):
                objects[found["metadata"]["uid"]] = found
            else:
                continue
            yield dict(objects)
