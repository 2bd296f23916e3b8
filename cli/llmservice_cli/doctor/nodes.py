"""Nodes: ready, with GPUs that are advertised, labelled and reachable, or with CPUs that vLLM runs on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from llmservice_api.errors import UnreadableObject
from llmservice_operator.readers.nodes import node_room
from llmservice_planner.cluster import TRANSIENT_TAINTS, device_of, group_of
from llmservice_planner.cpus import PREFIX
from llmservice_planner.gpus import find
from llmservice_planner.quantity import amount
from llmservice_planner.room import MIG, SHARED, NodeRoom, tolerates

from llmservice_cli.api import Json, labels_of, status_of
from llmservice_cli.doctor.facts import Facts
from llmservice_cli.doctor.operator import read_settings

from .facts import Check, Finding, names, ok, problem, warning

NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
RENAMED = f"{NVIDIA}{SHARED}"
PRODUCTS = {NVIDIA: "nvidia.com/gpu.product", AMD: "amd.com/gpu.product-name"}
_PLUGIN = {
    "nvidia.com": "see whether the pods of NVIDIA's device plugin (GPU operator) run on them, and their logs",
    "amd.com": "see whether the pods of AMD's device plugin run on them, and their logs",
}


@dataclass(frozen=True, slots=True)
class _Node:
    """What one node has of one vendor's GPUs."""

    name: str
    labels: dict[str, str]
    allocatable: dict[str, int]
    capacity: dict[str, int]

    def has(self, resource: str) -> int:
        return self.allocatable.get(resource, 0)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Resources of GPUs, their slices and shares, of which it has any."""
        return tuple(name for name, count in self.allocatable.items() if count)

    @property
    def slices(self) -> tuple[str, ...]:
        """MIG resources of which it has any."""
        return tuple(name for name in self.gpus if name.startswith(MIG))


def _node(found: Json) -> _Node:
    status = status_of(found)
    counts = [_counts(status.get(name) or {}) for name in ("allocatable", "capacity")]
    return _Node(str(found["metadata"]["name"]), {**labels_of(found)}, *counts)


def _counts(amounts: Json) -> dict[str, int]:
    """How many devices of each kind; what is no number counts as none."""
    counts = {}
    for name, quantity in amounts.items():
        if _is_gpu(name):
            try:
                counts[name] = int(amount(quantity))
            except ValueError:
                counts[name] = 0
    return counts


def _is_gpu(resource: str) -> bool:
    return resource in PRODUCTS or resource == RENAMED or resource.startswith(MIG)


def _has_gpus(node: _Node) -> bool:
    return bool(node.gpus)


def _rooms(facts: Facts) -> Iterator[NodeRoom]:
    """As the operator reads them; without those that take no pods."""
    for each in facts.nodes:
        try:
            room = node_room(each)
        except UnreadableObject:  # the operator leaves it out, too
            continue
        if room is not None:
            yield room


def ready(facts: Facts) -> Iterator[Finding]:
    if not facts.nodes:
        yield problem("the cluster has no node", "add nodes")
        return
    broken = [str(each["metadata"]["name"]) for each in facts.nodes if not _is_ready(each)]
    cordoned = [str(each["metadata"]["name"]) for each in facts.nodes if each["spec"].get("unschedulable")]
    if broken:
        make = problem if len(broken) == len(facts.nodes) else warning
        yield make(
            f"{len(broken)} of {len(facts.nodes)} nodes are not ready: {names(broken)}", "kubectl describe node NAME"
        )
    if cordoned:
        yield warning(f"no pods are placed on: {names(cordoned)}", "kubectl uncordon NAME, once that is wanted")
    if not broken and not cordoned:
        yield ok(f"nodes that are ready: {len(facts.nodes)}")


def _is_ready(found: Json) -> bool:
    conditions = status_of(found).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def gpus(facts: Facts) -> Iterator[Finding]:
    """Whether the device plugins advertise what nodes have."""
    nodes, rooms = [_node(each) for each in facts.nodes], [*_rooms(facts)]
    is_quiet = True
    for resource in (*PRODUCTS, RENAMED):
        vendor, label = resource.partition("/")[0], PRODUCTS.get(resource)
        labelled = [node for node in nodes if label in node.labels]
        silent = [node.name for node in labelled if not any(name.startswith(vendor) for name in node.gpus)]
        broken = [node for node in nodes if node.capacity.get(resource, 0) > node.has(resource) > 0]
        if silent:
            is_quiet = False
            yield problem(
                f"nodes with the label {label} offer no {resource} ({len(silent)}): {names(silent)}", _PLUGIN[vendor]
            )
        if broken:
            is_quiet = False
            shown = (f"{node.name} ({node.has(resource)} of {node.capacity[resource]})" for node in broken)
            yield warning(f"not all GPUs of these nodes are healthy: {names(shown)}", _PLUGIN[vendor])
        if count := sum(node.has(resource) for node in nodes):
            is_quiet = False
            shared = [room.name for room in rooms if room.allocatable.get(resource) and room.sharing(resource)]
            yield ok(
                f"{resource}: {count}, nodes with any: {sum(bool(node.has(resource)) for node in nodes)}"
                f"{f'; pods share GPUs on: {names(shared)}' if shared else ''}"
            )
    if is_quiet:
        yield ok("no node offers GPUs: services run on CPUs (accelerator.type cpu)")


def labels(facts: Facts) -> Iterator[Finding]:
    """What the operator needs to plan: the product, and a memory that is known of it."""
    unlabelled, unknown, known = [], [], Counter[str]()
    for room in _rooms(facts):
        for resource in filter(_is_gpu, room.allocatable):
            group = group_of(room, resource)
            if group is None:
                continue
            if not group.product:
                unlabelled.append(room.name)
            elif device_of(group) is None:
                unknown.append(f"{room.name} ({group.product})")
            else:
                known[f"{group.product}{'' if find(group.product) else ' (by its labels)'}"] += 1
    if unlabelled:
        yield warning(
            f"GPU nodes without a label of their product: {names(unlabelled)}; nothing is planned for them",
            "install GPU feature discovery (part of NVIDIA's GPU operator) or AMD's node labeller, or label the nodes:"
            " kubectl label node NAME nvidia.com/gpu.product=PRODUCT",
        )
    if unknown:
        yield warning(
            f"neither the catalogue nor a label says how much memory these GPUs have: {names(unknown)}",
            "have GPU feature discovery add nvidia.com/gpu.memory, or set spec.accelerator.memory in services",
        )
    if known:
        yield ok(f"products: {names(f'{product} (nodes: {count})' for product, count in sorted(known.items()))}")
    if not (unlabelled or unknown or known):
        yield ok("there are no GPUs to label")


def taints(facts: Facts) -> Iterator[Finding]:
    """Pods tolerate taints named like their resource or their vendor's; others need a toleration in each service."""
    found: dict[str, dict[str, None]] = {}
    for room in _rooms(facts):
        for resource in (name for name, number in room.allocatable.items() if _is_gpu(name) and number):
            keys = (resource, NVIDIA if resource.startswith((NVIDIA, MIG)) else AMD)
            own = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
            for key, value, effect in room.taints:
                if not key.startswith(TRANSIENT_TAINTS) and not tolerates((key, value, effect), own):
                    found.setdefault(f"{key}{f'={value}' if value else ''}:{effect}", {})[room.name] = None
    for taint, on in found.items():
        yield warning(
            f"GPU nodes have the taint {taint}, which services do not tolerate by themselves: {names(on)}",
            "add a toleration to spec.podTemplate.spec.tolerations of services that are to run there",
        )
    if not found:
        yield ok("no taint keeps services away from GPU nodes")


def mig(facts: Facts) -> Iterator[Finding]:
    found: dict[str, list[str]] = {}
    for node in map(_node, facts.nodes):
        for resource in node.slices:
            found.setdefault(resource, []).append(node.name)
    for resource, on in sorted(found.items()):
        yield ok(
            f"slices {resource} on {names(on)}",
            f"a service gets one with spec.accelerator.resourceName: {resource}",
        )
    if not found:
        yield ok("no MIG slices with a resource of their own")


def cpus(facts: Facts) -> Iterator[Finding]:
    """By the labels of node-feature-discovery, where there are any."""
    nodes = [node for node in map(_node, facts.nodes) if not _has_gpus(node)]
    labelled = [node for node in nodes if any(label.startswith(PREFIX) for label in node.labels)]
    x86 = [node for node in labelled if node.labels.get("kubernetes.io/arch", "amd64") == "amd64"]
    old = [node.name for node in x86 if node.labels.get(f"{PREFIX}AVX2") != "true"]
    newest = [node.name for node in x86 if node.labels.get(f"{PREFIX}AVX512F") == "true"]
    if old:
        yield warning(
            f"nodes without AVX2, which vLLM's CPU build needs: {names(old)}",
            "keep services on CPUs away from them with spec.podTemplate.spec.nodeSelector",
        )
    if not nodes:
        yield ok("every node has GPUs")
    elif not labelled:
        yield ok(f"nodes without GPUs: {len(nodes)}; no label says which instructions their CPUs have")
    elif not old:
        yield ok(
            f"x86 nodes without GPUs: {len(x86)}, all with AVX2; with AVX-512 too: {len(newest)}"
            " (for an fp8 KV cache and int4 weights)"
        )


def default_images(facts: Facts) -> Iterator[Finding]:
    """Images for what the nodes have beside NVIDIA's GPUs, for which there is always one."""
    found = read_settings(facts)
    nodes = [_node(each) for each in facts.nodes]
    cpu, amd = (
        {getattr(each, name) for each in found} - {None, ""} for name in ("default_cpu_image", "default_amd_image")
    )
    has_none = False
    if found and not cpu and not any(map(_has_gpus, nodes)):
        has_none = True
        yield warning(
            "no node has GPUs, and services.defaultCpuImage is not set",
            "set it in the chart's values, or spec.runtime.image in each service (docs/install.md)",
        )
    if found and not amd and any(node.has(AMD) for node in nodes):
        has_none = True
        yield warning(
            "nodes have AMD GPUs, and services.defaultAmdImage is not set",
            "set it in the chart's values, or spec.runtime.image in each service",
        )
    if not has_none:
        shown = f"beside NVIDIA's: {names(sorted(cpu | amd))}" if cpu | amd else "none is needed beside NVIDIA's"
        yield ok(f"{shown}; a service may name its own in spec.runtime.image")


CHECKS = (
    Check("nodes", "nodes are ready and take pods", ("nodes",), ready),
    Check("GPUs", "device plugins advertise the GPUs that labels speak of, all of them healthy", ("nodes",), gpus),
    Check("GPU labels", "GPU nodes have a product label, and its memory is known", ("nodes",), labels),
    Check("GPU taints", "taints of GPU nodes that services do not tolerate by themselves", ("nodes",), taints),
    Check("MIG", "MIG slices with resources of their own", ("nodes",), mig),
    Check("CPUs", "AVX2 and AVX-512 by the labels of node-feature-discovery", ("nodes",), cpus),
    Check(
        "default images",
        "services.defaultCpuImage where no node has GPUs, services.defaultAmdImage where nodes have AMD's",
        ("nodes", "settings"),
        default_images,
        True,
    ),
)
