"""Free resources of the cluster's nodes, as a value: readers/nodes.py reads it, rollouts use it. And the number of
replicas that the ResourceQuotas of a namespace admit.

The scheduler decides: rules between pods (anti-affinity, spreading, volumes) are not considered. Anyone who may write a
ResourceQuota chooses its content, so it is read only here, within bounds.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_FLOOR, Decimal
from types import MappingProxyType
from typing import Any, Self

from llmservice_planner.quantity import amount, count

Json = Mapping[str, Any]
Amounts = Mapping[str, Decimal]
"""By resource: CPUs, bytes, pieces."""

PODS = "pods"
"""The maximum of pods per node, as a resource."""
HOST_PORT = "host port "
"""Prefix of a port of a node as a resource, of which each node has one."""
_NOTHING: Amounts = MappingProxyType({})
_NO_LABELS: Mapping[str, str] = MappingProxyType({})
_KEEPS_AWAY = ("NoSchedule", "NoExecute")
_MOST_SHARES = 10_000
"""Pods of one device."""
_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?", re.ASCII)
MIG = "nvidia.com/mig-"
"""Prefix of the resource of a GPU's slice (MIG strategy mixed)."""
SHARED = ".shared"
"""Suffix of the resource where NVIDIA's device plugin renames shared ones; labels lack it."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Devices that several pods share, by the labels of their node."""

    pods: int | None
    """Per device; None: no label states it."""
    has_own_memory: bool
    """Each pod has an equal part of the memory (MPS). False: all use the same memory (time slicing)."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder of accelerators on a node."""

    namespace: str
    name: str
    """The LLMService, else the pods' controller, else the pod."""
    count: int
    """Accelerators of one pod."""


@dataclass(frozen=True, slots=True)
class AcceleratorHolders:
    """Holders of accelerators, as far as a service's namespace may know: other namespaces are not named."""

    own: tuple[tuple[str, int], ...]
    """Of this namespace by name, those with the most first."""
    in_other_namespaces: int
    """Sum over all other namespaces."""
    pods: int
    namespaces: int


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod on a node, with its resources."""

    node: str
    requests: Amounts
    namespace: str
    owner: str
    """As in `Holder.name`."""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node that takes pods: its resources, and the requests of its pods."""

    name: str
    product: str | None = None
    """The GPU, by its label."""
    allocatable: Amounts = field(default_factory=lambda: _NOTHING)
    used: Amounts = field(default_factory=lambda: _NOTHING)
    taints: tuple[tuple[str, str, str], ...] = ()
    """(key, value, effect) of taints that keep pods away."""
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)
    holders: tuple[Holder, ...] = ()
    """Of the requested accelerator."""

    @property
    def driver(self) -> str:
        """The version of its NVIDIA driver and the CUDA version that it supports, by its labels; empty if unknown."""
        version = _version(self.labels, "driver", "major", "minor", "rev")
        cuda = _version(self.labels, "runtime", "major", "minor")
        return f"{version}, which supports CUDA {cuda}" if version and cuda else version

    def product_of(self, resource: str) -> str | None:
        """By the label of the resource: a MIG slice has its own beside the whole GPU's."""
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
        """Unrequested amount; at least 0, though a device may have failed since pods were scheduled."""
        there = Decimal(1) if resource.startswith(HOST_PORT) else _amount(self.allocatable, resource)
        return max(Decimal(0), there - _amount(self.used, resource))


@dataclass(frozen=True, slots=True)
class Room:
    """All nodes that take pods."""

    nodes: tuple[NodeRoom, ...] = ()
    unknown: str | None = None
    """Why nothing could be read, as a clause."""
    may_be_known_soon: bool = False
    """It could not be read for now: decide nothing from it."""


def with_pods(nodes: Iterable[NodeRoom], placed: Iterable[PlacedPod], resource: str | None) -> tuple[NodeRoom, ...]:
    """Nodes with the pods that are on them, and holders of `resource`. Other pods are ignored."""
    used: dict[str, dict[str, Decimal]] = {}
    holders: dict[str, list[Holder]] = {}
    for pod in placed:
        used[pod.node] = plus(used.get(pod.node, _NOTHING), pod.requests)
        if count := int(pod.requests.get(resource or "", 0)):
            holders.setdefault(pod.node, []).append(Holder(pod.namespace, pod.owner, count))
    return tuple(
        replace(node, used=used.get(node.name, _NOTHING), holders=tuple(holders.get(node.name, ()))) for node in nodes
    )


def nodes_for(room: Room, pod_spec: Json) -> Iterator[NodeRoom]:
    """Nodes that pods of this spec may be scheduled to, including full ones."""
    tolerations = pod_spec.get("tolerations") or ()
    for node in room.nodes:
        if all(tolerates(taint, tolerations) for taint in node.taints) and _is_selected(node, pod_spec):
            yield node


def places_by_domain(
    nodes: Iterable[NodeRoom], label: str | None, room_on: Callable[[NodeRoom], int], most: int = 1
) -> Mapping[str, int]:
    """Pods for which there is room, at most so many on each node, by the nodes' value of a label: nodes without it do
    not count. Without a label all nodes are one domain, which is called ""."""
    found = by_domain(nodes, label).items()
    return {domain: sum(min(room_on(node), most) for node in within) for domain, within in found}


def replicas_by_domain(
    nodes: Iterable[NodeRoom], label: str | None, room_on: Callable[[NodeRoom], int], size: int
) -> Mapping[str, int]:
    """Replicas of `size` pods, on a node each, for which there is room; by domain as in `places_by_domain`."""
    return {
        domain: _replicas([room_on(node) for node in within], size)
        for domain, within in by_domain(nodes, label).items()
    }


def _replicas(places: Sequence[int], size: int) -> int:
    """The most k with k * size places, where of one node k count at most: each replica has one pod there at most."""
    numbers = range(1, sum(places) // size + 1)
    return bisect_left(numbers, True, key=lambda k: sum(min(each, k) for each in places) < k * size)


def by_domain(nodes: Iterable[NodeRoom], label: str | None) -> Mapping[str, list[NodeRoom]]:
    found = defaultdict[str, list[NodeRoom]](list)
    for node in nodes:
        domain = "" if label is None else node.labels.get(label)
        if domain is not None:
            found[domain].append(node)
    return found


def fitting(node: NodeRoom, wanted: Amounts) -> int:
    """Number of further pods with these requests on one node."""
    return int(min(node.free(resource) // each for resource, each in wanted.items() if each > 0))


def fitting_on_separate_devices(node: NodeRoom, wanted: Amounts, resource: str | None) -> int:
    """Number of further pods on one node without a device whose memory another pod may use.

    The devices of taken shares are unknown: each may be of another device.
    """
    sharing = None if resource is None else node.sharing(resource)
    if resource is None or sharing is None or sharing.has_own_memory or not wanted.get(resource):
        return fitting(node, wanted)
    devices = _amount(node.allocatable, resource) // (sharing.pods or _amount(node.allocatable, resource) or 1)
    unused = max(Decimal(0), devices - _amount(node.used, resource))
    return min(fitting(node, wanted), int(unused // wanted[resource]))


def slice_label(resource: str) -> str | None:
    """The node label with the product of a MIG slice; None for other resources."""
    return f"{resource.removesuffix(SHARED)}.product" if resource.startswith(MIG) else None


def profile_of(resource: str) -> str | None:
    """The MIG profile of a resource, such as 3g.40gb; None for other resources."""
    return resource.removeprefix(MIG).removesuffix(SHARED) if resource.startswith(MIG) else None


def product_label(resource: str) -> str:
    vendors = "amd.com/gpu.product-name" if resource.startswith("amd.com/") else "nvidia.com/gpu.product"
    return slice_label(resource) or vendors


def free_gpus(room: Room, resource: str) -> dict[str | None, int]:
    """Free accelerators by product, over all nodes that have any; None: the node has no label."""
    found: Counter[str | None] = Counter()
    for node in room.nodes:
        if node.allocatable.get(resource):
            found[node.product_of(resource)] += int(node.free(resource))
    return dict(found)


def accelerator_holders(nodes: Iterable[NodeRoom], namespace: str) -> AcceleratorHolders:
    """Holders on these nodes, as far as this namespace may know."""
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
    return AcceleratorHolders(tuple(most_first), others.total(), pods, len(others))


def requests_of(pod_spec: Json) -> dict[str, Decimal]:
    """Requests of a pod as the scheduler counts them: the sum of all containers, or the largest init container."""
    sidecars: Amounts = _NOTHING
    most: Amounts = _NOTHING
    for container in pod_spec.get("initContainers") or ():
        asked = plus(sidecars, _requested(container))
        most = {name: max(_amount(most, name), _amount(asked, name)) for name in {*most, *asked}}
        if container.get("restartPolicy") == "Always":  # it keeps running beside all that start later
            sidecars = asked
    together = sidecars
    for container in pod_spec.get("containers") or ():
        together = plus(together, _requested(container))
    found = {name: max(_amount(most, name), _amount(together, name)) for name in {*most, *together}}
    found |= _requested(pod_spec)
    return plus(plus(found, amounts(pod_spec.get("overhead") or {})), {PODS: Decimal(1), **_host_ports(pod_spec)})


def _host_ports(pod_spec: Json) -> dict[str, Decimal]:
    """A pod on its node's network takes all of its ports there, as the API server writes into stored pods."""
    ports = (port for container in pod_spec.get("containers") or () for port in container.get("ports") or ())
    is_on_host = bool(pod_spec.get("hostNetwork"))
    numbers = {port.get("hostPort") or (port.get("containerPort") if is_on_host else None) for port in ports}
    return {f"{HOST_PORT}{number}": Decimal(1) for number in numbers if number}


def plus(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    return {name: _amount(one, name) + _amount(other, name) for name in {*one, *other}}


def minus(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    return {name: max(Decimal(0), value - _amount(other, name)) for name, value in one.items()}


def amounts(quantities: Json) -> dict[str, Decimal]:
    """Quantities as numbers; invalid ones are left out, so that one node does not fail a list."""
    found = {}
    for name, quantity in quantities.items():
        try:
            found[name] = amount(str(quantity))
        except ValueError:
            continue
    return found


def tolerates(taint: tuple[str, str, str], tolerations: Sequence[Json]) -> bool:
    key, value, effect = taint
    return effect not in _KEEPS_AWAY or any(
        toleration.get("effect") in (None, "", effect)
        and toleration.get("key") in (None, "", key)
        and (toleration.get("operator") == "Exists" or (toleration.get("value") or "") == value)
        for toleration in tolerations
    )


def toleration(taint: tuple[str, str, str]) -> str:
    """A toleration of a taint in YAML, where `true` without quotes is not a string."""
    key, value, effect = taint
    matches = f'operator: Equal, value: "{value}"' if value else "operator: Exists"
    return f"{{key: {key}, {matches}, effect: {effect}}}"


def _version(labels: Mapping[str, str], of: str, *parts: str) -> str:
    """As GPU feature discovery labels it, in older spellings in parts; empty if invalid."""
    in_parts = ".".join(labels.get(f"nvidia.com/cuda.{of}.{part}", "") for part in parts).rstrip(".")
    found = labels.get(f"nvidia.com/cuda.{of}-version.full", in_parts)
    return found if _VERSION.fullmatch(found) else ""


def _amount(found: Amounts, resource: str) -> Decimal:
    return found.get(resource, Decimal(0))


def _requested(owner: Json) -> dict[str, Decimal]:
    """A limit without a request counts as a request."""
    resources = owner.get("resources") or {}
    return amounts((resources.get("limits") or {}) | (resources.get("requests") or {}))


def _is_selected(node: NodeRoom, pod_spec: Json) -> bool:
    """By the node selector and one term of the required node affinity."""
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
    """Compares as numbers; False if one is not a number."""
    numbers = [int(text) for text in (one, other) if text is not None and text.removeprefix("-").isdecimal()]
    return len(numbers) == 2 and numbers[0] > numbers[1]


MOST_KEYS = 200
"""Of one quota."""
LONGEST = 253
"""Characters of a name or key."""
_REQUESTS = "requests."
_PLAIN = ("cpu", "memory")
"""Resources whose requests a quota may also limit under their own name."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota that applies to all pods of its namespace."""

    name: str
    hard: Amounts
    """By the quota's own keys: `pods`, `requests.cpu`, ..."""
    used: Amounts
    """By the same keys; absent if the API server has not counted it yet."""

    @classmethod
    def from_object(cls, obj: object) -> Self | None:
        """None for other objects, and with scopes, which may not apply to the service's pods."""
        metadata, spec, status = (_object(_object(obj).get(part)) for part in ("metadata", "spec", "status"))
        name = metadata.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST or spec.get("scopes") or spec.get("scopeSelector"):
            return None
        return cls(name, _amounts(spec.get("hard")), _amounts(status.get("used")))


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of a namespace, with the service's pods at that time."""

    quotas: tuple[Quota, ...]
    pods: tuple[Amounts, ...]
    """Requests of each of the service's pods; empty if unknown."""

    def admitted(self, per_replica: Amounts) -> Admitted | None:
        """The lowest limit of any quota; None where none limits replicas. `per_replica`: of one pod."""
        own: Amounts = {}
        for asked in self.pods:
            own = plus(own, asked or per_replica)
        return least_admitted(self.quotas, per_replica, own)


@dataclass(frozen=True, slots=True)
class Admitted:
    """Replicas that a quota admits, and its key."""

    replicas: int
    quota: str
    key: str


def least_admitted(quotas: Iterable[Quota], per_replica: Amounts, own: Amounts) -> Admitted | None:
    """The lowest limit of any quota; None where none limits replicas.

    `per_replica` are the requests of one pod and `own` those of all of the service's pods, by resource; a pod counts as
    one of `pods`.
    """
    found = (each for quota in quotas for each in _admitted(quota, per_replica, own))
    return min(found, key=lambda each: (each.replicas, each.quota, each.key), default=None)


def _admitted(quota: Quota, per_replica: Amounts, own: Amounts) -> Iterator[Admitted]:
    for key, hard in quota.hard.items():
        resource = _resource(key)
        each = per_replica.get(resource, Decimal(0)) if resource is not None else Decimal(0)
        used = quota.used.get(key)
        if resource is None or each <= 0 or used is None:
            continue
        others = max(Decimal(0), used - own.get(resource, Decimal(0)))
        room = ((hard - others) / each).to_integral_value(ROUND_FLOOR)
        yield Admitted(max(0, int(room)), quota.name, key)


def _resource(key: str) -> str | None:
    """The resource of a pod that a quota's key limits; None if it is not one of its requests."""
    if key in (PODS, "count/pods"):
        return PODS
    if key in _PLAIN:
        return key
    return key.removeprefix(_REQUESTS) if key.startswith(_REQUESTS) else None


def _amounts(written: object) -> Amounts:
    found: dict[str, Decimal] = {}
    for key, value in list(_object(written).items())[:MOST_KEYS]:
        if isinstance(key, str) and len(key) <= LONGEST and isinstance(value, str | int | float):
            try:
                found[key] = amount(value)
            except ValueError:
                continue  # an invalid figure limits nothing
    return found


def _object(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}
