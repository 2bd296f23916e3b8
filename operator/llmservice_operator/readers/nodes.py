"""The cluster's GPUs and free resources: lists nodes and pods in pages, sums them, and caches the result for
seconds. Likewise the ResourceQuotas of a namespace.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kubeloop.client import KubeClient
from kubeloop.errors import Forbidden, Invalid, NotFound
from kubeloop.resources import POD, RESOURCE_QUOTA, Resource
from llmservice_api.constants import SERVICE_LABEL
from llmservice_api.errors import checked_reader
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.devices import ClusterDevices, DeviceSlice
from llmservice_planner.room import NodeRoom, PlacedPod, Quota, Room, amounts, requests_of, with_pods

JSON = Mapping[str, Any]
_T = TypeVar("_T")

NODE = Resource("", "v1", "nodes", "Node")
RESOURCE_SLICE = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice")
RIGHT = "list nodes"
RIGHT_TO_SLICES = f"list {RESOURCE_SLICE.full_name}"
RIGHT_TO_PODS = "list pods in all namespaces"
KEPT_SECONDS = 10.0
"""Seconds: many services that are planned at once share one list."""


class Lister(Protocol):
    """The operator's client, or the command line's."""

    def list_pages(
        self, resource: Resource, namespace: str | None, *, label_selector: str = ""
    ) -> AsyncIterator[dict[str, Any]]:
        """The pages of a list, as the API server sent them."""


@dataclass(frozen=True)
class _Listed:
    """The nodes of one list, and results that were computed from it."""

    read_at: float
    nodes: tuple[NodeRoom, ...] = ()
    is_forbidden: bool = False
    gpus: dict[str, ClusterGPUs] = field(default_factory=dict)
    """By resource."""
    rooms: dict[str | None, Room] = field(default_factory=dict)
    """By resource."""


class Nodes:
    """GPUs and free resources of the nodes, cached for some seconds.

    `own` returns the pods of all LLMServices, if all are watched: then only other pods are listed, so that an edit does
    not wait for thousands of known pods. `contained` handles an exception about one object, which is skipped.
    """

    def __init__(
        self,
        kube: Lister,
        *,
        own: Callable[[], Iterable[PlacedPod]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        contained: Callable[[str], AbstractContextManager[object]] = lambda what: nullcontext(),
    ) -> None:
        self._kube = kube
        self._own = own
        self._contained = contained
        self._clock = clock
        self._listed: dict[str, _Listed] = {}
        """By node selector: a service for other nodes does not wait until this list expires."""
        self._published: tuple[float, tuple[DeviceSlice, ...] | str] | None = None
        """ResourceSlices, with the time of the read."""
        self._reading = asyncio.Lock()

    async def gpus(self, resource: str, node_selector: Mapping[str, str]) -> ClusterGPUs:
        """GPUs of an extended resource on schedulable nodes with these labels, or the missing permission.

        Other errors are raised.
        """
        labels = ",".join(f"{key}={value}" for key, value in sorted(node_selector.items()))
        async with self._reading:  # concurrent callers share one list
            listed = await self._nodes(labels)
            if listed.is_forbidden:
                return ClusterGPUs(missing_right=RIGHT)
            if resource not in listed.gpus:
                listed.gpus[resource] = ClusterGPUs.of(listed.nodes, resource)
            return listed.gpus[resource]

    async def devices(self, driver: str, device_class: str, node_selector: Mapping[str, str]) -> ClusterDevices:
        """Devices that a claim of this class may get on schedulable nodes with these labels, or why they are not known.

        Other errors are raised.
        """
        labels = ",".join(f"{key}={value}" for key, value in sorted(node_selector.items()))
        async with self._reading:
            listed = await self._nodes(labels)
            if listed.is_forbidden:
                return ClusterDevices(unread=f"the operator has no right to {RIGHT}")
            slices = await self._slices()
            if isinstance(slices, str):
                return ClusterDevices(unread=slices)
            return ClusterDevices.of(slices, listed.nodes, driver, device_class)

    async def room(self, resource: str | None) -> Room:
        """Free resources of schedulable nodes, and which pods hold accelerators of this kind, or the missing
        permission.

        Other errors are raised.
        """
        async with self._reading:
            listed = await self._nodes("")
            if listed.is_forbidden:
                return Room(unknown=f"the operator has no right to {RIGHT}")
            if resource not in listed.rooms:
                listed.rooms[resource] = await self._read_room(listed.nodes, resource)
            return listed.rooms[resource]

    def forget(self, before: float) -> None:
        """Drop what was read before this time of the clock."""
        self._listed = {labels: listed for labels, listed in self._listed.items() if listed.read_at > before}

    async def _slices(self) -> tuple[DeviceSlice, ...] | str:
        """Those of devices of one node, or why there are none, as a clause."""
        now = self._clock()
        if self._published is None or now - self._published[0] >= KEPT_SECONDS:
            found: tuple[DeviceSlice, ...] | str
            try:
                found = tuple(await self._each(RESOURCE_SLICE, "", device_slice))
            except Forbidden:
                found = f"the operator has no right to {RIGHT_TO_SLICES}"
            except NotFound:
                found = f"the cluster has no {RESOURCE_SLICE.full_name} of {RESOURCE_SLICE.api_version}"
            self._published = now, found
        return self._published[1]

    async def _nodes(self, labels: str) -> _Listed:
        now = self._clock()
        self._listed = {each: old for each, old in self._listed.items() if now - old.read_at < KEPT_SECONDS}
        if labels not in self._listed:
            try:
                listed = _Listed(now, tuple(await self._each(NODE, labels, node_room)))
            except Forbidden:
                listed = _Listed(now, is_forbidden=True)
            except Invalid:
                # An invalid label is on no node; the API server refuses such a Deployment with the reason.
                listed = _Listed(now)
            self._listed[labels] = listed
        return self._listed[labels]

    async def _read_room(self, nodes: Iterable[NodeRoom], resource: str | None) -> Room:
        try:
            placed = await self._each(POD, "" if self._own is None else f"!{SERVICE_LABEL}", placed_of)
        except Forbidden:
            return Room(unknown=f"the operator has no right to {RIGHT_TO_PODS}")
        return Room(with_pods(nodes, itertools.chain(placed, () if self._own is None else self._own()), resource))

    async def _each(self, resource: Resource, labels: str, read: Callable[[JSON], _T | None]) -> list[_T]:
        found = []
        async for page in self._kube.list_pages(resource, None, label_selector=labels):
            for item in page.get("items") or ():
                with self._contained(resource.kind.lower()):
                    if (one := read(item)) is not None:
                        found.append(one)
        return found


@functools.partial(checked_reader, "Node")
def node_room(node: JSON) -> NodeRoom | None:
    """A node without pods; None if it takes none."""
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        return None
    labels = {str(key): str(value) for key, value in (node["metadata"].get("labels") or {}).items()}
    return NodeRoom(
        name=str(node["metadata"]["name"]),
        product=labels.get("nvidia.com/gpu.product") or labels.get("amd.com/gpu.product-name"),
        allocatable=amounts((node.get("status") or {}).get("allocatable") or {}),
        taints=tuple(sorted(_taints(spec))),
        labels=labels,
    )


device_slice = functools.partial(checked_reader, RESOURCE_SLICE.kind)(DeviceSlice.from_object)
"""A ResourceSlice; None for devices that are not of one node."""


def owner_of(pod: JSON) -> tuple[str, str]:
    """(namespace, name) of a pod's LLMService, else of its controller, else of the pod itself."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    controller = next((r["name"] for r in metadata.get("ownerReferences") or () if r.get("controller")), None)
    return metadata["namespace"], labels.get(SERVICE_LABEL) or controller or metadata["name"]


@functools.partial(checked_reader, "Pod")
def placed_of(pod: JSON) -> PlacedPod | None:
    """None for a pod without a node, or one that has ended and requests nothing."""
    node = (pod.get("spec") or {}).get("nodeName")
    if not node or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return None
    return PlacedPod(node, requests_of(pod["spec"]), *owner_of(pod))


def _taints(spec: JSON) -> Iterator[tuple[str, str, str]]:
    for taint in spec.get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute"):
            yield str(taint.get("key", "")), str(taint.get("value") or ""), str(taint["effect"])


QUOTAS_KEPT_SECONDS = 2.0
"""Seconds: services of one namespace that ask at about the same time share one list."""
REFUSED_SECONDS = 300.0
"""Seconds until the next try after a missing permission: each try is an entry of the audit log."""
MOST_QUOTAS = 100
"""Of a namespace; further ones are ignored."""


class QuotaReader:
    """ResourceQuotas that apply to all pods of a namespace, cached for KEPT_SECONDS."""

    def __init__(self, kube: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._clock = kube, clock
        self._kept: dict[str, tuple[float, tuple[Quota, ...]]] = {}
        """By namespace: expiry and quotas, empty without permission."""

    async def of(self, namespace: str) -> tuple[Quota, ...]:
        """The quotas; empty where they may not be listed. Other errors are raised."""
        now = self._clock()
        self._kept = {where: kept for where, kept in self._kept.items() if kept[0] > now}
        if namespace in self._kept:
            return self._kept[namespace][1]
        try:
            listed = await self._kube.list_some(RESOURCE_QUOTA, namespace, field_selector="", limit=MOST_QUOTAS)
        except Forbidden:
            self._kept[namespace] = now + REFUSED_SECONDS, ()
            return ()
        found = tuple(quota for quota in map(Quota.from_object, listed) if quota is not None)
        self._kept[namespace] = now + QUOTAS_KEPT_SECONDS, found
        return found
