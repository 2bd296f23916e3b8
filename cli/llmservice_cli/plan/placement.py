"""Where replicas of a plan would run now: what is free by node, by the operator's arithmetic (llmservice_planner.room).

The scheduler has the last word: what pods want of each other and where volumes are is not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmservice_operator.facts.scheduling import AcceleratorRequest, gpus_text
from llmservice_planner.cluster import ARCHITECTURE, device_of, group_of
from llmservice_planner.quotas import Admitted, Quota, least_admitted
from llmservice_planner.room import (
    PODS,
    Amounts,
    NodeRoom,
    Room,
    fitting,
    fitting_on_separate_devices,
    nodes_for,
    requests_of,
    tolerates,
)
from llmservice_runtime.bounded_json import clean

Json = Mapping[str, Any]

MOST_NODES = 500
"""That an answer lists."""
MOST_LINES = 20
"""That a screen lists."""
_LABELS = "its labels do not match the node selector or the affinity"


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node that has accelerators of the kind; on CPUs, any node."""

    name: str
    product: str | None
    accelerators: int
    free: int
    replicas: int
    """For how many more there is room."""
    why_not: str | None = None
    """A clause, where there is none."""

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "product": self.product,
            "accelerators": self.accelerators,
            "free": self.free,
            "replicas": self.replicas,
            "reason": self.why_not,
        }


@dataclass(frozen=True, slots=True)
class Placement:
    """Room in the cluster for one service."""

    product: str | None
    """That the pods would be bound to or prefer, or that the plan is of."""
    resource: str | None
    nodes: tuple[NodePlace, ...] = ()
    """Those with the most room first."""
    asked: int = 1
    """Replicas that the spec asks for."""
    is_planned: bool = True
    """The plan does not rule it out."""
    quota: Admitted | None = None
    reason: str | None = None
    """Why there is no room, as a sentence."""
    unknown: str | None = None
    """Why it is not known what is free, as a clause."""
    is_required: bool = True
    """The pods go to nodes with the product only."""

    @property
    def replicas(self) -> int | None:
        """For how many there is room now; None: not known."""
        if self.unknown is not None:
            return None
        on_nodes = sum(node.replicas for node in self.nodes)
        return on_nodes if self.quota is None else min(on_nodes, self.quota.replicas)

    @property
    def lacks_room(self) -> bool:
        """A plan that fits, and no place for it now."""
        return self.is_planned and self.replicas == 0

    def document(self) -> dict[str, Any]:
        """For programs."""
        quota = self.quota and {"name": self.quota.quota, "key": self.quota.key, "replicas": self.quota.replicas}
        return {
            "fitsNow": None if self.replicas is None else self.is_planned and self.replicas > 0,
            "product": self.product,
            "resource": self.resource,
            "replicas": self.replicas,
            "replicasAsked": self.asked,
            "nodes": [node.document() for node in self.nodes[:MOST_NODES]],
            "nodesLeftOut": max(0, len(self.nodes) - MOST_NODES),
            "quota": quota,
            "reason": self.unknown or self.reason,
        }

    def lines(self) -> Iterator[str]:
        """For people: the sum, why it is no more, and the nodes."""
        of_choice = f" on {self.product}" if self.is_required else f" ({self.product} is preferred)"
        on = of_choice if self.product else ""
        if self.unknown is not None:
            yield f"what is free is not known: {self.unknown}"
        else:
            asked = "" if self.asked <= 1 else f"; {self.asked} are asked for"
            count = self.replicas
            yield f"room for {count or 'no'} replica{'' if count == 1 else 's'}{on}{asked}"
        if self.quota is not None and self.quota.replicas < max(1, sum(node.replicas for node in self.nodes)):
            yield f"the ResourceQuota {self.quota.quota} admits {self.quota.replicas} ({self.quota.key})"
        if self.reason is not None:
            yield self.reason
        for node in self.nodes[:MOST_LINES]:
            having = (
                f" {node.free} of {node.accelerators} {node.product or 'unnamed GPUs'} free," if self.resource else ""
            )
            room = f"room for {node.replicas}" if node.replicas else f"no room: {node.why_not}"
            yield f"node {node.name}:{having} {room}"
        if len(self.nodes) > MOST_LINES:
            yield f"and {len(self.nodes) - MOST_LINES} more nodes (-o json lists them)"


def place(
    pod_spec: Json,
    room: Room,
    quotas: tuple[Quota, ...],
    *,
    product: str | None,
    resource: str | None,
    namespace: str,
    is_required: bool = True,
    excluded: Collection[str] = (),
    asked: int = 1,
    is_planned: bool = True,
) -> Placement:
    """Where pods of this spec, as the operator renders it, have room: on nodes with the product, where it is required,
    else on those that the spec does not exclude."""
    wanted, bound = requests_of(pod_spec), product if is_required else None
    reachable = {
        node.name for node in nodes_for(room, pod_spec) if bound in (None, node.product, _product(node, resource))
    }
    seen = [node for node in room.nodes if resource is None or node.allocatable.get(resource)]
    nodes = [
        _place(node, pod_spec, wanted, resource, bound, excluded, is_reachable=node.name in reachable) for node in seen
    ]
    nodes.sort(key=lambda node: (-node.replicas, -node.free, node.name))
    quota = least_admitted(quotas, wanted, {})
    found = Placement(
        product, resource, tuple(nodes), asked, is_planned, quota, unknown=room.unknown, is_required=is_required
    )
    if found.replicas != 0:
        return found
    own = Room(tuple(node for node in seen if node.name in reachable))
    return replace(found, reason=_reason(own, nodes, wanted, resource, namespace))


def _reason(room: Room, nodes: Sequence[NodePlace], wanted: Amounts, resource: str | None, namespace: str) -> str:
    """About the nodes that pods may go to; where there are none, an example of what keeps them away."""
    if resource is None:
        return "No node that the pods may go to has the CPUs and the memory that a replica asks for."
    asked = AcceleratorRequest(resource, int(wanted.get(resource, 0)))
    if not room.nodes:
        why = f" Of {nodes[0].name}: {nodes[0].why_not}." if nodes else ""
        return f"A pod asks for {asked.count} {resource}; none of the nodes that it may go to has any.{why}"
    return clean(gpus_text(asked, room, namespace))


def _place(
    node: NodeRoom,
    pod_spec: Json,
    wanted: Amounts,
    resource: str | None,
    product: str | None,
    excluded: Collection[str],
    *,
    is_reachable: bool,
) -> NodePlace:
    labels = (node.product, _product(node, resource))
    node = node if resource is None else replace(node, product=node.product_of(resource))
    replicas = fitting_on_separate_devices(node, wanted, resource) if is_reachable else 0
    has, why = _product(node, resource), None
    if not is_reachable:
        why = _kept_away(node, pod_spec, None if product in labels else product, has, excluded)
    elif replicas == 0 and fitting(node, wanted) > 0:
        why = "pods may hold the memory of the GPUs that it shares"
    elif replicas == 0:
        why = _lacking(node, wanted)
    if why is not None and resource is not None:
        group = group_of(node, resource)
        if group is not None and device_of(group) is None:
            why = f"{has or 'its GPU'} is not in the catalogue and no label says its memory; {why}"
    return NodePlace(
        clean(node.name),
        None if has is None else clean(has),
        int(node.allocatable.get(resource, 0)) if resource is not None else 0,
        int(node.free(resource)) if resource is not None else 0,
        replicas,
        None if why is None else clean(why),
    )


def _product(node: NodeRoom, resource: str | None) -> str | None:
    return node.product if resource is None else node.product_of(resource)


def _kept_away(node: NodeRoom, pod_spec: Json, product: str | None, has: str | None, excluded: Collection[str]) -> str:
    """By taints, else by the product, else by other labels."""
    tolerations = pod_spec.get("tolerations") or ()
    for key, value, effect in node.taints:
        if not tolerates((key, value, effect), tolerations):
            return f"the taint {key}{f'={value}' if value else ''}:{effect} is not tolerated"
    if product is not None and has != product:
        return f"its GPU is {has or 'not named by a label'}, not {product}"
    if (architecture := node.labels.get(ARCHITECTURE)) in excluded:
        return f"it is {architecture}, which the images are not built for"
    if has in excluded:
        return f"it does not fit on {has}"
    return _LABELS


def _lacking(node: NodeRoom, wanted: Amounts) -> str:
    """What is too little on it."""
    return ", ".join(
        f"{_shown(name, node.free(name))} of {_shown(name, node.allocatable.get(name, 0))} {name} free,"
        f" {_shown(name, each)} needed"
        for name, each in sorted(wanted.items())
        if each > node.free(name)
    )


def _shown(name: str, number: Any) -> str:
    if name == "memory" or name.startswith("ephemeral"):
        return f"{float(number) / 2**30:.1f} GiB"
    return f"{int(number)}" if name == PODS or number == int(number) else f"{float(number):g}"
