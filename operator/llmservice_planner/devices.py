"""Devices that drivers publish in ResourceSlices, as a value: readers/nodes.py reads it; and how much memory a claim of
a device asks for, with the choice among those that there are.

Names of NVIDIA's driver (gpu.nvidia.com): attributes productName, type (gpu, mig), profile, cudaComputeCapability;
capacity memory. AMD's (gpu.amd.com) has productName, as its node labels, type (amdgpu, amdgpu-partition, vfio) and
memory, which is 0 where it is not known (ROCm/k8s-gpu-dra-driver, docs/driver-attributes.md). Of another driver the
same names are read, and what it lacks is not known.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Any, Self

from llmservice_planner import gpus
from llmservice_planner.batching import LARGER_FROM
from llmservice_planner.cluster import ARCHITECTURE, IMAGES, is_reachable, why_not_several
from llmservice_planner.pick import ClaimNeed, GPUDemand, Pick
from llmservice_planner.plan import Device, Fit, Plan
from llmservice_planner.quantity import GIB, amount
from llmservice_planner.room import NodeRoom

Json = Mapping[str, Any]
PlanFor = Callable[[Device, int | None], Plan]
"""The plan for one device, with this maxModelLen where it is planned."""

MOST_DEVICES = 128
"""Of one slice: the API's limit."""
LONGEST = 64
"""Characters of an attribute: the API's limit."""
_MOST_BYTES = 2**50
_CAPABILITY = re.compile(r"(\d{1,3})\.(\d{1,3})(\.\d{1,9})?", re.ASCII)
_MIB = 2**20
_MOST_GIB = 1024
"""More than any GPU has."""
_MOST_EXCLUDED = 16
_PASSED_THROUGH = "vfio"
"""The type of devices for virtual machines, which drivers publish beside the GPU itself."""
_MEMORY = "spec.accelerator.memory"


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """What equal devices have in common. A text that is not published is empty."""

    memory_bytes: int
    product: str = ""
    kind: str = ""
    """The attribute `type`."""
    profile: str = ""
    """Of a MIG slice."""
    capability: tuple[int, int] | None = None

    @property
    def gib(self) -> float:
        return self.memory_bytes / GIB

    def device(self, *, is_amd: bool) -> Device:
        """As the engine sees it: of the published memory the driver keeps some."""
        if not self.product:
            return gpu_of(self.gib, is_amd=is_amd)
        name = self.product.replace(" ", "-")
        found = gpus.from_label_mib(gpus.slice_of(name, self.profile) if self.profile else name, self.gib * 1024)
        return replace(found, capability=found.capability or self.capability, is_amd=is_amd)


def gpu_of(gib: float, *, is_amd: bool) -> Device:
    """A GPU of which only the published memory is known."""
    name = f"a GPU of {gib:g} GiB"
    return replace(gpus.from_label_mib(name, gib * 1024), is_amd=is_amd)


@dataclass(frozen=True, slots=True)
class DeviceSlice:
    """A ResourceSlice of devices of one node."""

    driver: str
    pool: str
    generation: int
    node: str
    models: tuple[tuple[DeviceModel, int], ...]
    """With how many there are of each."""

    @classmethod
    def from_object(cls, obj: Json) -> Self | None:
        """None for devices that are not of one node. A driver writes what it likes: a device of another shape, without
        memory or with a taint is left out."""
        spec = obj["spec"]
        pool, node, driver = spec["pool"], spec.get("nodeName"), _text(spec["driver"], 253)
        if not node:
            return None
        devices = spec.get("devices") or ()
        found = Counter(filter(None, (_model(each, driver) for each in devices[:MOST_DEVICES])))
        generation = pool["generation"]
        if isinstance(generation, bool) or not isinstance(generation, int):
            raise TypeError("a generation is a number")
        models = tuple(sorted(found.items(), key=repr))
        return cls(driver, _text(pool["name"], 253), generation, _text(node, 253), models)


def _model(device: object, driver: str) -> DeviceModel | None:
    if not isinstance(device, Mapping) or device.get("taints"):
        return None
    attributes, capacity = (_of_domain(device.get(name), driver) for name in ("attributes", "capacity"))
    memory = _value(capacity, "memory", "value")
    try:
        size = int(amount(memory))
    except ValueError:
        return None
    kind = _value(attributes, "type", "string")
    if not 0 < size <= _MOST_BYTES or kind == _PASSED_THROUGH:
        return None
    capability = _CAPABILITY.fullmatch(_value(attributes, "cudaComputeCapability", "version"))
    return DeviceModel(
        memory_bytes=size,
        product=_value(attributes, "productName", "string"),
        kind=kind,
        profile=_value(attributes, "profile", "string"),
        capability=None if capability is None else (int(capability[1]), int(capability[2])),
    )


def _of_domain(values: object, driver: str) -> Json:
    """By plain name: one without a domain is of the driver's."""
    given = values if isinstance(values, Mapping) else {}
    return {name.removeprefix(f"{driver}/"): value for name, value in given.items() if isinstance(name, str)}


def _value(values: Json, name: str, kind: str) -> str:
    found = values.get(name)
    value = found.get(kind) if isinstance(found, Mapping) else None
    return value if isinstance(value, str) and len(value) <= LONGEST and value.isprintable() else ""


def _text(value: object, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise TypeError("a name is a text")
    return value


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Nodes with equally many devices of a model."""

    model: DeviceModel
    per_node: int
    taints: tuple[tuple[str, str, str], ...] = ()
    architecture: str = IMAGES


@dataclass(frozen=True, slots=True)
class ClusterDevices:
    """Devices of a class on the nodes that a service's pods may use, allocated or not."""

    groups: tuple[DeviceGroup, ...] = ()
    unread: str | None = None
    """Why they are not known, as a clause."""

    @classmethod
    def of(cls, slices: Iterable[DeviceSlice], nodes: Iterable[NodeRoom], driver: str, device_class: str) -> Self:
        """Which devices a class selects, only its CEL says. Where devices have the type that begins the name of the
        class (gpu.nvidia.com, mig.nvidia.com), it is taken for those, else for all of the driver."""
        own = [each for each in slices if each.driver == driver]
        latest: dict[str, int] = {}
        for each in own:
            latest[each.pool] = max(each.generation, latest.get(each.pool, each.generation))
        by_node: dict[str, Counter[DeviceModel]] = {}
        for each in own:
            if each.generation == latest[each.pool]:  # others are leftovers of a change of the pool
                by_node.setdefault(each.node, Counter()).update(dict(each.models))
        kind = device_class.partition(".")[0]
        is_of_kind = any(model.kind == kind for models in by_node.values() for model in models)
        groups = {
            DeviceGroup(model, count, node.taints, node.labels.get(ARCHITECTURE, IMAGES))
            for node in nodes
            for model, count in by_node.get(node.name, Counter()).items()
            if not is_of_kind or model.kind == kind
        }
        return cls(tuple(sorted(groups, key=repr)))


def pick_claimed(demand: GPUDemand, cluster: ClusterDevices, plan_for: PlanFor, *, is_amd: bool) -> Pick:
    """The smallest device that surely fits, else one that is tight, and what a claim asks for so that it gets one of
    these; else the obstacle. Of an unknown device the claim asks for what is needed."""
    reachable = [group for group in cluster.groups if is_reachable(group.taints, demand.tolerations)]
    built = [group for group in reachable if group.architecture == IMAGES or demand.names_architecture]
    left_out = tuple(sorted({group.architecture for group in reachable} - {group.architecture for group in built}))
    left_out = left_out if built else ()
    groups = built or reachable
    enough = {group.model for group in groups if group.per_node >= demand.gpus}
    models = sorted(enough, key=lambda model: (model.memory_bytes, repr(model)))
    planned = [(model, _on(model, demand, plan_for, is_amd=is_amd)) for model in models]
    for verdict in (Fit.FITS, Fit.TIGHT):
        for model, plan in planned:
            if plan.verdict is verdict:
                return replace(_chosen(model, plan, planned, demand, plan_for, is_amd=is_amd), left_out=left_out)
    if unknown := next((plan for _, plan in planned if plan.verdict is Fit.UNKNOWN), None):
        return Pick(unknown, left_out=left_out)
    if planned:
        model, plan = planned[-1]
        least = _least(plan_for, None, is_amd=is_amd)
        refused = replace(plan, reason=f"{plan.reason} {_needed(demand, least, model)}")
        return Pick(refused, device=model.device(is_amd=is_amd), is_short=True)
    return _of_unknown(demand, cluster, groups, plan_for, is_amd=is_amd)


def _on(model: DeviceModel, demand: GPUDemand, plan_for: PlanFor, *, is_amd: bool) -> Plan:
    device = model.device(is_amd=is_amd)
    plan = plan_for(device, None)
    several = None if plan.verdict is Fit.DOES_NOT_FIT else why_not_several(device.name, None, demand.gpus)
    if several is None:
        return plan
    return replace(plan, verdict=several[0], reason=f"{device.name}: {several[1]}.", margin_gib=None)


def _chosen(
    model: DeviceModel,
    plan: Plan,
    planned: Sequence[tuple[DeviceModel, Plan]],
    demand: GPUDemand,
    plan_for: PlanFor,
    *,
    is_amd: bool,
) -> Pick:
    length = plan.max_model_len if demand.is_length_planned else None
    least = _least(plan_for, length, is_amd=is_amd, is_tight=plan.verdict is Fit.TIGHT)
    # The figures of a known product differ by some MiB from those of any GPU of this size.
    gib = floor(model.gib) if least is None else min(least, floor(model.gib))
    unfit = {
        other.product
        for other, found in planned
        if found.verdict is Fit.DOES_NOT_FIT and other.gib >= gib and other.product not in ("", model.product)
    }
    excluded = tuple(sorted(unfit)[:_MOST_EXCLUDED])
    reason = f"{plan.reason} The claim asks for devices of at least {gib} GiB."
    device = model.device(is_amd=is_amd)
    return Pick(replace(plan, reason=reason), device=device, need=ClaimNeed(gib, excluded))


def _of_unknown(
    demand: GPUDemand, cluster: ClusterDevices, groups: Sequence[DeviceGroup], plan_for: PlanFor, *, is_amd: bool
) -> Pick:
    """No node is known to have as many devices; an autoscaler may add one."""
    if demand.memory_gib is not None:
        device = Device(f"a GPU of {demand.memory_gib:g} GiB", demand.memory_gib, is_amd=is_amd)
        return replace(_with_need(plan_for(device, None), demand, plan_for, is_amd=is_amd), device=device)
    least = _least(plan_for, None, is_amd=is_amd)
    most = max((group.per_node for group in groups), default=0)
    seen = cluster.unread or f"no ResourceSlice has a device of class {demand.resource}"
    if most:
        seen = f"one pod needs {demand.gpus} devices of class {demand.resource}, and the largest node has {most}"
    asks = "" if least is None else f" The claim asks for devices of at least {least} GiB."
    plan = plan_for(gpu_of(_MOST_GIB if least is None else least, is_amd=is_amd), None)
    if plan.verdict is Fit.UNKNOWN or least is None:  # of the model, or nothing is large enough
        return Pick(plan)
    reason = f"Which device it will be is not known: {seen}.{asks} Give {_MEMORY} for a plan."
    return Pick(Plan(Fit.UNKNOWN, reason, (_MEMORY,), gpus=plan.gpus), need=ClaimNeed(least))


def _with_need(plan: Plan, demand: GPUDemand, plan_for: PlanFor, *, is_amd: bool) -> Pick:
    """A plan for stated memory, and a claim of what it needs: of its own length, where that is planned."""
    if plan.verdict not in (Fit.FITS, Fit.TIGHT):
        return Pick(plan)
    length = plan.max_model_len if demand.is_length_planned else None
    least = _least(plan_for, length, is_amd=is_amd, is_tight=plan.verdict is Fit.TIGHT)
    return Pick(plan, need=None if least is None else ClaimNeed(least))


def _needed(demand: GPUDemand, least: int | None, largest: DeviceModel) -> str:
    has = f"the largest of class {demand.resource} has {largest.gib:.1f} GiB"
    return f"No device is large enough; {has}." if least is None else f"It needs devices of {least} GiB, and {has}."


def _least(plan_for: PlanFor, length: int | None, *, is_amd: bool, is_tight: bool = False) -> int | None:
    """GiB from which on it fits on every device; None: on none. Where vLLM takes larger batches, more is needed;
    between these steps more memory never fits worse."""
    enough = (Fit.FITS, Fit.TIGHT) if is_tight else (Fit.FITS,)

    def fits(gib: int) -> bool:
        return plan_for(gpu_of(gib, is_amd=is_amd), length).verdict in enough

    least = None
    for low, high in reversed(list(_spans(is_amd=is_amd))):
        if not fits(high):
            break
        least = low + bisect_left(range(low, high), True, key=fits)
        if least > low:
            break
    return least


def _spans(*, is_amd: bool) -> Iterator[tuple[int, int]]:
    """GiB of devices on which vLLM takes batches of one size."""
    low = 1
    for step in LARGER_FROM:
        high = bisect_left(range(_MOST_GIB), True, key=lambda gib: gpu_of(gib, is_amd=is_amd).memory_gib >= step) - 1
        yield low, high
        low = high + 1
    yield low, _MOST_GIB
