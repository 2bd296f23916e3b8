"""What is free on the cluster's nodes, as a value: readers/nodes.py reads it, and a rollout that must choose asks it.

The scheduler has the last word: what pods want of each other (anti-affinity, spreading, volumes) is not looked at.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from llmservice_planner.quantity import amount, count

Json = Mapping[str, Any]
Amounts = Mapping[str, Decimal]
"""By resource: CPUs, bytes, pieces."""

PODS = "pods"
"""Nodes take so many pods and no more, as if that were a resource."""
_NOTHING: Amounts = MappingProxyType({})
_NO_LABELS: Mapping[str, str] = MappingProxyType({})
_KEEPS_AWAY = ("NoSchedule", "NoExecute")
_MOST_SHARES = 10_000
"""Pods of one device."""
_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?", re.ASCII)
MIG = "nvidia.com/mig-"
"""Begins the resource of a GPU's slice (MIG strategy mixed)."""
SHARED = ".shared"
"""Ends the resource's name where NVIDIA's device plugin is told to rename what it shares; labels have none of it."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Devices that several pods get at once, by the labels of their node."""

    pods: int | None
    """Of one device; None: no label says how many."""
    has_own_memory: bool
    """Each pod has an equal part of the memory (MPS). False: all have the same memory (time slicing)."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has accelerators of a node."""

    namespace: str
    name: str
    """The LLMService, else what the pods belong to, else the pod."""
    count: int
    """What one pod has."""


@dataclass(frozen=True, slots=True)
class Held:
    """Who has accelerators, as the namespace of a service may know it: what runs elsewhere is not named."""

    own: tuple[tuple[str, int], ...]
    """Of this namespace by name, those with the most first."""
    elsewhere: int
    """What pods of all other namespaces have together."""
    pods: int
    namespaces: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod on a node, as far as it takes room there."""

    node: str
    asked: Amounts
    namespace: str
    owner: str
    """As in `Holder.name`."""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """One node that takes pods: what it has, and what its pods asked for."""

    name: str
    product: str | None = None
    """The GPU, by its label."""
    allocatable: Amounts = field(default_factory=lambda: _NOTHING)
    used: Amounts = field(default_factory=lambda: _NOTHING)
    taints: tuple[tuple[str, str, str], ...] = ()
    """(key, value, effect) of those that keep pods away."""
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)
    holders: tuple[Holder, ...] = ()
    """Of the accelerator that was asked for."""

    @property
    def driver(self) -> str:
        """The version of its NVIDIA driver and which CUDA that supports, by its labels; empty where they do not say."""
        version = _version(self.labels, "driver", "major", "minor", "rev")
        cuda = _version(self.labels, "runtime", "major", "minor")
        return f"{version}, which supports CUDA {cuda}" if version and cuda else version

    def product_of(self, resource: str) -> str | None:
        """As the label of the resource names it: a MIG slice has its own beside the whole card's."""
        label = slice_label(resource)
        return self.product if label is None else self.labels.get(label, self.product)

    def sharing(self, resource: str) -> Sharing | None:
        """How pods share one of these devices; None: each has its own."""
        label, find = resource.removesuffix(SHARED), self.labels.get
        stated, strategy = find(f"{label}.replicas"), find(f"{label}.sharing-strategy")
        if slice_label(resource) is None:
            stated = stated or find("cloud.google.com/gke-max-shared-clients-per-gpu")
            strategy = strategy or find("cloud.google.com/gke-gpu-sharing-strategy")
        pods = count(stated or "", _MOST_SHARES) or 0
        if pods < 2 and not resource.endswith(SHARED) and not (self.product_of(resource) or "").endswith("-SHARED"):
            return None
        return Sharing(pods if pods > 1 else None, has_own_memory=strategy == "mps")

    def free(self, resource: str) -> Decimal:
        """What nobody asked for; never below 0, though pods may have been placed before a device broke."""
        return max(Decimal(0), _amount(self.allocatable, resource) - _amount(self.used, resource))


@dataclass(frozen=True, slots=True)
class Room:
    """All nodes that take pods."""

    nodes: tuple[NodeRoom, ...] = ()
    unknown: str | None = None
    """Why nothing could be read, as a clause."""
    may_be_known_soon: bool = False
    """It could not be read just now: nothing is to be decided by that."""


def filled(nodes: Iterable[NodeRoom], placed: Iterable[Placed], resource: str | None) -> tuple[NodeRoom, ...]:
    """Empty nodes with the pods that are on them; holders of `resource` are noted. Pods elsewhere are left out."""
    used: dict[str, dict[str, Decimal]] = {}
    holders: dict[str, list[Holder]] = {}
    for pod in placed:
        used[pod.node] = plus(used.get(pod.node, _NOTHING), pod.asked)
        if count := int(pod.asked.get(resource or "", 0)):
            holders.setdefault(pod.node, []).append(Holder(pod.namespace, pod.owner, count))
    return tuple(
        replace(node, used=used.get(node.name, _NOTHING), holders=tuple(holders.get(node.name, ()))) for node in nodes
    )


def nodes_for(room: Room, pod_spec: Json) -> Iterator[NodeRoom]:
    """Nodes that pods of this spec may go to, full ones too."""
    tolerations = pod_spec.get("tolerations") or ()
    for node in room.nodes:
        if all(tolerates(taint, tolerations) for taint in node.taints) and _is_selected(node, pod_spec):
            yield node


def fitting(node: NodeRoom, wanted: Amounts) -> int:
    """How many more pods that ask for so much go onto one node."""
    return int(min(node.free(resource) // each for resource, each in wanted.items() if each > 0))


def fitting_apart(node: NodeRoom, wanted: Amounts, resource: str | None) -> int:
    """How many more of these pods go onto one node without a device whose memory another pod may hold.

    Which share is of which device is not known: each that is taken may be of another one.
    """
    sharing = None if resource is None else node.sharing(resource)
    if resource is None or sharing is None or sharing.has_own_memory or not wanted.get(resource):
        return fitting(node, wanted)
    devices = _amount(node.allocatable, resource) // (sharing.pods or _amount(node.allocatable, resource) or 1)
    unused = max(Decimal(0), devices - _amount(node.used, resource))
    return min(fitting(node, wanted), int(unused // wanted[resource]))


def slice_label(resource: str) -> str | None:
    """The node label with the product of a MIG slice; None: the resource is no slice's."""
    return f"{resource.removesuffix(SHARED)}.product" if resource.startswith(MIG) else None


def profile_of(resource: str) -> str | None:
    """The MIG profile whose slices a resource stands for, such as 3g.40gb; None: it is no slice's."""
    return resource.removeprefix(MIG).removesuffix(SHARED) if resource.startswith(MIG) else None


def product_label(resource: str) -> str:
    """The node label with the product of what has this resource."""
    vendors = "amd.com/gpu.product-name" if resource.startswith("amd.com/") else "nvidia.com/gpu.product"
    return slice_label(resource) or vendors


def free_gpus(room: Room, resource: str) -> dict[str | None, int]:
    """Free accelerators by product, of all nodes that have any of them; None: the node does not say which they are."""
    found: Counter[str | None] = Counter()
    for node in room.nodes:
        if node.allocatable.get(resource):
            found[node.product_of(resource)] += int(node.free(resource))
    return dict(found)


def held(nodes: Iterable[NodeRoom], namespace: str) -> Held:
    """Who has how many on these nodes together, as this namespace may know it."""
    own: Counter[str] = Counter()
    others: Counter[str] = Counter()
    pods = 0
    for node in nodes:
        for holder in node.holders:
            if holder.namespace == namespace:
                own[holder.name] += holder.count
            else:
                others[holder.namespace] += holder.count
                pods += 1
    most_first = sorted(own.items(), key=lambda item: (-item[1], item[0]))
    return Held(tuple(most_first), others.total(), pods, len(others))


def requests_of(pod_spec: Json) -> dict[str, Decimal]:
    """What the scheduler counts for a pod: all containers together, or the init container that asks for more."""
    sidecars: Amounts = _NOTHING
    most: Amounts = _NOTHING
    for container in pod_spec.get("initContainers") or ():
        asked = plus(sidecars, _requested(container))
        most = {name: max(_amount(most, name), _amount(asked, name)) for name in {*most, *asked}}
        if container.get("restartPolicy") == "Always":  # it runs on beside all that start after it
            sidecars = asked
    together = sidecars
    for container in pod_spec.get("containers") or ():
        together = plus(together, _requested(container))
    found = {name: max(_amount(most, name), _amount(together, name)) for name in {*most, *together}}
    found |= _requested(pod_spec)
    return plus(plus(found, amounts(pod_spec.get("overhead") or {})), {PODS: Decimal(1)})


def plus(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    """Both together."""
    return {name: _amount(one, name) + _amount(other, name) for name in {*one, *other}}


def minus(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    """What is left of one without the other."""
    return {name: max(Decimal(0), value - _amount(other, name)) for name, value in one.items()}


def amounts(quantities: Json) -> dict[str, Decimal]:
    """Quantities as numbers; what is none is left out, for a list of nodes is no place to fail."""
    found = {}
    for name, quantity in quantities.items():
        try:
            found[name] = amount(str(quantity))
        except ValueError:
            continue
    return found


def tolerates(taint: tuple[str, str, str], tolerations: Sequence[Json]) -> bool:
    """Whether a pod with these tolerations may go where this taint is."""
    key, value, effect = taint
    return effect not in _KEEPS_AWAY or any(
        toleration.get("effect") in (None, "", effect)
        and toleration.get("key") in (None, "", key)
        and (toleration.get("operator") == "Exists" or (toleration.get("value") or "") == value)
        for toleration in tolerations
    )


def toleration(taint: tuple[str, str, str]) -> str:
    """What tolerates a taint, in YAML, where `true` without quotes is no string."""
    key, value, effect = taint
    matches = f'operator: Equal, value: "{value}"' if value else "operator: Exists"
    return f"{{key: {key}, {matches}, effect: {effect}}}"


def _version(labels: Mapping[str, str], of: str, *parts: str) -> str:
    """As GPU feature discovery labels it, in its older spelling only in parts; empty where it is no version."""
    in_parts = ".".join(labels.get(f"nvidia.com/cuda.{of}.{part}", "") for part in parts).rstrip(".")
    found = labels.get(f"nvidia.com/cuda.{of}-version.full", in_parts)
    return found if _VERSION.fullmatch(found) else ""


def _amount(found: Amounts, resource: str) -> Decimal:
    return found.get(resource, Decimal(0))


def _requested(owner: Json) -> dict[str, Decimal]:
    """A limit without a request is a request too."""
    resources = owner.get("resources") or {}
    return amounts((resources.get("limits") or {}) | (resources.get("requests") or {}))


def _is_selected(node: NodeRoom, pod_spec: Json) -> bool:
    """By the node selector and by one of the terms of the required node affinity."""
    if any(node.labels.get(key) != value for key, value in (pod_spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return not required or any(_matches(node, term) for term in required.get("nodeSelectorTerms") or ())


def _matches(node: NodeRoom, term: Json) -> bool:
    """All of a term's expressions; a term without any selects nothing."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    by_label = all(_holds(node.labels.get(e["key"]), e) for e in expressions)
    return by_label and all(_holds(node.name if f["key"] == "metadata.name" else None, f) for f in fields)


def _holds(found: str | None, expression: Json) -> bool:
    values = expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt":
            return any(_is_more(found, value) for value in values)
        case "Lt":
            return any(_is_more(value, found) for value in values)
    return False


def _is_more(one: str | None, other: str | None) -> bool:
    """As numbers; what is none is neither more nor less than anything."""
    numbers = [int(text) for text in (one, other) if text is not None and text.removeprefix("-").isdecimal()]
    return len(numbers) == 2 and numbers[0] > numbers[1]
