"""The cluster's GPUs as a value: kube/nodes.py reads it, pick.py chooses from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmservice_operator.planner import gpus
from llmservice_operator.planner.plan import Device
from llmservice_operator.planner.room import tolerates

Json = Mapping[str, Any]

TRANSIENT_TAINTS = "node.kubernetes.io/"
"""Kubernetes puts these on nodes with a transient condition; they change no verdict."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are alike as far as one kind of accelerator goes."""

    product: str | None
    """Value of the node label that names the GPU; None: the label is not there."""
    per_node: int
    """Allocatable accelerators of one node."""
    nodes: int = 1
    memory_mib: float | None = None
    """Of one GPU, by its label."""
    capability: tuple[int, int] | None = None
    is_amd: bool = False
    taints: tuple[tuple[str, str, str], ...] = ()
    """(key, value, effect) of those that keep pods away."""


@dataclass(frozen=True, slots=True)
class ClusterGPUs:
    """What the nodes have that a service's pods may go to."""

    groups: tuple[NodeGroup, ...] = ()
    missing_right: str | None = None
    """The operator's right without which nothing could be read."""
    not_listed: str | None = None
    """Why no nodes were listed, as a clause, where it is not for the operator's rights."""

    @property
    def unread(self) -> str | None:
        """Why nothing is known of the nodes, as a clause; None: they were listed."""
        return f"the operator has no right to {self.missing_right}" if self.missing_right else self.not_listed


@dataclass(frozen=True, slots=True)
class Offer:
    """A product that nodes have."""

    product: str | None
    device: Device | None
    """None: neither its labels nor the catalogue say how much memory it has."""
    per_node: int
    """The most that one node has."""


def offers(cluster: ClusterGPUs, tolerations: Sequence[Json]) -> tuple[Offer, ...]:
    """Each product on nodes whose taints the pods tolerate, the smallest first."""
    found: dict[str | None, Offer] = {}
    for group in _reachable(cluster, tolerations):
        known = found.get(group.product)
        if known is None:
            found[group.product] = Offer(group.product, device_of(group), group.per_node)
        else:
            found[group.product] = replace(known, per_node=max(known.per_node, group.per_node))
    return tuple(sorted(found.values(), key=_size))


def device_of(group: NodeGroup) -> Device | None:
    """The catalogue knows what a driver reports; the label counts memory that the driver keeps for itself."""
    if group.product is None:
        return None
    if group.memory_mib is not None:
        device: Device | None = gpus.from_label_mib(group.product, group.memory_mib)
    else:
        device = gpus.device(group.product)
    if device is None:
        return None
    capability = device.capability or group.capability
    return replace(device, capability=capability, is_amd=device.is_amd or group.is_amd)


def _size(offer: Offer) -> tuple[float, tuple[int, int], str]:
    if offer.device is None:
        return (float("inf"), (0, 0), offer.product or "")
    return (offer.device.memory_gib, offer.device.capability or (0, 0), offer.device.name)


def _reachable(cluster: ClusterGPUs, tolerations: Sequence[Json]) -> Iterator[NodeGroup]:
    for group in cluster.groups:
        lasting = (taint for taint in group.taints if not taint[0].startswith(TRANSIENT_TAINTS))
        if group.per_node > 0 and all(tolerates(taint, tolerations) for taint in lasting):
            yield group
