"""Plans against a cluster: which of its GPUs the operator would take for a service, and where there is room now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kubeloop.errors import Forbidden, NotFound
from llmservice_api.constants import API_VERSION, KIND
from llmservice_api.errors import InvalidSpec
from llmservice_api.kinds import LLMSERVICE
from llmservice_api.service import LLMService
from llmservice_api.untrusted import stored_status
from llmservice_operator.behaviours.fit.planning import demand
from llmservice_operator.manifests.inspection import inspection_key
from llmservice_operator.manifests.pod_template import pod_template
from llmservice_operator.manifests.resources import accelerator_resource
from llmservice_operator.manifests.revision import RevisionChoices
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.status.plan import document as plan_document
from llmservice_operator.readers.nodes import RIGHT, RIGHT_TO_PODS, Nodes
from llmservice_operator.readers.quotas import QuotaReader
from llmservice_planner.cluster import ClusterGPUs, offers
from llmservice_planner.compatibility import Combination, verdicts
from llmservice_planner.model import spec_facts
from llmservice_planner.model.tensors import Tensors
from llmservice_planner.pick import pick
from llmservice_planner.plan import Device, Fit, Plan
from llmservice_planner.quotas import Quota
from llmservice_planner.requests import extended
from llmservice_planner.room import Room

from llmservice_cli.api import Api
from llmservice_cli.cluster import Connection, connect
from llmservice_cli.diff.operators import settings_of
from llmservice_cli.errors import BadInput, CliError, ExitCode
from llmservice_cli.render.desired import namespace_of

from .answers import Answer, Asked, answer, honest, plan_of, with_remedies
from .arguments import Options
from .compare import compare
from .manifest import admitted_with
from .models import from_document
from .options import in_options
from .output import compared, present
from .placement import place
from .questions import Given, Question, split_problems
from .values import Refused


async def run(asked: Asked, options: Options) -> ExitCode:
    """Print the plans, or the grids; CliError where the cluster does not answer or a right is missing."""
    try:
        async with connect(options) as connection:
            reader = Reader(connection.kube)
            found = [await _seen(each, asked, reader, connection, options) for each in asked.questions]
    except CliError as error:
        error.exit_code = ExitCode.NOT_ASKED  # 1 would say that it does not fit
        raise
    if options.compare:
        grids = [compare(on_offer(*each)) for each in found]
        return asked.ended(compared(grids, options, is_list=asked.is_list))
    answers = [answered(*each, asked.given) for each in found]
    return asked.ended(present(answers, options, is_list=asked.is_list))


async def _seen(
    question: Question, asked: Asked, reader: Reader, connection: Connection, options: Options
) -> tuple[Question, LLMService, Seen]:
    service = question.service or of_options(question, asked.given)
    namespace = namespace_of({"metadata": {"namespace": question.namespace}}, options.namespace, connection.namespace)
    question = await with_facts(question, service, namespace, connection.kube)
    return question, service, await reader.seen(service, namespace)


NAMELESS = "planned"
"""An LLMService that nobody wrote: options say what it is."""


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
            raise refused(RIGHT)
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


def refused(right: str) -> CliError:
    """A missing right; 1 would say that the model does not fit."""
    error = CliError(
        f"you have no right to {right}",
        "ask for a ClusterRole with list on nodes and pods, bound for the cluster; without --cluster, --context and"
        " --kubeconfig a plan needs no rights",
    )
    error.exit_code = ExitCode.NOT_ASKED
    return error


def of_options(question: Question, given: Given) -> LLMService:
    """The LLMService that options describe; BadInput where the operator would refuse it."""
    spec: dict[str, Any] = {"model": {"uri": "hf://planned/model"}}
    if question.devices:
        spec["accelerator"] = {"type": question.devices[0].accelerator}
    made = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": NAMELESS, "namespace": NAMELESS},
        "spec": spec,
    }
    try:
        return LLMService.from_object(admitted_with(made, given.values))
    except InvalidSpec as invalid:
        raise BadInput(invalid.problems) from None


def on_offer(question: Question, service: LLMService, seen: Seen) -> Question:
    """The same about the products that are named and those of the cluster's nodes, for a grid."""
    if accelerator_resource(service) is None:
        return question
    named = {device.name for device in question.devices}
    found = (offer.device for offer in offers(seen.gpus, demand(service).tolerations))
    devices = (*question.devices, *(one for one in found if one is not None and one.name not in named))
    if not devices:
        raise BadInput.of("--compare", "no node that the pods may go to has a GPU that is known.", "Name some: --gpu.")
    return replace(question, devices=devices, is_of_a_cluster=True)


def answered(question: Question, service: LLMService, seen: Seen, given: Given) -> Answer:
    """The plan for the product that the operator would take, and the room for it."""
    resource = accelerator_resource(service)
    if resource is None:
        found, product, chosen = answer(question), None, RevisionChoices()
    else:
        found, product, chosen = _picked(question, service, seen, given)
    chosen = replace(chosen, plan=plan_document(found.plan))
    return replace(
        found,
        placement=place(
            pod_template(service, seen.settings, chosen)["spec"],
            seen.room,
            seen.quotas,
            product=product,
            is_required=bool(given.devices or service.spec.accelerator.products),
            excluded=(*(chosen.excluded_gpus or ()), *(chosen.excluded_architectures or ())),
            resource=resource,
            namespace=seen.namespace,
            asked=service.spec.scaling.replicas,
            is_planned=found.plan.verdict in (Fit.FITS, Fit.TIGHT),
        ),
    )


def _picked(
    question: Question, service: LLMService, seen: Seen, given: Given
) -> tuple[Answer, str | None, RevisionChoices]:
    """By the operator's rule, the product that pods would get or prefer, and what would be recorded of the choice."""
    wanted = demand(service)
    wanted = replace(wanted, memory_gib=given.values.get("gpu_memory_gib", wanted.memory_gib))
    if given.devices:
        wanted = replace(wanted, products=tuple(device.name for device in given.devices))
    choice = pick(wanted, seen.gpus, lambda device: _judged(question, service, device))
    plan, request = choice.plan, replace(question.request, device=choice.device)
    if plan.verdict in (Fit.DOES_NOT_FIT, Fit.TIGHT) and not plan.remedies and choice.device is not None:
        plan = with_remedies(replace(question, devices=choice.others), request, plan)
    if not question.is_manifest:
        plan = replace(plan, reason=in_options(plan.reason))
    product = choice.product or (plan.gpu if plan.gpu in wanted.products else None)
    chosen = RevisionChoices(gpu=product, excluded_gpus=choice.excluded, excluded_architectures=choice.left_out)
    return (
        Answer(question, request, honest(question, plan)),
        product,
        chosen,
    )


def _judged(question: Question, service: LLMService, device: Device | None) -> Plan:
    """The plan of one product; what vLLM cannot compute does not fit on it, whatever its memory."""
    plan = plan_of(question, replace(question.request, device=device))
    problems = () if device is None else tuple(verdicts(Combination.from_spec(service.spec, device.name)))
    if not problems or plan.verdict is Fit.UNKNOWN:
        return plan
    reason = f"{device and device.name}: {problems[0].message}"
    return replace(plan, verdict=Fit.DOES_NOT_FIT, reason=reason, margin_gib=None)


LABEL = "status.model of the cluster's LLMService"


async def with_facts(question: Question, service: LLMService, namespace: str, kube: Api) -> Question:
    """The question with what the operator's inspection found of the same model; as it is where there is nothing."""
    if question.request.architecture is not None or question.name is None:
        return question
    try:
        stored = await kube.get(LLMSERVICE, namespace, question.name)
    except (Forbidden, NotFound):
        return question
    status = stored_status((stored or {}).get("status"))
    return with_record(question, service, status.get("model"))


def with_record(question: Question, service: LLMService, record: object) -> Question:
    """What cannot be read of a record is left out: anybody who may write the status chooses what it says."""
    if not isinstance(record, Mapping) or record.get("inspection") != inspection_key(service.spec):
        return question
    config, tensors = record.get("config"), record.get("tensors")
    try:
        stated = spec_facts.from_spec(service.spec.model.architecture)
        document = spec_facts.merge(json.loads(config), stated) if isinstance(config, str) else None
        known = None if tensors is None else Tensors.from_document(tensors)
        found = from_document(document, LABEL, known)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, Refused, InvalidSpec, BadInput):
        return question
    if found.architecture is None:
        return question
    request = replace(
        question.request,
        architecture=extended(found.architecture, service.spec.context_extension),
        tensors=found.tensors,
    )
    if problems := list(split_problems(request, lambda name: name)):
        raise BadInput(problems)
    notes = (*question.notes, f"the model's facts are from {LABEL}")
    return replace(question, request=request, missing=(), why_missing=None, notes=notes)
