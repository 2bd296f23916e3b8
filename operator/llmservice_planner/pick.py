"""Chooses a GPU of the cluster for a service: the first acceptable product on which it fits and that nodes have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmservice_planner import gpus
from llmservice_planner.cluster import (
    IMAGES,
    ClusterGPUs,
    Offer,
    offers,
    on_enough_nodes,
    tolerations_missing,
    why_not_several,
)
from llmservice_planner.plan import Device, Fit, Plan, Remedy
from llmservice_planner.room import product_label, profile_of

Json = Mapping[str, Any]
PlanFor = Callable[[Device | None], Plan]

USUAL = (
    "NVIDIA-L4",
    "NVIDIA-A100-SXM4-40GB",
    "NVIDIA-L40S",
    "NVIDIA-A100-SXM4-80GB",
    "NVIDIA-H100-80GB-HBM3",
    "NVIDIA-H200",
    "NVIDIA-B200",
    "AMD_Instinct_MI300X_OAM",
    "AMD_Instinct_MI325_OAM",
)
"""Usual products of clouds, by memory: named where the cluster has none that fits."""
_SMALL = ("Tesla-T4", "Tesla-V100-SXM2-16GB", "NVIDIA-A10G")
"""Further ones that an autoscaler may add, too small for most models."""
_MOST_EXCLUDED = 256
_MEMORY = "spec.accelerator.memory"
_GPU_FIELDS = f"spec.accelerator.products or {_MEMORY}"
_SELECTOR = "spec.podTemplate.spec.nodeSelector (nvidia.com/gpu.sharing-strategy: none)"
_TOLERATIONS = "spec.podTemplate.spec.tolerations"


@dataclass(frozen=True, slots=True)
class GPUDemand:
    """The spec's requirements of GPUs."""

    gpus: int
    """Of one pod: of a replica, or of its share on one of several nodes."""
    resource: str
    products: tuple[str, ...] = ()
    """Acceptable ones, in order of preference; empty: all."""
    memory_gib: float | None = None
    """Of one GPU, if nothing else states it."""
    tolerations: tuple[Json, ...] = ()
    is_length_planned: bool = False
    """maxModelLen is what fits on the chosen GPU."""
    names_architecture: bool = False
    """The spec selects a CPU architecture."""
    nodes: int = 1
    """Of a replica, with a pod on each: products that as many nodes have come first."""

    @property
    def profile(self) -> str | None:
        """Of the requested MIG slices; None: whole GPUs, or slices that the GPU's label names."""
        return profile_of(self.resource)


@dataclass(frozen=True, slots=True)
class ClaimNeed:
    """What a claim asks of each device beside its class."""

    gib: int | None = None
    """Memory as drivers publish it; None: any."""
    excluded: tuple[str, ...] = ()
    """Products that have the memory and on which the model does not run, as their driver writes them."""


@dataclass(frozen=True, slots=True)
class Pick:
    """The choice and its plan."""

    plan: Plan
    product: str | None = None
    """The chosen value of the node label: required for pods where the spec lists products, else preferred. None: the
    spec's own list decides."""
    device: Device | None = None
    others: tuple[Device, ...] = ()
    """Further products of the cluster with enough GPUs per node, for remedies."""
    is_short: bool = False
    """Other nodes would change the answer."""
    excluded: tuple[str, ...] = ()
    """Without products in the spec: those on which the model does not fit, of nodes and of clouds."""
    left_out: tuple[str, ...] = ()
    """Architectures of nodes that the images are not built for, where other nodes have the GPU."""
    is_on_enough_nodes: bool = False
    """As many nodes as a replica takes have it now, without sharing it."""
    need: ClaimNeed | None = None
    """What a claim of devices asks for; None: any device of its class."""


def pick(demand: GPUDemand, cluster: ClusterGPUs, plan_for: PlanFor) -> Pick:
    """The first acceptable product that surely fits, else the first that is tight, else the obstacle.

    A product in the spec that no node has in sufficient number yet may be added by an autoscaler, and comes after all
    that exist; except where no machine has as many GPUs as one replica needs. If neither nodes nor spec name a GPU, the
    verdict is Unknown, with what to set.
    """
    if demand.profile is not None:
        return _pick_slice(demand, demand.profile, cluster, plan_for)
    return _pick_built(demand, cluster, plan_for)


def _pick_slice(demand: GPUDemand, profile: str, cluster: ClusterGPUs, plan_for: PlanFor) -> Pick:
    """The choice among slices of one profile, whose label may be the whole GPU's.

    All are planned as slices; pods require the listed label, else the nodes' label.
    """
    listed = {gpus.slice_of(product, profile): product for product in reversed(demand.products)}
    groups, labels = [], dict(listed)
    for group in cluster.groups:
        label = group.product or ""
        card = label.partition("-MIG-")[0]
        is_of_card = card in demand.products and (label == card or label not in demand.products)
        if label and (is_of_card or not demand.products):
            name = gpus.slice_of(card if is_of_card else label, profile)
            labels.setdefault(name, label)
            groups.append(replace(group, product=name))
        else:
            groups.append(group)
    sliced = replace(
        demand,
        # A common name stays one; its remedy is the label.
        products=tuple(
            dict.fromkeys(one if gpus.labels(one) else gpus.slice_of(one, profile) for one in demand.products)
        ),
        memory_gib=gpus.slice_gib(profile) if demand.memory_gib is None else demand.memory_gib,
    )
    choice = _pick_built(sliced, replace(cluster, groups=tuple(groups)), plan_for)
    product = None if choice.product is None else labels.get(choice.product, choice.product)
    return replace(choice, product=product, excluded=tuple(sorted(labels.get(one, one) for one in choice.excluded)))


def _pick_built(demand: GPUDemand, cluster: ClusterGPUs, plan_for: PlanFor) -> Pick:
    """The choice without nodes that the images are not built for."""
    others = _not_built_for(demand, cluster)
    if not others:
        return _pick(demand, cluster, plan_for)
    built = tuple(group for group in cluster.groups if group.architecture == IMAGES)
    found = {offer.product for offer in offers(replace(cluster, groups=built), demand.tolerations)}
    # Products of the spec that only such nodes have are kept.
    named = tuple(
        group
        for group in cluster.groups
        if group.architecture in others and group.product in demand.products and group.product not in found
    )
    choice = _pick(demand, replace(cluster, groups=(*built, *named)), plan_for)
    used = {group.architecture for group in named if choice.product in (None, group.product)}
    left_out = tuple(each for each in others if each not in used)
    if not left_out:
        return choice
    said = f"Nodes of {', '.join(left_out)} are left out: the images are built for {IMAGES}."
    return replace(choice, plan=replace(choice.plan, reason=f"{choice.plan.reason} {said}"), left_out=left_out)


def _pick(demand: GPUDemand, cluster: ClusterGPUs, plan_for: PlanFor) -> Pick:
    offered = offers(cluster, demand.tolerations)
    if nicknames := _nicknames(demand, cluster):
        return _without_nicknames(nicknames, demand, cluster, plan_for)
    numerous = on_enough_nodes(cluster, demand.tolerations, demand.gpus, demand.nodes)
    others = tuple(
        offer.device
        for offer in offered
        if offer.device is not None
        and offer.per_node >= demand.gpus
        and not why_not_several(offer.device.name, offer, demand.gpus)
    )
    planned = [
        (device, _limited_by_nodes(plan_for(device), device, demand, offered))
        for device in _candidates(demand, offered)
    ]

    def is_numerous(device: Device) -> bool:
        return (None if device.name == _any_gpu(demand) else device.name) in numerous

    if demand.nodes > 1:
        planned.sort(key=lambda each: not is_numerous(each[0]))
    numerously = [each for each in planned if demand.nodes > 1 and is_numerous(each[0])]
    for pool, verdict in itertools.product((numerously, planned), (Fit.FITS, Fit.TIGHT)):
        for device, plan in pool:
            if plan.verdict is verdict:
                return Pick(
                    _with_notes(plan, demand, cluster, offered),
                    _chosen_product(device, demand, offered),
                    device,
                    others,
                    excluded=_excluded(plan, demand, cluster, plan_for),
                    is_on_enough_nodes=is_numerous(device),
                )
    unknown = next((plan for _, plan in planned if plan.verdict is Fit.UNKNOWN), None)
    if unknown is not None:
        return Pick(unknown, others=others)
    if (
        planned
        and not demand.products
        and demand.memory_gib is None
        and any(offer.device is None and offer.per_node >= demand.gpus for offer in offered)
    ):
        unknown = _unknown_gpu(demand, cluster, offered, plan_for(None))
        return Pick(unknown, others=others, excluded=_excluded(planned[0][1], demand, cluster, plan_for))
    if planned:
        device, plan = max(planned, key=lambda item: _margin(item[1]))
        elsewhere = [other for other in others if other not in [device for device, _ in planned]]
        reason = f"{plan.reason} {_would_fit(elsewhere, device, demand, cluster, plan_for)}".strip()
        return Pick(replace(plan, reason=reason), device=device, others=others, is_short=True)
    if too_few := _too_few(demand, cluster, offered, plan_for):
        return too_few
    return Pick(_unknown_gpu(demand, cluster, offered, plan_for(None)), others=others)


def _not_built_for(demand: GPUDemand, cluster: ClusterGPUs) -> tuple[str, ...]:
    """Architectures of nodes to leave out; none where no other node has an acceptable GPU, or the spec selects one."""
    built = tuple(group for group in cluster.groups if group.architecture == IMAGES)
    found = offers(replace(cluster, groups=built), demand.tolerations)
    if demand.names_architecture or not any(not demand.products or one.product in demand.products for one in found):
        return ()
    return tuple(sorted({group.architecture for group in cluster.groups} - {IMAGES})[:_MOST_EXCLUDED])


def _nicknames(demand: GPUDemand, cluster: ClusterGPUs) -> tuple[str, ...]:
    """Products in the spec that are common names and not label values; none while nodes are unknown."""
    seen = {group.product for group in cluster.groups}
    if cluster.unread is not None:
        return ()
    return tuple(product for product in demand.products if product not in seen and gpus.labels(product))


def _without_nicknames(nicknames: Sequence[str], demand: GPUDemand, cluster: ClusterGPUs, plan_for: PlanFor) -> Pick:
    """The choice among the other products; if there is none, the labels to use."""
    others = tuple(product for product in demand.products if product not in nicknames)
    hints = " ".join(_labels_for(nickname, cluster) for nickname in nicknames)
    if others:
        choice = _pick(replace(demand, products=others), cluster, plan_for)
        left_out = f"{', '.join(nicknames)} is left out: it is no value of the node label."
        return replace(choice, plan=replace(choice.plan, reason=f"{choice.plan.reason} {left_out}"))
    reason = (
        f"spec.accelerator.products: {hints} A node with such a value of its own needs no change: it is taken as soon "
        "as the operator sees one."
    )
    labels = dict.fromkeys(label for nickname in nicknames for label in gpus.labels(nickname))
    remedies = tuple(_with_label(label, plan_for) for label in labels)
    fitting = tuple(remedy for remedy in remedies if remedy.verdict in (Fit.FITS, Fit.TIGHT))
    refused = Plan(Fit.DOES_NOT_FIT, reason, gpu=nicknames[0], gpus=demand.gpus, remedies=fitting)
    return Pick(refused, is_short=True)


def _labels_for(nickname: str, cluster: ClusterGPUs) -> str:
    """Labels for a common name, those of this cluster first."""
    labels = gpus.labels(nickname)
    seen = {group.product for group in cluster.groups}
    here = [label for label in labels if label in seen]
    choice = f"{', '.join(here)}, which this cluster has" if here else ", ".join(labels)
    return f"{nickname} is no value of the node label: write {choice}."


def _with_label(label: str, plan_for: PlanFor) -> Remedy:
    change = f"set spec.accelerator.products to [{label}]"
    return Remedy.of(change, (("accelerator.products", (label,)),), plan_for(gpus.device(label)), label)


def _candidates(demand: GPUDemand, offered: Sequence[Offer]) -> Iterator[Device]:
    """Devices of nodes first, in the spec's order or the smallest first; then those that may be added."""
    by_product = {offer.product: offer for offer in offered}
    named = tuple(product for product in by_product if product is not None)
    for product in demand.products or named:
        offer = by_product.get(product)
        if offer is not None and offer.per_node >= demand.gpus:
            device = offer.device or _of_stated_memory(product, demand)
            if device is not None:
                yield device
    for product in demand.products:
        offer = by_product.get(product)
        if offer is None or offer.per_node < demand.gpus:
            offered_now = None if offer is None else offer.device
            device = offered_now or gpus.device(product, demand.memory_gib) or _of_stated_memory(product, demand)
            if device is not None:
                yield replace(device, name=product)
    if demand.products or demand.memory_gib is None:
        return
    if demand.profile is None or not named:
        yield Device(_any_gpu(demand), demand.memory_gib)


def _any_gpu(demand: GPUDemand) -> str:
    """The name of a GPU of which only the memory is known."""
    memory = demand.memory_gib or 0.0
    return f"a GPU of {memory:g} GiB" if demand.profile is None else gpus.any_slice(memory)


def _limited_by_nodes(plan: Plan, device: Device, demand: GPUDemand, offered: Sequence[Offer]) -> Plan:
    """The plan; DoesNotFit where one replica needs more GPUs than any node has, can have, or shares."""
    product = None if device.name == _any_gpu(demand) else device.name
    offer = next((offer for offer in offered if offer.product == product), None)
    if plan.verdict is not Fit.DOES_NOT_FIT and (found := why_not_several(device.name, offer, demand.gpus)):
        return _of_too_few_devices(plan, device, demand, offer, *found)
    most = max(_most(offered, device.name), gpus.most_per_node(device.name))
    if demand.gpus <= most or not offered or plan.verdict is Fit.DOES_NOT_FIT:
        return plan
    return replace(
        plan, verdict=Fit.DOES_NOT_FIT, reason=f"{device.name}: {_too_many(demand, offered)}", margin_gib=None
    )


def _of_too_few_devices(
    plan: Plan, device: Device, demand: GPUDemand, offer: Offer | None, verdict: Fit, why: str
) -> Plan:
    whole = "name products of whole GPUs in spec.accelerator.products"
    if demand.profile is not None:
        whole = "take whole GPUs, without spec.accelerator.resourceName"
    elif offer is not None and offer.whole >= demand.gpus:
        whole = f"select nodes that share none in {_SELECTOR}"
    reason = f"{device.name}: {why}. Set spec.parallelism to one GPU a replica, or {whole}."
    missing = plan.missing if verdict is Fit.DOES_NOT_FIT else ("GPUs that are not shared", *plan.missing)
    return replace(plan, verdict=verdict, reason=reason, missing=missing, margin_gib=None)


def _too_many(demand: GPUDemand, offered: Sequence[Offer]) -> str:
    """All GPUs of a pod are on one node, including pipeline stages."""
    has = max((offer.per_node for offer in offered), default=0)
    most = max(has, gpus.USUAL_PER_NODE)
    return (
        f"one pod needs {demand.gpus} x {demand.resource} on one node; the largest here has {has}, and such "
        f"machines have {gpus.USUAL_PER_NODE} as a rule. Spread a replica over several nodes (spec.parallelism.nodes); "
        f"or lower the product of the sizes in spec.parallelism to {most} a node or less, and hold the weights in "
        "fewer bits or choose GPUs with more memory."
    )


def _of_stated_memory(product: str, demand: GPUDemand) -> Device | None:
    return None if demand.memory_gib is None else Device(product, demand.memory_gib)


def _chosen_product(device: Device, demand: GPUDemand, offered: Sequence[Offer]) -> str | None:
    """The product, if it comes from nodes, or is one of several."""
    is_offered = any(offer.product == device.name for offer in offered)
    return device.name if is_offered or (device.name in demand.products and len(demand.products) > 1) else None


def _excluded(plan: Plan, demand: GPUDemand, cluster: ClusterGPUs, plan_for: PlanFor) -> tuple[str, ...]:
    """Products on which the plan does not fit, those of nodes first if there are too many to record; none where the
    spec lists products."""
    if demand.products:
        return ()
    offered = offers(cluster, _ALL)
    seen = [offer.device for offer in offered if offer.device is not None]
    rented = filter(None, map(gpus.device, (*_SMALL, *USUAL)))
    is_amd = demand.resource.startswith("amd.com/")
    known = {device.name: device for device in (*rented, *seen) if device.is_amd is is_amd}
    plans = {name: _limited_by_nodes(plan_for(device), device, demand, offered) for name, device in known.items()}
    too_small = [name for name, found in plans.items() if not _may_run(found, plan, demand)]
    on_nodes = {device.name for device in seen}
    return tuple(sorted(sorted(too_small, key=lambda name: (name not in on_nodes, name))[:_MOST_EXCLUDED]))


_ALL: tuple[Json, ...] = ({"operator": "Exists"},)


def _may_run(other: Plan, plan: Plan, demand: GPUDemand) -> bool:
    """Whether another GPU may run what was planned, by its own plan."""
    is_shorter = demand.is_length_planned and (other.max_model_len or 0) < (plan.max_model_len or 0)
    return other.verdict is not Fit.DOES_NOT_FIT and (other.verdict is Fit.UNKNOWN or not is_shorter)


def _with_notes(plan: Plan, demand: GPUDemand, cluster: ClusterGPUs, offered: Sequence[Offer]) -> Plan:
    """The plan with notes on what the nodes do not show."""
    seen, notes = {offer.product for offer in offered}, []
    if not demand.products and plan.gpu in seen:
        notes.append(
            f"The operator chose {plan.gpu}: pods prefer it, and run on other GPUs that are not known to be too small. "
            "spec.accelerator.products would bind them."
        )
    of_others = {group.architecture for group in cluster.groups if group.product == plan.gpu} - {IMAGES}
    if of_others and not demand.names_architecture:
        notes.append(
            f"Its nodes are {', '.join(sorted(of_others))}, and the images are built for {IMAGES}, unless you built "
            "others."
        )
    if cluster.unread is not None:
        notes.append(f"Nodes were not looked at: {cluster.unread}.")
        if plan.gpu is not None and (labels := gpus.labels(plan.gpu)):
            notes.append(
                f"{plan.gpu} is usually no value of the node label: no pod starts unless a node has {plan.gpu}. "
                f"Else write {', '.join(labels)}."
            )
    elif plan.gpu in demand.products and plan.gpu not in seen and gpus.find(plan.gpu) is None:
        notes.append(f"{plan.gpu} is not in the catalogue, and no node has it now: check the value of the node label.")
    elif plan.gpu in demand.products and (most := _most(offered, plan.gpu)) < demand.gpus:
        if tainted := tolerations_missing(cluster, demand.tolerations, demand.gpus, plan.gpu):
            notes.append(_behind_taints(plan.gpu, tainted))
        else:
            notes.append(f"No node has {f'{demand.gpus} of ' if most else ''}{plan.gpu} now.")
        if any(group.product is None for group in cluster.groups):
            notes.append(
                f"Nodes with {demand.resource} have no label {product_label(demand.resource)}, by which "
                f"spec.accelerator.products selects: pods go to none of them. To use them remove it and set {_MEMORY}, "
                "or label them."
            )
        if renamed := sorted(name for name in seen if name and name.startswith(f"{plan.gpu}-")):
            notes.append(f"Nodes have {', '.join(renamed)}: add it to the list where it will do.")
    is_out_of_reach = not demand.products and all(offer.per_node < demand.gpus for offer in offered)
    if is_out_of_reach and (tainted := tolerations_missing(cluster, demand.tolerations, demand.gpus)):
        notes.append(_behind_taints(demand.resource, tainted))
    if any(o.product == plan.gpu and o.sharing is not None and not o.sharing.has_own_memory for o in offered):
        notes.append(
            f"Several pods share each {plan.gpu} (time slicing), and the plan counts on all of its memory: lower "
            "spec.accelerator.gpuMemoryUtilization where others use it."
        )
    if _most(offered, plan.gpu or "") < demand.gpus:
        notes.append(gpus.note(demand.gpus, plan.gpu))
    return replace(plan, reason=" ".join(filter(None, (plan.reason, *notes)))) if any(notes) else plan


def _most(offered: Sequence[Offer], product: str) -> int:
    """Number of a product on the largest node; 0: no node has it."""
    return max((offer.per_node for offer in offered if offer.product == product), default=0)


def _margin(plan: Plan) -> float:
    return float("-inf") if plan.margin_gib is None else plan.margin_gib


def _would_fit(
    elsewhere: Iterable[Device], best: Device, demand: GPUDemand, cluster: ClusterGPUs, plan_for: PlanFor
) -> str:
    """The smallest sufficient product: of the cluster, behind taints, else of clouds."""
    for device in elsewhere:
        if plan_for(device).verdict is Fit.FITS:
            return f"It would fit on {device.name}, which this cluster has."
    for offer in offers(cluster, _ALL):
        missing = tolerations_missing(cluster, demand.tolerations, demand.gpus, offer.product)
        if missing and offer.device is not None and plan_for(offer.device).verdict is Fit.FITS:
            return (
                f"It would fit on {offer.device.name}, whose nodes have taints that the pods do not tolerate: add "
                f"{missing} to {_TOLERATIONS}."
            )
    if demand.profile is not None:
        return "A larger slice (spec.accelerator.resourceName) has more."
    for product in USUAL:
        usual = gpus.device(product)
        if usual is None or usual.is_amd != best.is_amd or usual.memory_gib <= best.memory_gib:
            continue
        if plan_for(usual).verdict is Fit.FITS:
            return f"It would fit on {product}, which no node has."
    return ""


def _too_few(demand: GPUDemand, cluster: ClusterGPUs, offered: Sequence[Offer], plan_for: PlanFor) -> Pick | None:
    """The answer where no node has as many GPUs as one replica needs, and none is named.

    An autoscaler may add a larger node for a waiting pod, so that this holds no pod back.
    """
    most = max(offered, key=lambda offer: offer.per_node, default=None)
    if demand.products or most is None or most.per_node >= demand.gpus:
        return None
    plan = plan_for(most.device)
    if demand.gpus > max(most.per_node, *(gpus.most_per_node(offer.product) for offer in offered)):
        why = _too_many(demand, offered)
        refused = replace(plan, verdict=Fit.DOES_NOT_FIT, reason=f"{why[:1].upper()}{why[1:]}", margin_gib=None)
        return Pick(refused, device=most.device, is_short=True)
    reason = (
        f"One replica needs {demand.gpus} x {demand.resource} on one node, and the largest node has {most.per_node}. "
        f"Which GPU a larger one would have is not known: lower spec.parallelism, add a node, or give "
        f"{_MEMORY if _are_unlabelled(offered) else 'spec.accelerator.products'}."
    )
    if tainted := tolerations_missing(cluster, demand.tolerations, demand.gpus):
        reason += f" {_behind_taints(demand.resource, tainted)}"
    missing = (f"a node with {demand.gpus} x {demand.resource}", *plan.missing)
    return Pick(replace(plan, verdict=Fit.UNKNOWN, reason=reason, missing=missing, margin_gib=None))


def _are_unlabelled(offered: Iterable[Offer]) -> bool:
    """Whether some nodes lack a label for their GPU, so that no list of products selects them."""
    return any(offer.product is None for offer in offered)


def _behind_taints(what: str, missing: str) -> str:
    return f"Nodes with {what} have taints that the pods do not tolerate: add {missing} to {_TOLERATIONS}."


def _unknown_gpu(demand: GPUDemand, cluster: ClusterGPUs, offered: Sequence[Offer], plan: Plan) -> Plan:
    """The answer where the GPU or its memory is unknown; other missing facts stay named."""
    unknown = demand.products
    if not unknown and not _are_unlabelled(offered):
        unknown = tuple(offer.product for offer in offered if offer.product is not None and offer.device is None)
    which = "Which GPU it will be is not known:"
    missing = [_MEMORY]
    if unknown:
        reason = f"The memory of {', '.join(unknown)} is not known: neither a node nor the catalogue has it."
        reason = f"{reason} Give {_MEMORY}."
    elif offered:
        reason = (
            f"{which} nodes with {demand.resource} have no label {product_label(demand.resource)}. Give {_MEMORY}, or "
            "label the nodes."
        )
    elif tainted := tolerations_missing(cluster, demand.tolerations, 1):
        said = _behind_taints(demand.resource, tainted)
        reason, missing = f"{which} {said[:1].lower()}{said[1:]}", [_TOLERATIONS]
    else:
        seen = cluster.unread or f"no node has {demand.resource}"
        give = "Give" if cluster.missing_right is None else "Grant it (the chart's role has it), or give"
        reason, missing = f"{which} {seen}. {give} {_GPU_FIELDS}.", [_GPU_FIELDS]
    if cluster.missing_right is not None and not demand.products:
        missing.insert(0, f"the right to {cluster.missing_right}")
    others_missing = tuple(item for item in plan.missing if "GPU" not in item)
    return replace(plan, verdict=Fit.UNKNOWN, reason=reason, missing=(*missing, *others_missing))
