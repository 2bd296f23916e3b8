"""Plans against a cluster: which of its GPUs the operator would take for a service, and where replicas of it would run
now, by what is free by node and by the operator's arithmetic (llmservice_planner.room).

The scheduler has the last word: what pods want of each other and where volumes are is not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kubeloop.errors import Forbidden, NotFound
from llmservice_api.constants import LLMSERVICE
from llmservice_api.errors import InvalidSpec
from llmservice_api.service import LLMService
from llmservice_api.untrusted import stored_status
from llmservice_operator.behaviours import groups
from llmservice_operator.behaviours.fit.assess import is_assessed
from llmservice_operator.behaviours.fit.planning import demand
from llmservice_operator.facts.scheduling import AcceleratorRequest, gpus_text
from llmservice_operator.manifests.inspection import inspection_key
from llmservice_operator.manifests.pod_template import pod_template
from llmservice_operator.manifests.revision import RevisionChoices
from llmservice_operator.manifests.server import accelerator_resource, domain_label
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.verdict import document as plan_document
from llmservice_operator.readers.nodes import RIGHT, RIGHT_TO_PODS, Nodes, QuotaReader
from llmservice_planner.checks import Combination, verdicts
from llmservice_planner.cluster import ARCHITECTURE, ClusterGPUs, device_of, group_of, offers
from llmservice_planner.model import spec_facts
from llmservice_planner.model.architecture import Tensors
from llmservice_planner.pick import GPUDemand, Pick, pick
from llmservice_planner.plan import Device, Fit, Plan
from llmservice_planner.requests import extended
from llmservice_planner.room import (
    PODS,
    Amounts,
    NodeRoom,
    Quota,
    Room,
    fitting,
    fitting_on_separate_devices,
    least_admitted,
    nodes_for,
    replicas_by_domain,
    requests_of,
    tolerates,
)
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Api
from llmservice_cli.cluster import connect
from llmservice_cli.errors import BadInput, CliError, ExitCode, Refused
from llmservice_cli.models import from_document
from llmservice_cli.plan import Options, in_options
from llmservice_cli.render.decided import namespace_of
from llmservice_cli.settings import settings_of

from .answers import Answer, NodePlace, Placement, answer, honest, plan_of, with_remedies
from .questions import Question, split_problems

Json = Mapping[str, Any]


async def look(questions: Iterable[Question], options: Options) -> list[tuple[Question, Seen]]:
    """Each with what the cluster has for it; CliError where that does not answer or a right is missing."""
    try:
        async with connect(options) as connection:
            kube, reader, found = connection.kube, Reader(connection.kube), []
            for question in questions:
                manifest = {"metadata": {"namespace": question.namespace}}
                namespace = namespace_of(manifest, options.namespace, connection.namespace)
                question = await with_facts(question, namespace, kube)
                seen = await reader.seen(question.service, namespace)
                found.append((over_nodes(question, seen.gpus), seen))
            return found
    except CliError as error:
        error.exit_code = ExitCode.NOT_ASKED  # 1 would say that it does not fit
        raise


@dataclass(frozen=True, slots=True)
class Seen:
    """What a cluster has for one service, and what it lets the service's namespace have."""

    namespace: str
    settings: Settings
    gpus: ClusterGPUs
    room: Room
    quotas: tuple[Quota, ...] = ()
    has_cpu_image: bool = False
    """Whether the operator is known to have an image with vLLM for CPUs."""


class Reader:
    """Reads what each service needs; services of the same nodes share one list."""

    def __init__(self, kube: Api) -> None:
        self._kube, self._nodes, self._quotas = kube, Nodes(kube), QuotaReader(kube)
        self._settings: dict[str, Settings] = {}
        """By namespace: of the operator that watches it."""

    async def seen(self, service: LLMService, namespace: str) -> Seen:
        """CliError without the right to list nodes."""
        resource = accelerator_resource(service)
        found = ClusterGPUs()
        if resource is not None:
            found = await self._nodes.gpus(resource, service.spec.pod_template.spec.node_selector)
        room = await self._nodes.room(resource)
        if found.missing_right or (room.unknown and RIGHT in room.unknown):
            raise _no_right()
        if room.unknown:
            room = Room(unknown=f"you have no right to {RIGHT_TO_PODS}")
        if namespace not in self._settings:
            self._settings[namespace], _ = await settings_of(self._kube, namespace)
        settings, quotas = self._settings[namespace], await self._quotas.of(namespace)
        return Seen(namespace, _with_images(settings), found, room, quotas, bool(settings.default_cpu_image))


def _with_images(settings: Settings) -> Settings:
    """A plan is not about images, which an installation may have none of for some accelerators."""
    image = settings.operator_image
    return replace(
        settings,
        default_amd_image=settings.default_amd_image or image,
        default_cpu_image=settings.default_cpu_image or image,
    )


def _no_right() -> CliError:
    """To list nodes; 1 would say that the model does not fit."""
    error = CliError(
        f"you have no right to {RIGHT}",
        "ask for a ClusterRole with list on nodes and pods, bound for the cluster; without --cluster, --context and"
        " --kubeconfig a plan needs no rights",
    )
    error.exit_code = ExitCode.NOT_ASKED
    return error


def over_nodes(question: Question, cluster: ClusterGPUs) -> Question:
    """The question with a number for `nodes: auto`, by the operator's rule."""

    def spread_over(service: LLMService) -> Question:
        request = replace(question.request, nodes=service.spec.parallelism.node_count)
        return replace(question, service=service, request=request)

    def picked(service: LLMService, cluster: ClusterGPUs) -> Pick | None:
        return _pick(spread_over(service), cluster) if is_assessed(service) else None

    return spread_over(groups.over_nodes(question.service, cluster, picked))


def on_offer(question: Question, seen: Seen) -> Question:
    """The same about the products that are named and those of the cluster's nodes, for a grid."""
    if accelerator_resource(question.service) is None:
        return question
    named = {device.name for device in question.devices}
    found = (offer.device for offer in offers(seen.gpus, demand(question.service).tolerations))
    devices = (*question.devices, *(one for one in found if one is not None and one.name not in named))
    if not devices:
        raise BadInput.of("--compare", "no node that the pods may go to has a GPU that is known.", "Name some: --gpu.")
    return replace(question, devices=devices, is_of_a_cluster=True)


def answered(question: Question, seen: Seen) -> Answer:
    """The plan for the product that the operator would take, and the room for it."""
    service, resource = question.service, accelerator_resource(question.service)
    if resource is None:
        found, product, chosen = answer(question), None, RevisionChoices()
    else:
        found, product, chosen = _picked(question, seen)
    chosen = replace(chosen, plan=plan_document(found.plan))
    is_required = bool(question.given.devices or service.spec.accelerator.products)
    spec = pod_template(service, seen.settings, chosen)["spec"]
    excluded = (*(chosen.excluded_gpus or ()), *(chosen.excluded_architectures or ()))
    pods = _Pods(spec, resource, product if is_required else None, excluded, requests_of(spec))
    size = service.spec.parallelism.node_count
    placement = Placement(
        product,
        resource,
        _places(pods, seen.room),
        asked=service.spec.scaling.replicas,
        is_planned=found.plan.verdict in (Fit.FITS, Fit.TIGHT),
        quota=least_admitted(seen.quotas, {name: each * size for name, each in pods.wanted.items()}, {}),
        unknown=_CLAIMED if service.spec.accelerator.has_claims else seen.room.unknown,
        is_required=is_required,
        size=size,
        topology_key=domain_label(spec),
        domains=_domains(pods, seen.room, size) if size > 1 else (),
    )
    if placement.replicas == 0:
        placement = replace(placement, reason=_reason(pods, seen, placement))
    return replace(found, placement=placement)


def _picked(question: Question, seen: Seen) -> tuple[Answer, str | None, RevisionChoices]:
    """By the operator's rule, the product that pods would get or prefer, and what would be recorded of the choice."""
    wanted, choice = _wanted(question), _pick(question, seen.gpus)
    plan, request = choice.plan, replace(question.request, device=choice.device)
    if choice.device is not None:
        plan = with_remedies(replace(question, devices=choice.others), request, plan)
    if not question.is_manifest:
        plan = replace(plan, reason=in_options(plan.reason))
    product = choice.product or (plan.gpu if plan.gpu in wanted.products else None)
    chosen = RevisionChoices(gpu=product, excluded_gpus=choice.excluded, excluded_architectures=choice.left_out)
    return Answer(question, request, honest(question, plan)), product, chosen


def _wanted(question: Question) -> GPUDemand:
    given, wanted = question.given, demand(question.service)
    wanted = replace(wanted, memory_gib=given.values.get("gpu_memory_gib", wanted.memory_gib))
    return replace(wanted, products=tuple(device.name for device in given.devices)) if given.devices else wanted


def _pick(question: Question, cluster: ClusterGPUs) -> Pick:
    return pick(_wanted(question), cluster, lambda device: _judged(question, device))


def _judged(question: Question, device: Device | None) -> Plan:
    """The plan of one product; what vLLM cannot compute does not fit on it, whatever its memory."""
    plan = plan_of(question, replace(question.request, device=device))
    problems = () if device is None else verdicts(Combination.from_spec(question.service.spec, device.name))
    if not problems or plan.verdict is Fit.UNKNOWN:
        return plan
    reason = f"{device and device.name}: {problems[0].message}"
    return replace(plan, verdict=Fit.DOES_NOT_FIT, reason=reason, margin_gib=None)


LABEL = "status.model of the cluster's LLMService"


async def with_facts(question: Question, namespace: str, kube: Api) -> Question:
    """The question with what the operator's inspection found of the same model; as it is where there is nothing."""
    if question.request.architecture is not None or question.name is None:
        return question
    try:
        stored = await kube.get(LLMSERVICE, namespace, question.name)
    except (Forbidden, NotFound):
        return question
    return with_record(question, stored_status((stored or {}).get("status")).get("model"))


def with_record(question: Question, record: object) -> Question:
    """What cannot be read of a record is left out: anybody who may write the status chooses what it says."""
    spec = question.service.spec
    if not isinstance(record, Mapping) or record.get("inspection") != inspection_key(spec):
        return question
    config, tensors = record.get("config"), record.get("tensors")
    try:
        stated = spec_facts.from_spec(spec.model.architecture)
        document = spec_facts.merge(json.loads(config), stated) if isinstance(config, str) else None
        known = None if tensors is None else Tensors.from_document(tensors)
        found = from_document(document, LABEL, known)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, Refused, InvalidSpec, BadInput):
        return question
    if found.architecture is None:
        return question
    request = replace(
        question.request,
        architecture=extended(found.architecture, spec.context_extension),
        tensors=found.tensors,
    )
    if problems := list(split_problems(request, lambda name: name)):
        raise BadInput(problems)
    notes = (*question.notes, f"the model's facts are from {LABEL}")
    return replace(question, request=request, missing=(), why_missing=None, notes=notes)


@dataclass(frozen=True, slots=True)
class _Pods:
    """Pods of a replica, as the operator renders them."""

    spec: Json
    resource: str | None
    product: str | None
    """That they are bound to."""
    excluded: Collection[str]
    """Products and architectures that they are kept away from."""
    wanted: Amounts
    """What each asks for."""

    def may_go_to(self, room: Room) -> tuple[NodeRoom, ...]:
        """Nodes that have what they ask for, full ones too: with the product, or that the spec does not exclude."""
        found = (node for node in nodes_for(room, self.spec) if self._has_resource(node))
        return tuple(n for n in found if self.product in (None, n.product, _product(n, self.resource)))

    def seen(self, room: Room) -> Iterator[NodeRoom]:
        """Nodes that have what they ask for."""
        return (node for node in room.nodes if self._has_resource(node))

    def room_on(self, node: NodeRoom) -> int:
        return fitting_on_separate_devices(node, self.wanted, self.resource)

    def _has_resource(self, node: NodeRoom) -> bool:
        return self.resource is None or bool(node.allocatable.get(self.resource))


def _places(pods: _Pods, room: Room) -> tuple[NodePlace, ...]:
    """The nodes that have what the pods ask for, those with the most room first."""
    reachable = {node.name for node in pods.may_go_to(room)}
    found = (_place(node, pods, is_reachable=node.name in reachable) for node in pods.seen(room))
    return tuple(sorted(found, key=lambda node: (-node.replicas, -node.free, node.name)))


_CLAIMED = "devices of claims are not counted; kubectl get resourceslices,resourceclaims -A lists them"


def _domains(pods: _Pods, room: Room, size: int) -> tuple[tuple[str, int], ...]:
    """Those with the most room for replicas of several pods first."""
    found = replicas_by_domain(pods.may_go_to(room), domain_label(pods.spec), pods.room_on, size)
    return tuple(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def _reason(pods: _Pods, seen: Seen, placement: Placement) -> str:
    """About the nodes that pods may go to; where there are none, an example of what keeps them away."""
    nodes = placement.nodes
    if any(node.replicas for node in nodes) and not (placement.quota and placement.quota.replicas == 0):
        within = "" if placement.topology_key is None else f" with the same {placement.topology_key}"
        return f"A replica needs room on {placement.size} nodes{within} at once."
    if pods.resource is None:
        return "No node that the pods may go to has the CPUs and the memory that a replica asks for."
    asked, room = (
        AcceleratorRequest(pods.resource, int(pods.wanted.get(pods.resource, 0))),
        Room(pods.may_go_to(seen.room)),
    )
    if not room.nodes:
        why = f" Of {nodes[0].name}: {nodes[0].reason}." if nodes else ""
        return f"A pod asks for {asked.count} {asked.resource}; none of the nodes that it may go to has any.{why}"
    return clean(gpus_text(asked, room, seen.namespace))


def _place(node: NodeRoom, pods: _Pods, *, is_reachable: bool) -> NodePlace:
    resource, labels, label = pods.resource, (node.product, _product(node, pods.resource)), domain_label(pods.spec)
    node = node if resource is None else replace(node, product=node.product_of(resource))
    replicas = pods.room_on(node) if is_reachable else 0
    has, why = _product(node, resource), None
    if not is_reachable:
        why = _kept_away(node, pods, has, is_of_product=pods.product in (None, *labels))
    elif replicas == 0 and fitting(node, pods.wanted) > 0:
        why = "pods may hold the memory of the GPUs that it shares"
    elif replicas == 0:
        why = _lacking(node, pods.wanted)
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
        None if label is None or label not in node.labels else clean(node.labels[label]),
    )


def _product(node: NodeRoom, resource: str | None) -> str | None:
    return node.product if resource is None else node.product_of(resource)


def _kept_away(node: NodeRoom, pods: _Pods, has: str | None, *, is_of_product: bool) -> str:
    """By taints, else by the product, else by other labels."""
    tolerations = pods.spec.get("tolerations") or ()
    for key, value, effect in node.taints:
        if not tolerates((key, value, effect), tolerations):
            return f"the taint {key}{f'={value}' if value else ''}:{effect} is not tolerated"
    if not is_of_product and has != pods.product:
        return f"its GPU is {has or 'not named by a label'}, not {pods.product}"
    if (architecture := node.labels.get(ARCHITECTURE)) in pods.excluded:
        return f"it is {architecture}, which the images are not built for"
    if has in pods.excluded:
        return f"it does not fit on {has}"
    return "its labels do not match the node selector or the affinity"


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
