"""Calls the planner for one service, with a cache: equal questions share an answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from llmservice_api.engine import ContextExtension
from llmservice_api.errors import InvalidSpec
from llmservice_api.service import MAX_CACHED_BYTES, LLMService, parse_spec
from llmservice_planner import devices, gpus, host, memory, remedies
from llmservice_planner.checks import Combination, check, verdicts
from llmservice_planner.cluster import ARCHITECTURE, ClusterGPUs, is_part
from llmservice_planner.devices import ClusterDevices
from llmservice_planner.model import reading
from llmservice_planner.model.architecture import Architecture, Incomplete, InvalidModel, Tensors, UnsupportedModel
from llmservice_planner.model.reading import ReadingFailed, ReadingStopped, Stopped
from llmservice_planner.pick import GPUDemand, Pick, pick
from llmservice_planner.plan import NOT_READ, Device, Fit, Plan, Request
from llmservice_planner.quantity import gibibytes
from llmservice_planner.requests import extended, limit_gib, request_of
from llmservice_planner.room import profile_of

from llmservice_operator.manifests.devices import device_count
from llmservice_operator.manifests.pod_template import Server, server
from llmservice_operator.manifests.revision import RevisionChoices
from llmservice_operator.manifests.server import (
    accelerator_resource,
    effective_cpu_kv_cache_gib,
    tolerations,
    vllm_version,
)
from llmservice_operator.manifests.settings import DEFAULT_VLLM_VERSION, Settings

logger = logging.getLogger(__name__)

_REMEMBERED = 1024
_MODELS = 128
"""Cached architectures, of at most a quarter of a MiB each."""
_MOST_GPUS = 8
"""GPUs of one node if no node is known: the usual number."""

_LEAST_OF_CARD = 0.9
"""Share of the catalogue's memory: figures of drivers differ by less."""

_GIVE_FACTS = (
    "Give the model's facts in spec.model.architecture (numHiddenLayers, hiddenSize, numAttentionHeads, vocabSize and "
    "intermediateSize at least)."
)
_READ_AS = f"{_GIVE_FACTS} Its modelType says as which known type they are read; without it, as Llama's."
_NEVER_AGAIN = f"{_GIVE_FACTS} It is not read again until it changes."
_STOPPED = {
    Stopped.CPU: f"The model's config.json was not read: it takes more processor time than it may. {_NEVER_AGAIN}",
    Stopped.MEMORY: f"The model's config.json was not read: it takes more memory than it may. {_NEVER_AGAIN}",
    Stopped.TIME: f"The model's config.json was not read: it takes longer than it may. {_NEVER_AGAIN}",
    Stopped.DIED: f"The model's config.json was not read: the process that read it ended. {_NEVER_AGAIN}",
}
_CHOSEN_BY_CLAIMS = (
    "Which GPU it will be is not known: your ResourceClaimTemplates choose it. Give the memory of one in "
    "spec.accelerator.memory."
)

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """Input of the planner, in a form that is cheap to compare: an architecture has thousands of values."""

    request: Request
    """Without architecture and tensors."""
    model: bytes | None
    """The model's facts as returned by `reading.read`."""
    tensors: str | None
    extension: ContextExtension | None
    memory_limit_gib: float | None = None
    """Memory limit of the container, where the model is in its memory."""


def planner_input(
    service: LLMService, settings: Settings, model: bytes | None, tensors: str | None, template: Json | None = None
) -> PlannerInput:
    """The question for a service's spec; without a device, except on CPUs.

    `template`: the recorded one for an existing revision, for its vLLM version and memory.
    """
    spec, runs = service.spec, Server() if template is None else server(template)
    request = request_of(
        spec,
        architecture=None,
        tensors=None,
        device=None,
        vllm_version=runs.vllm_version or vllm_version(service, settings),
        cpu_kv_cache_gib=runs.cpu_kv_cache_gib or effective_cpu_kv_cache_gib(service, settings),
    )
    return PlannerInput(request, model, tensors, spec.context_extension, limit_gib(spec))


def on(asked: PlannerInput, device: Device | None) -> PlannerInput:
    return asked if device is None else replace(asked, request=replace(asked.request, device=device))


def pick_device(service: LLMService, asked: PlannerInput, cluster: ClusterGPUs) -> Pick:
    """The choice among the cluster's GPUs, with remedies where it may not fit."""
    choice = pick_without_remedies(service, asked, cluster)
    most = max((group.per_node for group in cluster.groups), default=_MOST_GPUS)
    if choice.device is not None and is_part(choice.device.name, cluster.groups):
        most = 1
    plan = with_remedies(service, choice.plan, on(asked, choice.device), choice.others, most)
    return replace(choice, plan=plan)


def pick_without_remedies(service: LLMService, asked: PlannerInput, cluster: ClusterGPUs) -> Pick:
    return pick(demand(service), cluster, lambda device: plan_for_device(service, asked, device))


def pick_claimed(service: LLMService, asked: PlannerInput, cluster: ClusterDevices) -> Pick:
    """The choice among devices that a claim may get, with remedies where it may not fit."""

    def plan_for(device: Device, length: int | None) -> Plan:
        planned = asked if length is None else replace(asked, request=replace(asked.request, max_model_len=length))
        return plan_for_device(service, planned, device)

    choice = devices.pick_claimed(demand(service), cluster, plan_for, is_amd=service.spec.accelerator.type == "amd")
    return replace(choice, plan=with_remedies(service, choice.plan, on(asked, choice.device)))


def plan_for_device(service: LLMService, asked: PlannerInput, device: Device | None) -> Plan:
    """The plan for one product; DoesNotFit where the planner cannot compute it, whatever its memory."""
    plan = answer(on(asked, device))
    problems = () if device is None else verdicts(Combination.from_spec(service.spec, device.name))
    if not problems or plan.verdict is Fit.UNKNOWN:
        return plan
    reason = f"{device and device.name}: {problems[0].message}"
    return replace(plan, verdict=Fit.DOES_NOT_FIT, reason=reason, margin_gib=None)


def plan_for_input(service: LLMService, asked: PlannerInput) -> Pick:
    """The plan for the question's device, with remedies where it may not fit."""
    return Pick(with_remedies(service, answer(asked), asked))


def plan_without_facts(service: LLMService, asked: PlannerInput, why_not: str) -> Pick:
    """The plan without facts about the model, with the reason for the status."""
    return Pick(replace(plan_for_input(service, asked).plan, reason=why_not))


def plan_for_claims(service: LLMService, asked: PlannerInput) -> Pick:
    """The plan for devices that ResourceClaimTemplates of the user choose: only the spec can state their memory."""
    memory = stated_memory_gib(service)
    if memory is None:
        plan, missing = answer(asked), "spec.accelerator.memory"
        others = (item for item in plan.missing if "GPU" not in item)
        return Pick(replace(plan, reason=_CHOSEN_BY_CLAIMS, missing=(missing, *others)))
    device = Device(f"a GPU of {memory:g} GiB", memory, is_amd=service.spec.accelerator.type == "amd")
    return Pick(with_remedies(service, plan_for_device(service, asked, device), on(asked, device)))


def with_remedies(
    service: LLMService, plan: Plan, asked: PlannerInput, others: tuple[Device, ...] = (), most_gpus: int = _MOST_GPUS
) -> Plan:
    """The plan with changes that would help, where memory is missing or the planner refuses the request.

    There are none for refusals of nodes or of the compatibility matrix.
    """
    if plan.verdict not in (Fit.DOES_NOT_FIT, Fit.TIGHT) or plan.remedies or asked.request.device is None:
        return plan
    is_refused = plan.margin_gib is None
    if is_refused and not plan.reason.startswith(answer(asked).reason):
        return plan
    if is_part(asked.request.device.name, ()):
        most_gpus = 1
    most_gpus *= service.spec.parallelism.node_count
    spec = service.spec.model_dump_json(by_alias=True, exclude_defaults=True)
    find = _try_remedies if len(spec) <= MAX_CACHED_BYTES else _try_remedies.__wrapped__
    found = find(asked, plan, others, most_gpus, spec)
    return plan if is_refused and not found.remedies else found


def demand(service: LLMService) -> GPUDemand:
    """The spec's requirements of GPUs."""
    spec, claim = service.spec, service.spec.accelerator.claim
    resource = accelerator_resource(service) if claim is None else claim.device_class
    pods = spec.pod_template.spec
    assert resource is not None, "on CPUs there is nothing to pick"
    return GPUDemand(
        gpus=device_count(service),
        resource=resource,
        products=spec.accelerator.products or (),
        memory_gib=stated_memory_gib(service),
        tolerations=tuple(tolerations(service)),
        names_architecture=ARCHITECTURE in json.dumps([pods.node_selector, pods.affinity]),
        is_length_planned=spec.batching.max_model_len == "auto",
        nodes=spec.parallelism.node_count,
    )


def stated_memory_gib(service: LLMService) -> float | None:
    """Memory of one GPU that the spec states."""
    stated = service.spec.accelerator.memory
    return None if stated is None else gibibytes(stated)


def recorded_device(service: LLMService, chosen: RevisionChoices) -> Device | None:
    """The GPU of an existing revision, if one was chosen that the catalogue knows.

    For shared GPUs, and for slices with their GPU's label, it has the memory that a pod gets.
    """
    if service.spec.accelerator.type == "cpu" or chosen.gpu is None:
        return None
    profile = profile_of(accelerator_resource(service) or "")
    gpu = chosen.gpu if profile is None else gpus.slice_of(chosen.gpu, profile)
    device = gpus.device(gpu) or gpus.device(gpu, stated_memory_gib(service))
    recorded = ((chosen.plan or {}).get("perGPU") or {}).get("memoryGiB")
    if device is None or recorded is None or recorded > _LEAST_OF_CARD * device.memory_gib:
        return device
    return replace(device, memory_gib=float(recorded))


def is_enough(document: str) -> bool:
    """Whether the spec's facts are enough for an architecture."""
    return isinstance(architecture(stated(document)), Architecture)


@lru_cache(maxsize=_REMEMBERED)
def stated(document: str) -> bytes:
    """The architecture from the spec's facts, which are bounded numbers."""
    return reading.read(document)


@lru_cache(maxsize=_MODELS)
def architecture(model: bytes) -> Architecture | Incomplete | InvalidModel | UnsupportedModel:
    """The architecture, or the problem with the read model."""
    return reading.architecture(model)


def _failed(doing: str, error: Exception) -> str:
    """Logged once per question, with the traceback, since answers are cached."""
    logger.error("the planner failed: %s", doing, exc_info=error)
    return _fault(doing, f"{type(error).__name__}: {error}"[:200])


def _fault(doing: str, what: str) -> str:
    return (
        f"The planner failed on this model, {doing} ({what}). Give spec.model.architecture, and please report this: "
        "the operator's log has the traceback."
    )


@lru_cache(maxsize=_REMEMBERED)
def answer(asked: PlannerInput) -> Plan:
    """The plan without remedies; Unknown where the planner fails."""
    try:
        return _answer(asked)
    except reading.FAILURES as error:
        device = asked.request.device
        reason = _failed("planning its memory", error)
        return Plan(Fit.UNKNOWN, reason, ("spec.model.architecture",), gpu=None if device is None else device.name)


def _answer(asked: PlannerInput) -> Plan:
    model = None if asked.model is None else architecture(asked.model)
    plan = host.within_limit(memory.plan(_request(asked)), asked.memory_limit_gib)
    if plan.verdict is not Fit.UNKNOWN:
        return plan
    if isinstance(model, Incomplete):
        return replace(plan, reason=f"{_sentence(model)} Give it in spec.model.architecture.", missing=model.missing)
    if isinstance(model, ReadingStopped):
        return replace(plan, reason=_STOPPED[model.why], missing=(NOT_READ,))
    if isinstance(model, UnsupportedModel):
        return replace(plan, reason=f"{_sentence(model)} {_READ_AS}", missing=("spec.model.architecture",))
    if isinstance(model, InvalidModel):
        return replace(plan, reason=_sentence(model))
    return plan


@lru_cache(maxsize=_REMEMBERED)
def _try_remedies(asked: PlannerInput, plan: Plan, others: tuple[Device, ...], most_gpus: int, spec: str) -> Plan:
    """If the search for remedies fails, the plan has none."""
    try:
        return _with_remedies(asked, plan, others, most_gpus, spec)
    except reading.FAILURES as error:
        said = _failed("looking for changes with which it would fit", error)
        return replace(plan, reason=f"{plan.reason} {said}", margin_gib=None)


def _with_remedies(asked: PlannerInput, plan: Plan, others: tuple[Device, ...], most_gpus: int, spec: str) -> Plan:
    """A change that the operator would refuse is no remedy, unless it refuses the spec already."""
    stored: Json = json.loads(spec)
    version = asked.request.vllm_version or DEFAULT_VLLM_VERSION
    known = frozenset(check(parse_spec(stored), image="", vllm_version=version))

    def accepts(fields: Sequence[tuple[str, object]]) -> bool:
        try:
            changed = parse_spec(_with(stored, fields))
        except InvalidSpec:
            return False
        return known.issuperset(check(changed, image="", vllm_version=version))

    return remedies.with_remedies(
        _request(asked),
        plan,
        others,
        plan_for=lambda request: host.within_limit(memory.plan(request), asked.memory_limit_gib),
        accepts=accepts,
        most_gpus=most_gpus,
    )


def _with(spec: Json, fields: Sequence[tuple[str, object]]) -> dict[str, Any]:
    """A spec with other values at dotted paths."""
    changed: dict[str, Any] = json.loads(json.dumps(spec))
    for path, value in fields:
        place = changed
        *parts, last = path.split(".")
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return changed


def _request(asked: PlannerInput) -> Request:
    model = None if asked.model is None else architecture(asked.model)
    return replace(
        asked.request,
        architecture=extended(model, asked.extension) if isinstance(model, Architecture) else None,
        tensors=None if asked.tensors is None else Tensors.from_document(json.loads(asked.tensors)),
    )


def _sentence(error: Exception) -> str:
    if isinstance(error, ReadingFailed):
        return _fault("reading the model's configuration", error.what)
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
