"""Whether the model fits: the condition Fits, the choices for the next revision, and obstacles to it, including missing
CPU features."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from llmservice_api.conditions import ConditionStatus
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService
from llmservice_planner import cpus
from llmservice_planner import gpus as catalogue
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.pick import Pick
from llmservice_planner.plan import Device, Fit, Plan
from llmservice_planner.room import Room
from llmservice_runtime.contract import GPU, FailureReason
from llmservice_runtime.preflight import cpu_features
from llmservice_runtime.preflight.cpu_features import Requirement

from llmservice_operator.behaviours.fit import planning
from llmservice_operator.behaviours.fit.model_facts import ModelFacts, facts_for, facts_of
from llmservice_operator.behaviours.fit.planning import PlannerInput
from llmservice_operator.decision import (
    DevicesQuery,
    GPUsQuery,
    Inputs,
    PickOf,
    Requirements,
    RoomQuery,
    value_of,
)
from llmservice_operator.manifests import server
from llmservice_operator.manifests.devices import driver, written_claim
from llmservice_operator.manifests.inspection import inspection_key
from llmservice_operator.manifests.revision import NO_CHOICES, RevisionChoices
from llmservice_operator.observe.failures.pod_failure import gpu_of
from llmservice_operator.observe.verdict import (
    Finding,
    Obstacle,
    document,
    fitness,
    plan_of,
)
from llmservice_operator.revisions import Selection

Json = Mapping[str, Any]

LABELS_MAY_BE_OLD = 60.0
"""Seconds for which labels of nodes may be cached: nodes come and go."""
RECHECK_SECONDS = 60.0
"""Seconds until the nodes are listed again while other nodes would help: no event announces new nodes."""
_IS_READ = "The model's configuration is being read."
_OF_AN_EARLIER_RELEASE = (
    "What runs was started without a plan; the next revision is planned. status.measured has vLLM's own figures."
)


@dataclass(frozen=True, slots=True)
class FitAssessment:
    """The plan and its consequences."""

    fitness: Finding
    chosen: RevisionChoices = NO_CHOICES
    """Choices with which the revision is or was created."""
    plan: Json | None = None
    """The value of status.plan."""
    model: Json | None = None
    """The value of status.model."""
    hold: Obstacle | None = None
    """Why the workload is not created or changed, unless it is of this revision already."""
    job: str | None = None
    """Name of the Job that inspects the model; other Jobs can go."""
    requeue_after: float | None = None
    misplaced: Mapping[str, str] = field(default_factory=dict)
    """By pod that failed on another GPU than planned, on which the model does not fit: the verdict, naming the GPU."""


def is_assessed(service: LLMService) -> bool:
    """False with fitPolicy Ignore."""
    return service.spec.fit_policy != "Ignore"


def is_to_be_planned(selection: Selection, digest: str | None) -> bool:
    """Whether to compute a plan: for a new revision, and once for a recorded one if other facts are known now.

    `digest` is `ModelFacts.digest`; None: nothing is known.
    """
    known = (
        () if selection.match.chosen is None else (_recorded_facts(selection), _previous_plan(selection).get("facts"))
    )
    return digest is not None and digest not in known


def device_of(selection: Selection) -> Device | None:
    """The GPU that was chosen with a recorded revision; None where none was, or one is still to be chosen."""
    recorded = selection.match.chosen
    return None if recorded is None else planning.recorded_device(selection.service, recorded)


def assess(inputs: Inputs, selection: Selection) -> FitAssessment | Requirements:
    """The assessment of the recorded revision or of one to create now; Requirements for what is to be read first."""
    service, recorded = selection.service, selection.match.chosen
    if not is_assessed(service):
        ignored = Finding(ConditionStatus.UNKNOWN, Reason.POLICY_IGNORE, Reason.POLICY_IGNORE.summary)
        return FitAssessment(ignored, recorded or NO_CHOICES)
    facts = facts_for(service, selection.match, inputs.observed, inputs.now, value_of(inputs.sibling_model, None))
    if facts.sibling_key is not None:
        return Requirements(sibling_model=facts.sibling_key)
    if facts.is_waiting:
        return _waiting(inputs, service, facts)
    digest, cards = facts.digest(service), failed_gpus(inputs, selection)
    is_planned = is_to_be_planned(selection, digest)
    model = _model(inputs, facts) if facts.is_known and (is_planned or cards) else None
    if isinstance(model, Requirements):
        return model
    if recorded is not None:
        found = _recorded(inputs, selection, facts, digest, model) if is_planned else _as_planned(selection, digest)
    else:
        found = _new(inputs, selection, facts, digest, model)
        if not isinstance(found, Requirements):
            found = _on_cpus(inputs, service, facts, found)
    if isinstance(found, Requirements):
        return found
    wait = min(filter(None, (found.requeue_after, facts.recheck_after)), default=None)
    wrong = {} if model is None else misplaced(inputs, selection, facts, model, cards)
    found = replace(found, model=facts.record, job=facts.job, requeue_after=wait, misplaced=wrong)
    return _held_to(found, service)


def picks_for_new_spec(inputs: Inputs) -> PickOf | Requirements:
    """The choice of GPUs for a spec that no revision has yet, by what is known of its model now. None for services that
    are not assessed."""
    service = inputs.stored
    if service is None or not is_assessed(service):
        return lambda spread, cluster: None
    sibling, creates_job = value_of(inputs.sibling_model, None), not service.spec.paused
    facts = facts_of(service, inputs.observed, inputs.now, sibling, uses_sibling=True, creates_job=creates_job)
    if facts.sibling_key is not None:
        return Requirements(sibling_model=facts.sibling_key)
    model = _model(inputs, facts) if facts.is_known else None
    if isinstance(model, Requirements):
        return model

    def picked(spread: LLMService, cluster: ClusterGPUs) -> Pick:
        asked = planning.planner_input(spread, inputs.settings, model, facts.tensors)
        return planning.pick_without_remedies(spread, asked, cluster)

    return picked


def failed_gpus(inputs: Inputs, selection: Selection) -> Mapping[str, GPU]:
    """By pod of the recorded revision: the GPU on which it failed, where another one or none was planned."""
    recorded = selection.match.chosen
    if recorded is None or not is_assessed(selection.service):
        return {}
    plan = recorded.plan or {}
    planned = (plan.get("perGPU") or {}).get("memoryGiB")
    if plan.get("verdict") == Fit.DOES_NOT_FIT:
        return {}  # it was started despite the plan
    pods = (pod for pod in inputs.observed.pods if pod.revision == selection.match.label and not pod.deleting)
    found = {pod.name: gpu for pod in pods if (gpu := gpu_of(pod)) is not None}
    return {name: gpu for name, gpu in found.items() if planned is None or abs(gpu.memory_gib / planned - 1) > _SAME}


_SAME = 0.03
"""Relative difference of memory figures: drivers report slightly different values for the same GPU."""


def misplaced(
    inputs: Inputs, selection: Selection, facts: ModelFacts, model: bytes, gpus: Mapping[str, GPU]
) -> Mapping[str, str]:
    """By pod of `failed_gpus` on whose GPU the model does not fit: the verdict, naming the GPU."""
    service, recorded = selection.service, selection.match.chosen or NO_CHOICES
    asked = planning.planner_input(service, inputs.settings, model, facts.tensors, selection.match.template)
    if recorded.max_model_len is not None:
        asked = replace(asked, request=replace(asked.request, max_model_len=recorded.max_model_len))
    planned_for = f", and was planned for {recorded.gpu}" if recorded.gpu else ""
    found = {}
    for name, gpu in gpus.items():
        plan = planning.plan_for_device(service, asked, catalogue.device(gpu.name, gpu.memory_gib))
        if plan.verdict is Fit.DOES_NOT_FIT:
            found[name] = f"Pod {name} came to a {gpu.name} ({gpu.memory_gib:.1f} GiB){planned_for}: {plan.reason}"
    return found


def _waiting(inputs: Inputs, service: LLMService, facts: ModelFacts) -> FitAssessment:
    """Hold the edit until the model is inspected; the status stays about the revision that serves."""
    live = inputs.observed.workload
    serving = live.revision if live is not None else None
    return FitAssessment(
        Finding(ConditionStatus.UNKNOWN, Reason.INSPECTING_MODEL, facts.why_not),
        plan=plan_of(serving, service.status) if serving is not None else None,
        model=_other_model(service) if serving is not None else None,
        hold=Obstacle(Reason.INSPECTING_MODEL, facts.why_not, is_final=False),
        job=facts.job,
        requeue_after=facts.recheck_after,
    )


def _other_model(service: LLMService) -> Json | None:
    """status.model of another model than the spec's. For the spec's own it contains at most a failure, which is
    over."""
    previous: Json = service.status.get("model") or {}
    return previous if previous.get("inspection") != inspection_key(service.spec) else None


def _as_planned(selection: Selection, digest: str | None) -> FitAssessment:
    """The plan as it was recorded with the revision, or added once later."""
    recorded = selection.match.chosen or NO_CHOICES
    is_of_previous = digest is not None and digest != _recorded_facts(selection)
    return _of_record(recorded, _previous_plan(selection) if is_of_previous else recorded.plan)


def _recorded(
    inputs: Inputs, selection: Selection, facts: ModelFacts, digest: str | None, model: bytes | None
) -> FitAssessment | Requirements:
    """Plan a recorded revision once more where other facts became known."""
    service, recorded = selection.service, selection.match.chosen or NO_CHOICES
    if model is None:  # the read of the model queues the key again
        return _of_record(recorded, _previous_plan(selection) or recorded.plan)
    asked = planning.planner_input(service, inputs.settings, model, facts.tensors, selection.match.template)
    if recorded.max_model_len is not None:
        asked = replace(asked, request=replace(asked.request, max_model_len=recorded.max_model_len))
    pick = _planned(inputs, service, planning.on(asked, device_of(selection)))
    if isinstance(pick, Requirements):
        return pick
    return _of_record(recorded, document(pick.plan, digest))


def _previous_plan(selection: Selection) -> Json:
    """status.plan, where it is of the recorded revision."""
    latest = selection.match.latest
    return (plan_of(latest.label, selection.service.status) or {}) if latest is not None else {}


def _recorded_facts(selection: Selection) -> str | None:
    recorded = selection.match.chosen
    return ((recorded.plan if recorded is not None else None) or {}).get("facts")


def _of_record(recorded: RevisionChoices, plan: Json | None) -> FitAssessment:
    return FitAssessment(_unknown(_OF_AN_EARLIER_RELEASE) if plan is None else fitness(plan), recorded, plan)


def _model(inputs: Inputs, facts: ModelFacts) -> bytes | Requirements | None:
    """The read model; None while it is being read."""
    assert facts.document is not None
    if facts.is_stated:
        return planning.stated(facts.document)
    reading = value_of(inputs.reading, None)
    if reading is None or reading.document != facts.document:
        return Requirements(reading=facts.document)
    return reading.answer


def _new(
    inputs: Inputs, selection: Selection, facts: ModelFacts, digest: str | None, model: bytes | None
) -> FitAssessment | Requirements:
    """The assessment of a revision to create now."""
    service = selection.service
    if facts.is_known and model is None:
        return _waiting(inputs, service, replace(facts, why_not=_IS_READ))
    asked = planning.planner_input(service, inputs.settings, model, facts.tensors)
    pick = (
        _planned(inputs, service, asked)
        if facts.is_known
        else planning.plan_without_facts(service, asked, facts.why_not)
    )
    if isinstance(pick, Requirements):
        return pick
    chosen, plan = _chosen(service, pick, digest)
    is_kept_back = service.spec.fit_policy == "Enforce" and pick.plan.verdict is Fit.DOES_NOT_FIT
    wait = RECHECK_SECONDS if pick.is_short and is_kept_back else None
    return FitAssessment(fitness(plan), chosen, plan, requeue_after=wait)


def _on_cpus(
    inputs: Inputs, service: LLMService, facts: ModelFacts, found: FitAssessment
) -> FitAssessment | Requirements:
    """Hold a revision that no CPU of the cluster can run, whatever memory it needs."""
    required = cpu_requirements(service, facts.document)
    if found.plan is None or found.hold is not None or not required:
        return found
    room = inputs.free_room(RoomQuery(None, LABELS_MAY_BE_OLD))
    if isinstance(room, Requirements):
        return room
    missing = missing_feature(service, room, required)
    if missing is None:
        return found
    plan = {**found.plan, "verdict": str(Fit.DOES_NOT_FIT), "reason": missing.sentence()}
    chosen = replace(found.chosen, plan=plan)
    hold = missing if service.spec.fit_policy == "Enforce" else None
    wait = RECHECK_SECONDS if hold is not None else None
    return replace(found, fitness=fitness(plan), chosen=chosen, plan=plan, hold=hold, requeue_after=wait)


def _chosen(service: LLMService, pick: Pick, digest: str | None) -> tuple[RevisionChoices, Json]:
    """Choices for a revision, and the value of status.plan."""
    plan = document(pick.plan, digest)
    excluded, left_out = list(pick.excluded) or None, list(pick.left_out) or None
    length, claimed = _length(service, pick.plan), written_claim(service, pick.need)
    chosen = RevisionChoices(pick.product, length, plan, excluded_gpus=excluded, excluded_architectures=left_out)
    return replace(chosen, claim=claimed), plan


def _planned(inputs: Inputs, service: LLMService, asked: PlannerInput) -> Pick | Requirements:
    """The plan for the known device, or for the best one of the cluster."""
    if asked.request.device is not None or service.spec.accelerator.type == "cpu":
        return planning.plan_for_input(service, asked)
    if service.spec.accelerator.resource_claims:
        return planning.plan_for_claims(service, asked)
    if (claim := service.spec.accelerator.claim) is not None:
        if inputs.devices is not None:
            return planning.pick_claimed(service, asked, inputs.devices.value)
        selector = tuple(sorted(service.spec.pod_template.spec.node_selector.items()))
        return Requirements(devices=DevicesQuery(driver(service), claim.device_class, selector))
    if inputs.gpus is not None:
        return planning.pick_device(service, asked, inputs.gpus.value)
    return Requirements(gpus=GPUsQuery.of(service))


def _held_to(found: FitAssessment, service: LLMService) -> FitAssessment:
    """Hold what does not fit, with fitPolicy Enforce."""
    is_enforced = service.spec.fit_policy == "Enforce"
    if found.hold is not None or not is_enforced or found.fitness.reason is not Reason.DOES_NOT_FIT:
        return found
    return replace(found, hold=Obstacle(Reason.DOES_NOT_FIT, found.fitness.message))


def _length(service: LLMService, plan: Plan) -> int | None:
    """maxModelLen that `auto` stands for; None: vLLM determines it."""
    is_open = service.spec.batching.max_model_len == "auto" and plan.verdict in (Fit.FITS, Fit.TIGHT)
    return plan.max_model_len or None if is_open else None


def _unknown(message: str) -> Finding:
    return Finding(ConditionStatus.UNKNOWN, Reason.FACTS_MISSING, message)


def missing_feature(service: LLMService, room: Room, required: tuple[Requirement, ...]) -> Obstacle | None:
    """The obstacle where no node's labels show a required CPU feature."""
    given = service.spec.pod_template.spec
    pod_spec = {
        "nodeSelector": dict(given.node_selector),
        "tolerations": server.tolerations(service),
        "affinity": server.affinity(service),
    }
    found = cpus.unmet(required, room, pod_spec)
    if found is None:
        return None
    missing, nodes = found
    of_nodes = "the one node" if nodes == 1 else f"none of the {nodes} nodes"
    has = "does not have it" if nodes == 1 else "has it"
    message = (
        f"{missing.what} needs a CPU with {missing.words}, and {of_nodes} that the pods may run on {has}, by the "
        f"labels {cpus.PREFIX}*."
    )
    return Obstacle(Reason(FailureReason.CPU_FEATURE_MISSING), message, remedy=missing.remedy)


def cpu_requirements(service: LLMService, document: str | None) -> tuple[Requirement, ...]:
    """CPU features that the spec and the checkpoint's quantization require; none for a service on GPUs.

    `document` is the model's facts as JSON text.
    """
    if service.spec.accelerator.type != "cpu":
        return ()
    precision = service.spec.precision
    method, bits = (None, None) if document is None else _declared(document)
    asked = precision.method or method
    return tuple(cpu_features.requirements(precision.kv_cache, asked, bits))


@lru_cache(maxsize=256)
def _declared(document: str) -> tuple[str | None, int | None]:
    facts = json.loads(document)
    return cpu_features.declared(facts) if isinstance(facts, dict) else (None, None)
