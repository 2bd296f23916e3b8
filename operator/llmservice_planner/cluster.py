"""The cluster's GPUs as a value: readers/nodes.py reads it, pick.py chooses from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Self

from llmservice_api.engine import Parallelism

from llmservice_planner import gpus
from llmservice_planner.plan import Device, Fit
from llmservice_planner.quantity import amount, count
from llmservice_planner.room import SHARED, NodeRoom, Sharing, profile_of, tolerates, toleration

Json = Mapping[str, Any]
Taints = tuple[tuple[str, str, str], ...]
"""(key, value, effect) of each."""

_MIB = 2**20
_MOST, _MOST_MIB = 1_000_000, 10**12
"""Limits: accelerators of one node, and memory of one GPU."""
IMAGES = "amd64"
"""The architecture of the operator's image and the chart's default images."""
ARCHITECTURE = "kubernetes.io/arch"
MOST_TAINTS = 4
"""Of one node, in a remedy."""
TRANSIENT_TAINTS = "node.kubernetes.io/"
"""Set by Kubernetes for transient conditions; they do not affect a verdict."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes with equal properties for one kind of accelerator."""

    product: str | None
    """Value of the node label that names the GPU; None: no label."""
    per_node: int
    """Allocatable accelerators of one node."""
    nodes: int = 1
    memory_mib: float | None = None
    """Of one GPU, by its label; of a MIG slice without a label by its profile."""
    capability: tuple[int, int] | None = None
    is_amd: bool = False
    architecture: str = IMAGES
    """Of the CPUs, by Kubernetes' label."""
    taints: tuple[tuple[str, str, str], ...] = ()
    """(key, value, effect) of taints that keep pods away."""
    sharing: Sharing | None = None
    """None: each pod has its own accelerators."""


@dataclass(frozen=True, slots=True)
class ClusterGPUs:
    """GPUs of the nodes that a service's pods may use."""

    groups: tuple[NodeGroup, ...] = ()
    missing_right: str | None = None
    """The missing permission, if nodes could not be read."""
    not_listed: str | None = None
    """Why no nodes were listed for another reason, as a clause."""

    @classmethod
    def of(cls, nodes: Iterable[NodeRoom], resource: str) -> Self:
        counts = Counter(filter(None, (group_of(node, resource) for node in nodes)))
        groups = (replace(group, nodes=number) for group, number in counts.items())
        return cls(tuple(sorted(groups, key=repr)))

    @property
    def unread(self) -> str | None:
        """Why nodes are unknown, as a clause; None: they were listed."""
        return f"the operator has no right to {self.missing_right}" if self.missing_right else self.not_listed


@dataclass(frozen=True, slots=True)
class Offer:
    """A product that nodes have."""

    product: str | None
    device: Device | None
    """None: neither labels nor the catalogue have its memory."""
    per_node: int
    """Maximum on one node."""
    sharing: Sharing | None = None
    """Of nodes with this product that share devices; None: each pod has its own."""
    devices: int = 0
    """Devices of a node that shares them, regardless of pods per device."""
    whole: int = 0
    """Maximum on one node without sharing."""


def group_of(node: NodeRoom, resource: str) -> NodeGroup | None:
    per_node = int(min(node.allocatable.get(resource, Decimal(0)), Decimal(_MOST)))
    if per_node <= 0:
        return None
    return NodeGroup(
        product=node.product_of(resource),
        per_node=per_node,
        memory_mib=_memory_mib(node.labels, resource),
        capability=_capability(node.labels),
        is_amd="amd.com/gpu.product-name" in node.labels,
        architecture=node.labels.get(ARCHITECTURE, IMAGES),
        taints=node.taints,
        sharing=node.sharing(resource),
    )


def offers(cluster: ClusterGPUs, tolerations: Sequence[Json]) -> tuple[Offer, ...]:
    """Each product on nodes with tolerated taints, the smallest first."""
    found: dict[str | None, Offer] = {}
    for group in _reachable(cluster, tolerations):
        known, other = found.get(group.product), _offer(group)
        found[group.product] = other if known is None else _combined(known, other)
    return tuple(sorted(found.values(), key=_size))


def device_of(group: NodeGroup) -> Device | None:
    """The catalogue has what the driver reports; the label includes memory that the driver reserves."""
    if group.product is None:
        return None
    if group.memory_mib is not None:
        device: Device | None = gpus.from_label_mib(group.product, group.memory_mib)
    else:
        device = gpus.device(group.product)
    if group.sharing is not None and group.sharing.has_own_memory:
        if device is None or group.sharing.pods is None:
            return None
        device = replace(device, memory_gib=device.memory_gib / group.sharing.pods)
    if device is None:
        return None
    capability = device.capability or group.capability
    return replace(device, capability=capability, is_amd=device.is_amd or group.is_amd)


def _offer(group: NodeGroup) -> Offer:
    if group.sharing is None:
        return Offer(group.product, device_of(group), group.per_node, whole=group.per_node)
    devices = group.per_node // (group.sharing.pods or group.per_node)
    return Offer(group.product, device_of(group), group.per_node, group.sharing, devices)


def _combined(one: Offer, other: Offer) -> Offer:
    """Two pools of one product combined: pods may be scheduled to the smaller."""
    whole = max(one.whole, other.whole)
    shared = [offer for offer in (one, other) if offer.sharing is not None]
    if not shared:
        return replace(one, per_node=whole, whole=whole)
    least = min(shared, key=lambda offer: (_memory(offer), offer.devices))
    smaller = min(one, other, key=_memory)
    return replace(least, device=smaller.device, per_node=max(least.per_node, whole), whole=whole)


def _memory(offer: Offer) -> float:
    return 0.0 if offer.device is None else offer.device.memory_gib


def is_part(product: str, groups: Iterable[NodeGroup]) -> bool:
    """Whether a pod gets a part of a GPU: several parts are not several GPUs."""
    is_shared = any(group.sharing is not None for group in groups if group.product == product)
    return is_shared or gpus.is_slice(product) or product.endswith("-SHARED")


def why_not_several(product: str, offer: Offer | None, count: int) -> tuple[Fit, str] | None:
    """Why a pod that requests several of these gets fewer GPUs, or may; None: it gets as many.

    `offer`: None where no node has the product now.
    """
    if count < 2:
        return None
    if gpus.is_slice(product):
        return Fit.DOES_NOT_FIT, f"a replica needs {count} GPUs, and a process sees only one MIG slice"
    by_name = Sharing(None, has_own_memory=False) if product.endswith("-SHARED") else None
    sharing = by_name if offer is None else offer.sharing
    if sharing is None:
        return None
    if offer is not None and offer.whole >= count:
        return (
            Fit.UNKNOWN,
            f"a replica needs {count} GPUs, and some nodes share theirs: a pod may get shares of one GPU",
        )
    if sharing.has_own_memory:
        return Fit.DOES_NOT_FIT, f"a replica needs {count} GPUs, and MPS gives one share a pod"
    if offer is not None and offer.devices < count:
        some = f"{offer.devices} GPU{'s' if offer.devices > 1 else ''}"
        return Fit.DOES_NOT_FIT, f"a replica needs {count} GPUs, and its shares are of no more than {some} of a node"
    return Fit.UNKNOWN, f"a replica needs {count} GPUs, and what a pod gets may be shares of one GPU (time slicing)"


def _size(offer: Offer) -> tuple[float, tuple[int, int], str]:
    if offer.device is None:
        return (float("inf"), (0, 0), offer.product or "")
    return (offer.device.memory_gib, offer.device.capability or (0, 0), offer.device.name)


def on_enough_nodes(cluster: ClusterGPUs, tolerations: Sequence[Json], gpus: int, nodes: int) -> frozenset[str | None]:
    """Products of which as many nodes as a replica takes have so many GPUs each; None: nodes without a label."""
    there = Counter[str | None]()
    for group in _reachable(cluster, tolerations):
        if group.sharing is None and group.per_node >= gpus:
            there[group.product] += group.nodes
    return frozenset(product for product, count in there.items() if count >= nodes)


def fewest_nodes(
    parallelism: Parallelism, cluster: ClusterGPUs, tolerations: Sequence[Json], products: Collection[str]
) -> int:
    """The fewest nodes with one product (of these, if any are named) that have the GPUs of a replica, an equal share
    each. Where there are too few nodes: by the most GPUs of one; without any: by those of usual machines."""
    shares = {number: parallelism.accelerators // number for number in parallelism.possible_nodes}
    for number, share in shares.items():
        there = on_enough_nodes(cluster, tolerations, share, number)
        if there.intersection(products) if products else there:
            return number
    for number, share in shares.items():
        there = on_enough_nodes(cluster, tolerations, share, 1)
        if there.intersection(products) if products else there:
            return number
    return parallelism.node_count


def tolerations_missing(
    cluster: ClusterGPUs, tolerations: Sequence[Json], count: int, product: str | None = None
) -> str:
    """Missing tolerations for the nearest nodes with enough GPUs (of this product) behind taints, in YAML.

    Empty if there are none.
    """
    lacking = (
        tuple(taint for taint in _lasting(group.taints) if not tolerates(taint, tolerations))
        for group in cluster.groups
        if group.per_node >= count and product in (None, group.product)
    )
    nearest = min(filter(None, lacking), key=lambda taints: (len(taints), taints), default=())
    return ", ".join(map(toleration, nearest)) if len(nearest) <= MOST_TAINTS else "one for each of their taints"


def _lasting(taints: Taints) -> Taints:
    return tuple(taint for taint in taints if not taint[0].startswith(TRANSIENT_TAINTS))


def is_reachable(taints: Taints, tolerations: Sequence[Json]) -> bool:
    """Whether pods with these tolerations may go to nodes with these taints, transient ones aside."""
    return all(tolerates(taint, tolerations) for taint in _lasting(taints))


def _reachable(cluster: ClusterGPUs, tolerations: Sequence[Json]) -> Iterator[NodeGroup]:
    for group in cluster.groups:
        if group.per_node > 0 and is_reachable(group.taints, tolerations):
            yield group


def _memory_mib(labels: Mapping[str, str], resource: str) -> float | None:
    """A MIG slice has labels under its resource's name; AMD's label is a quantity such as 192G."""
    profile = profile_of(resource)
    for label in (f"{resource.removesuffix(SHARED)}.memory", *(() if profile else ("nvidia.com/gpu.memory",))):
        if (mib := count(labels.get(label, ""), _MOST_MIB)) is not None:
            return float(mib)
    if profile is not None:
        gib = gpus.slice_gib(profile)
        return None if gib is None else gib * 1024
    vram = labels.get("amd.com/gpu.vram")
    if vram is None:
        return None
    try:
        return float(amount(f"{vram}i" if vram[-1:] in ("M", "G", "T") else vram) / _MIB)
    except ValueError:
        return None


def _capability(labels: Mapping[str, str]) -> tuple[int, int] | None:
    major, minor = (count(labels.get(f"nvidia.com/gpu.compute.{part}", ""), _MOST) for part in ("major", "minor"))
    return None if major is None or minor is None else (major, minor)
