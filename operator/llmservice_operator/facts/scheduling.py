"""Why the scheduler does not place a pod: the reason for its causes, and which pods hold the missing GPUs.

Pods of other namespaces are only counted: readers of the status may not have access to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmservice_api.reasons import Reason
from llmservice_planner.cluster import MOST_TAINTS, TRANSIENT_TAINTS
from llmservice_planner.room import (
    AcceleratorHolders,
    NodeRoom,
    Room,
    accelerator_holders,
    free_gpus,
    nodes_for,
    tolerates,
    toleration,
)

Json = Mapping[str, Any]

_MOST_HOLDERS = 8
_MOST_PRODUCTS = 8

# In this order: the scheduler checks taints before labels, and resources after both. The last check that fails is that
# of the nodes which nearly fit.
_KINDS: tuple[tuple[Reason, re.Pattern[str]], ...] = (
    (Reason.VOLUME_UNAVAILABLE, re.compile(r"persistent ?volume|volume|pvc\(s\)|available disk|free storage", re.I)),
    (Reason.INSUFFICIENT_GPUS, re.compile(r"^Insufficient [^ ]+/|allocate all claims")),
    (Reason.INSUFFICIENT_RESOURCES, re.compile(r"^Insufficient |^Too many pods|free ports for the requested")),
    (Reason.NO_MATCHING_NODE, re.compile(r"didn't match|didn't satisfy|terms conflict|^no nodes available")),
    (Reason.UNTOLERATED_TAINT, re.compile(r"taint|were unschedulable|unknown conditions")),
    (Reason.SCHEDULING_GATED, re.compile(r"^scheduling gate ")),
)
_KUEUE = "scheduling gate kueue.x-k8s.io/"
_OLD_POD_MAY_HOLD = frozenset({Reason.INSUFFICIENT_GPUS, Reason.INSUFFICIENT_RESOURCES})
_TAINT_OR_LABEL = frozenset({Reason.NO_MATCHING_NODE, Reason.UNTOLERATED_TAINT})
"""The scheduler does not compare labels of a node with a taint, so that only the nodes show which of both is the
cause."""
REASONS = frozenset({reason for reason, _ in _KINDS} | {Reason.UNSCHEDULABLE})


@dataclass(frozen=True, slots=True)
class AcceleratorRequest:
    resource: str
    count: int


def reason_of(causes: Iterable[str], is_taint: bool | None = None) -> Reason:
    """The reason for several causes: that of the last check that failed.

    `is_taint` is the answer of the nodes where both taints and labels are causes.
    """
    kinds = _kinds(causes)
    if is_taint and kinds == _TAINT_OR_LABEL:
        return Reason.UNTOLERATED_TAINT
    return next((reason for reason, _ in _KINDS if reason in kinds), Reason.UNSCHEDULABLE)


def may_need_nodes(causes: Iterable[str]) -> bool:
    """Whether a cause is a taint: only the nodes have its value, and distinguish it from missing labels."""
    return Reason.UNTOLERATED_TAINT in _kinds(causes)


def are_of_gpus(causes: Iterable[str]) -> bool:
    return Reason.INSUFFICIENT_GPUS in _kinds(causes)


def may_be_held(causes: Iterable[str]) -> bool:
    """Whether a cause is a lack of resources that another pod of the service may hold."""
    return bool(_OLD_POD_MAY_HOLD & _kinds(causes))


def are_gates(causes: Sequence[str]) -> bool:
    return _kinds(causes) == {Reason.SCHEDULING_GATED}


def are_of_kueue(causes: Sequence[str]) -> bool:
    """Whether all gates are Kueue's, which quota of a queue removes."""
    return are_gates(causes) and all(cause.startswith(_KUEUE) for cause in causes)


def is_taint(room: Room | None, pod_spec: Json | None) -> bool | None:
    """Whether a node fits the pod except for its taints; None if unknown.

    None also where another node has no such taint: a rule about pods, such as anti-affinity, keeps the pod from that
    one.
    """
    if room is None or room.unknown is not None or pod_spec is None:
        return None
    everywhere = {**pod_spec, "tolerations": [{"operator": "Exists"}]}
    return any(nodes_for(room, everywhere)) and not any(nodes_for(room, pod_spec))


def remedy_of(reason: Reason, wanted: AcceleratorRequest | None, room: Room | None, pod_spec: Json | None) -> str:
    """The remedy; for taints the tolerations for a node that fits otherwise."""
    if reason is not Reason.UNTOLERATED_TAINT or room is None or pod_spec is None:
        return reason.remedy
    own = pod_spec.get("tolerations") or ()
    missing = [
        tuple(taint for taint in node.taints if not tolerates(taint, own))
        for node in nodes_for(room, {**pod_spec, "tolerations": [{"operator": "Exists"}]})
        if wanted is None or node.allocatable.get(wanted.resource)
    ]
    # Conditions of a node pass, and a toleration of them would be no remedy.
    lasting = [taints for taints in missing if not any(key.startswith(TRANSIENT_TAINTS) for key, _, _ in taints)]
    nearest = min(filter(None, lasting), key=lambda taints: (len(taints), taints), default=())
    if not 0 < len(nearest) <= MOST_TAINTS:
        return reason.remedy
    return (
        f"Add {', '.join(map(toleration, nearest))} to spec.podTemplate.spec.tolerations, or take the taint off "
        "(`kubectl taint nodes NODE KEY-`)."
    )


def _kinds(causes: Iterable[str]) -> frozenset[Reason]:
    causes = tuple(causes)
    return frozenset(reason for reason, pattern in _KINDS if any(pattern.search(cause) for cause in causes))


def message_of(
    causes: Iterable[str], reason: Reason, wanted: AcceleratorRequest | None, room: Room | None, namespace: str
) -> str:
    """What all nodes lack, and for GPUs how many there are, if that was read."""
    if reason is Reason.SCHEDULING_GATED:
        gates = " and ".join(f"Kueue's {cause}" if cause.startswith(_KUEUE) else cause for cause in causes)
        return f"A pod of this service waits for {gates}: no node is looked for until it is taken away."
    message = "No node has room for a pod of this service: " + "; ".join(causes) + "."
    if reason is not Reason.INSUFFICIENT_GPUS or wanted is None or room is None:
        return message
    return f"{message} {gpus_text(wanted, room, namespace)}"


def gpus_text(wanted: AcceleratorRequest, room: Room, namespace: str) -> str:
    """How many GPUs are free, by product, and which pods hold the others, as far as `namespace` may know."""
    asked = f"A pod asks for {wanted.count} {wanted.resource}"
    if room.unknown is not None:
        return f"{asked}; how many are free is not known, since {room.unknown}."
    having = [node for node in room.nodes if node.allocatable.get(wanted.resource)]
    if not having:
        return f"{asked}; no node that takes pods has any."
    parts = [asked, f"free are {_products(free_gpus(room, wanted.resource))}", _on_one_node(having, wanted)]
    parts.append(_holders(accelerator_holders(having, namespace)))
    return "; ".join(parts) + "."


def _products(free: Mapping[str | None, int]) -> str:
    known = sorted((product or "of an unnamed product", count) for product, count in free.items())
    shown = [f"{count} {product}" for product, count in known[:_MOST_PRODUCTS]]
    return ", ".join([*shown, *_others(len(known) - len(shown), "products")])


def _on_one_node(having: Iterable[NodeRoom], wanted: AcceleratorRequest) -> str:
    most = max(int(node.free(wanted.resource)) for node in having)
    return f"at most {most} on one node"


def _holders(found: AcceleratorHolders) -> str:
    shown = [f"{name} ({count})" for name, count in found.own[:_MOST_HOLDERS]]
    shown += _others(len(found.own) - len(shown), "others of this namespace")
    if found.pods:
        pods = f"{found.pods} pod{'s' if found.pods > 1 else ''}"
        namespaces = f"{found.namespaces} other namespace{'s' if found.namespaces > 1 else ''}"
        shown.append(f"{pods} of {namespaces} ({found.in_other_namespaces})")
    return f"held by {', '.join(shown)}" if shown else "nobody holds any"


def _others(count: int, what: str) -> Iterator[str]:
    if count > 0:
        yield f"{count} {what}"


def accelerator_request(effective: Mapping[str, Any]) -> AcceleratorRequest | None:
    """Accelerators of a pod by the values in force; None on CPUs."""
    accelerator = effective.get("accelerator") or {}
    resource, count = accelerator.get("resourceName"), accelerator.get("count")
    nodes = (effective.get("parallelism") or {}).get("nodes") or 1
    return AcceleratorRequest(str(resource), int(count) // int(nodes)) if resource and count else None
