"""The cluster's GPUs and free resources: nodes and pods are listed in pages, summed, and kept for some seconds."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from decimal import Decimal
from typing import Any, Protocol, TypeVar

from llmservice_operator.api.constants import SERVICE_LABEL
from llmservice_operator.api.errors import refusing
from llmservice_operator.kube.errors import Forbidden, Invalid
from llmservice_operator.kube.resources import POD, Resource
from llmservice_operator.planner.cluster import ClusterGPUs, NodeGroup
from llmservice_operator.planner.quantity import amount
from llmservice_operator.planner.room import Holder, NodeRoom, Placed, Room, amounts, plus, requests_of

JSON = Mapping[str, Any]
_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")

NODE = Resource("", "v1", "nodes", "Node")
RIGHT = "list nodes"
RIGHT_TO_PODS = "list pods in all namespaces"
KEPT_SECONDS = 10.0
"""Many services that are planned at once share one list."""
_MIB = 2**20
_MOST = 1_000_000
"""Of a resource on one node."""


class Lister(Protocol):
    """The operator's client, or the command line's."""

    def list_pages(
        self, resource: Resource, namespace: str | None, *, label_selector: str = ""
    ) -> AsyncIterator[dict[str, Any]]:
        """The list in pages, each as the API server sent it."""


class Nodes:
    """The nodes' GPUs, as of the last few seconds.

    `own` are the pods of all LLMServices, where all are watched: only other pods are listed then, so that an edit does
    not wait for thousands of known pods. `contained` handles an exception about one object, which is left out.
    """

    def __init__(
        self,
        kube: Lister,
        *,
        own: Callable[[], Iterable[Placed]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        contained: Callable[[str], AbstractContextManager[object]] = lambda what: nullcontext(),
    ) -> None:
        self._kube = kube
        self._own = own
        self._contained = contained
        self._clock = clock
        self._gpus: dict[tuple[str, str], tuple[float, ClusterGPUs]] = {}
        self._rooms: dict[str | None, tuple[float, Room]] = {}
        self._reading = asyncio.Lock()

    async def gpus(self, resource: str, node_selector: Mapping[str, str]) -> ClusterGPUs:
        """What schedulable nodes with these labels have of an extended resource, or the right that is missing.

        Other errors are raised.
        """
        labels = ",".join(f"{key}={value}" for key, value in sorted(node_selector.items()))
        return await self._kept_or_read(self._gpus, (resource, labels), lambda: self._read_gpus(resource, labels))

    async def room(self, resource: str | None) -> Room:
        """What is free on schedulable nodes, and who holds accelerators of this kind, or the right that is missing.

        Other errors are raised.
        """
        return await self._kept_or_read(self._rooms, resource, lambda: self._read_room(resource))

    async def _kept_or_read(self, kept: dict[_K, tuple[float, _T]], which: _K, read: Callable[[], Awaitable[_T]]) -> _T:
        async with self._reading:  # concurrent callers share one list
            now = self._clock()
            for old in [each for each, (read_at, _) in kept.items() if now - read_at >= KEPT_SECONDS]:
                del kept[old]
            if which not in kept:
                kept[which] = now, await read()
            return kept[which][1]

    async def _read_room(self, resource: str | None) -> Room:
        nodes: dict[str, NodeRoom] = {}

        def take_node(node: JSON) -> None:
            if not (node.get("spec") or {}).get("unschedulable"):
                nodes[node["metadata"]["name"]] = node_room(node)

        def take_pod(pod: JSON) -> None:
            if (placed := placed_of(pod)) is not None:
                _take(placed, nodes, resource)

        try:
            await self._each(NODE, "", take_node)
        except Forbidden:
            return Room(unknown=f"the operator has no right to {RIGHT}")
        try:
            await self._each(POD, "" if self._own is None else f"!{SERVICE_LABEL}", take_pod)
        except Forbidden:
            return Room(unknown=f"the operator has no right to {RIGHT_TO_PODS}")
        for placed in () if self._own is None else self._own():
            _take(placed, nodes, resource)
        return Room(tuple(nodes.values()))

    async def _read_gpus(self, resource: str, labels: str) -> ClusterGPUs:
        counts: Counter[NodeGroup] = Counter()
        try:
            await self._each(NODE, labels, lambda node: counts.update(filter(None, [group_of(node, resource)])))
        except Forbidden:
            return ClusterGPUs(missing_right=RIGHT)
        except Invalid:
            # No label is like this, so no node has it; the API server refuses such a Deployment with the reason.
            return ClusterGPUs()
        groups = (replace(group, nodes=nodes) for group, nodes in counts.items())
        return ClusterGPUs(tuple(sorted(groups, key=repr)))

    async def _each(self, resource: Resource, labels: str, take: Callable[[JSON], None]) -> None:
        async for page in self._kube.list_pages(resource, None, label_selector=labels):
            for item in page.get("items") or ():
                with self._contained(resource.kind.lower()):
                    take(item)


@functools.partial(refusing, "Node")
def group_of(node: JSON, resource: str) -> NodeGroup | None:
    """What one node has of a resource; None where it has none, or takes no pods."""
    spec = node.get("spec") or {}
    per_node = _count((node.get("status") or {}).get("allocatable") or {}, resource)
    if spec.get("unschedulable") or per_node <= 0:
        return None
    labels = node["metadata"].get("labels") or {}
    return NodeGroup(
        product=_product(labels),
        per_node=per_node,
        memory_mib=_memory_mib(labels, resource),
        capability=_capability(labels),
        is_amd="amd.com/gpu.product-name" in labels,
        taints=tuple(sorted(_taints(spec))),
    )


@functools.partial(refusing, "Node")
def node_room(node: JSON) -> NodeRoom:
    """An empty node."""
    labels = node["metadata"].get("labels") or {}
    return NodeRoom(
        name=node["metadata"]["name"],
        product=_product(labels),
        allocatable=amounts((node.get("status") or {}).get("allocatable") or {}),
        taints=tuple(sorted(_taints(node.get("spec") or {}))),
        labels=labels,
    )


def owner_of(pod: JSON) -> tuple[str, str]:
    """(namespace, name) of the LLMService that a pod serves, else of what controls it, else of the pod itself."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    controller = next((r["name"] for r in metadata.get("ownerReferences") or () if r.get("controller")), None)
    return metadata["namespace"], labels.get(SERVICE_LABEL) or controller or metadata["name"]


@functools.partial(refusing, "Pod")
def placed_of(pod: JSON) -> Placed | None:
    """None of one that has no node, or has ended: that asks for nothing any more."""
    node = (pod.get("spec") or {}).get("nodeName")
    if not node or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return None
    return Placed(node, requests_of(pod["spec"]), *owner_of(pod))


def _take(pod: Placed, nodes: dict[str, NodeRoom], resource: str | None) -> None:
    """Count a pod in where it is."""
    node = nodes.get(pod.node)
    if node is None:
        return
    count = int(pod.asked.get(resource or "", 0))
    holders = (*node.holders, Holder(pod.namespace, pod.owner, count)) if count else node.holders
    nodes[node.name] = replace(node, used=plus(node.used, pod.asked), holders=holders)


def _product(labels: JSON) -> str | None:
    return labels.get("nvidia.com/gpu.product") or labels.get("amd.com/gpu.product-name")


def _count(allocatable: JSON, resource: str) -> int:
    try:
        return int(min(amount(str(allocatable.get(resource, "0"))), Decimal(_MOST)))
    except ValueError:
        return 0


def _memory_mib(labels: JSON, resource: str) -> float | None:
    """A MIG slice has labels under its resource's own name; AMD's label is a quantity such as 192G."""
    for label in (f"{resource}.memory", "nvidia.com/gpu.memory"):
        if str(labels.get(label, "")).isdecimal():
            return float(labels[label])
    vram = labels.get("amd.com/gpu.vram")
    if vram is None:
        return None
    try:
        return float(amount(f"{vram}i" if str(vram)[-1:] in ("M", "G", "T") else vram) / _MIB)
    except ValueError:
        return None


def _capability(labels: JSON) -> tuple[int, int] | None:
    major, minor = (str(labels.get(f"nvidia.com/gpu.compute.{part}", "")) for part in ("major", "minor"))
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _taints(spec: JSON) -> Iterator[tuple[str, str, str]]:
    for taint in spec.get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute"):
            yield str(taint.get("key", "")), str(taint.get("value") or ""), str(taint["effect"])
