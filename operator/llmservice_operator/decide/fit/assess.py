"""Whether the model fits: the condition Fits, what the next revision is made with, and what holds it back, a missing
feature of the CPUs included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
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

from llmservice_operator.decide.fit import planning
from llmservice_operator.decide.fit.model_facts import ModelFacts, facts_for
from llmservice_operator.decide.fit.planning import Question
from llmservice_operator.decide.inputs import Inputs, value_of
from llmservice_operator.decide.rollout.selection import Selection
from llmservice_operator.manifests import placement
from llmservice_operator.manifests.inspection import inspection_key
from llmservice_operator.manifests.revision import NOTHING, Chosen
from llmservice_operator.observe.failures.pod_failure import gpu_of
from llmservice_operator.observe.status.plan import document, fitness, plan_of
from llmservice_operator.observe.status.verdict import Finding, Obstacle

Json = Mapping[str, Any]

LABELS_MAY_BE_OLD = 60.0
"""Seconds: features of nodes change when nodes come and go."""
RECHECK_SECONDS = 60.0
"""Seconds after which the nodes are listed again while other nodes would help: no event says that one comes."""
_IS_READ = "The model's configuration is being read."
_OF_AN_EARLIER_RELEASE = (
    "What runs was started without a plan; the next revision is planned. status.measured has vLLM's own figures."
)
_NODES_UNREAD = ClusterGPUs()


@dataclass(frozen=True, slots=True)
class FitAssessment:
    """What the plan says, and what follows from it."""

    fitness: Finding
    chosen: Chosen = NOTHING
    """What the revision is made with, or was."""
    plan: Json | None = None
    """The value of status.plan."""
    model: Json | None = None
    """The value of status.model."""
    hold: Obstacle | None = None
    """Why the workload is neither made nor changed, unless it is of this revision already."""
    job: str | None = None
    """Name of the Job that inspects the model; others are not needed any more."""
    requeue_after: float | None = None


def is_assessed(service: LLMService) -> bool:
    """False where the spec says that it is to be started whatever the planner would say."""
    return service.spec.fit_policy != "Ignore"


def is_to_be_planned(selection: Selection, digest: str | None) -> bool:
    """Whether a plan is computed: for a new revision, and once for a recorded one where other facts are known now.

    `digest` is of the facts (`ModelFacts.digest`); None: nothing is known.
    """
    known = (
        () if selection.match.chosen is None else (_recorded_facts(selection), _previous_plan(selection).get("facts"))
    )
    return digest is not None and digest not in known


def device_of(selection: Selection) -> Device | None:
    """The GPU that was chosen with a recorded revision; None: one is to be chosen, or there is none."""
    recorded = selection.match.chosen
    return None if recorded is None else planning.frozen_device(selection.service, recorded)


def assess(inputs: Inputs, selection: Selection) -> FitAssessment:
    """What the plan says, of a revision that is recorded or of one that would be made now."""
    service, recorded = selection.service, selection.match.chosen
    if not is_assessed(service):
        ignored = Finding(ConditionStatus.UNKNOWN, Reason.POLICY_IGNORE, Reason.POLICY_IGNORE.summary)
        return FitAssessment(ignored, recorded or NOTHING)
    facts = inputs.facts
    if facts.sibling_key is not None:  # no sibling was asked
        facts = facts_for(service, selection.match, inputs.observed, inputs.now, {})
    if facts.is_waiting:
        return _waiting(inputs, service, facts)
    if recorded is not None:
        found = _recorded(inputs, selection, facts)
    else:
        found = _on_cpus(inputs, service, facts, _new(inputs, selection, facts))
    wait = min(filter(None, (found.requeue_after, facts.recheck_after)), default=None)
    return _held_to(replace(found, model=facts.record, job=facts.job, requeue_after=wait), service)


def failed_gpus(inputs: Inputs, selection: Selection) -> Mapping[str, GPU]:
    """By pod of the recorded revision: the card on which it failed, where another one was planned or none."""
    recorded = selection.match.chosen
    if recorded is None or not is_assessed(selection.service):
        return {}
    plan = recorded.plan or {}
    planned = (plan.get("perGPU") or {}).get("memoryGiB")
    if plan.get("verdict") == Fit.DOES_NOT_FIT:
        return {}  # it was tried all the same
    pods = (pod for pod in inputs.observed.pods if pod.revision == selection.match.label and not pod.deleting)
    found = {pod.name: gpu for pod in pods if (gpu := gpu_of(pod)) is not None}
    return {name: gpu for name, gpu in found.items() if planned is None or abs(gpu.memory_gib / planned - 1) > _SAME}


_SAME = 0.03
"""Drivers report a little more or less of the same card."""


def misplaced(inputs: Inputs, selection: Selection) -> Mapping[str, str]:
    """By the pods of `failed_gpus` on whose card the model does not fit: the verdict, naming the card."""
    service, recorded = selection.service, selection.match.chosen or NOTHING
    gpus = failed_gpus(inputs, selection)
    facts = inputs.facts if gpus else None
    model = _model(inputs, facts) if facts is not None and facts.is_known else None
    if facts is None or model is None:
        return {}
    asked = planning.question(service, inputs.settings, model, facts.tensors, selection.match.template)
    if recorded.max_model_len is not None:
        asked = replace(asked, request=replace(asked.request, max_model_len=recorded.max_model_len))
    planned_for = f", and was planned for {recorded.gpu}" if recorded.gpu else ""
    found = {}
    for name, gpu in gpus.items():
        plan = planning.judged(service, asked, catalogue.device(gpu.name, gpu.memory_gib))
        if plan.verdict is Fit.DOES_NOT_FIT:
            found[name] = f"Pod {name} came to a {gpu.name} ({gpu.memory_gib:.1f} GiB){planned_for}: {plan.reason}"
    return found


def _waiting(inputs: Inputs, service: LLMService, facts: ModelFacts) -> FitAssessment:
    """Until the model was inspected, nothing of the edit is made; the status goes on about the revision that serves."""
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
    """status.model of another model than the spec's: of the spec's own there is a failure at most, which is over."""
    previous: Json = service.status.get("model") or {}
    return previous if previous.get("inspection") != inspection_key(service.spec) else None


def _recorded(inputs: Inputs, selection: Selection, facts: ModelFacts) -> FitAssessment:
    """What was planned when it was made; planned again, and once, where other facts became known since."""
    service, recorded = selection.service, selection.match.chosen or NOTHING
    previous, digest = _previous_plan(selection), inputs.facts_digest
    if not is_to_be_planned(selection, digest):
        is_of_previous = digest is not None and digest != _recorded_facts(selection)
        return _of_record(recorded, previous if is_of_previous else recorded.plan)
    model = _model(inputs, facts)
    if model is None:  # the key is woken when it was read
        return _of_record(recorded, previous or recorded.plan)
    asked = planning.question(service, inputs.settings, model, facts.tensors, selection.match.template)
    if recorded.max_model_len is not None:
        asked = replace(asked, request=replace(asked.request, max_model_len=recorded.max_model_len))
    pick = _planned(inputs, service, planning.on(asked, device_of(selection)))
    return _of_record(recorded, document(pick.plan, digest))


def _previous_plan(selection: Selection) -> Json:
    """status.plan, where it is of the recorded revision."""
    latest = selection.match.latest
    return (plan_of(latest.label, selection.service.status) or {}) if latest is not None else {}


def _recorded_facts(selection: Selection) -> str | None:
    recorded = selection.match.chosen
    return ((recorded.plan if recorded is not None else None) or {}).get("facts")


def _of_record(recorded: Chosen, plan: Json | None) -> FitAssessment:
    return FitAssessment(_unknown(_OF_AN_EARLIER_RELEASE) if plan is None else fitness(plan), recorded, plan)


def _model(inputs: Inputs, facts: ModelFacts) -> bytes | None:
    """What was read of the model; None: it is being read."""
    assert facts.document is not None
    if facts.is_stated:
        return planning.stated(facts.document)
    reading = inputs.reading.value if inputs.reading is not None else None
    return reading.answer if reading is not None and reading.document == facts.document else None


def _new(inputs: Inputs, selection: Selection, facts: ModelFacts) -> FitAssessment:
    """What a revision would be made with now."""
    service = selection.service
    model = _model(inputs, facts) if facts.is_known else None
    if facts.is_known and model is None:
        return _waiting(inputs, service, replace(facts, why_not=_IS_READ))
    asked = planning.question(service, inputs.settings, model, facts.tensors)
    pick = _planned(inputs, service, asked) if facts.is_known else planning.unplanned(service, asked, facts.why_not)
    chosen, plan = _chosen(service, pick, inputs.facts_digest)
    is_kept_back = service.spec.fit_policy == "Enforce" and pick.plan.verdict is Fit.DOES_NOT_FIT
    wait = RECHECK_SECONDS if pick.is_short and is_kept_back else None
    return FitAssessment(fitness(plan), chosen, plan, requeue_after=wait)


def _on_cpus(inputs: Inputs, service: LLMService, facts: ModelFacts, found: FitAssessment) -> FitAssessment:
    """A revision that no CPU of the cluster can run is not made, however much memory it needs."""
    if found.plan is None or found.hold is not None or inputs.room is None:
        return found
    missing = missing_feature(service, inputs.room.value, facts.document)
    if missing is None:
        return found
    plan = {**found.plan, "verdict": str(Fit.DOES_NOT_FIT), "reason": missing.sentence()}
    chosen = replace(found.chosen, plan=plan)
    hold = missing if service.spec.fit_policy == "Enforce" else None
    wait = RECHECK_SECONDS if hold is not None else None
    return replace(found, fitness=fitness(plan), chosen=chosen, plan=plan, hold=hold, requeue_after=wait)


def _chosen(service: LLMService, pick: Pick, digest: str | None) -> tuple[Chosen, Json]:
    """What a revision is made with, and the plan as the status has it."""
    plan = document(pick.plan, digest)
    excluded, left_out = list(pick.excluded) or None, list(pick.left_out) or None
    length = _length(service, pick.plan)
    return Chosen(pick.product, length, plan, excluded_gpus=excluded, excluded_architectures=left_out), plan


def _planned(inputs: Inputs, service: LLMService, asked: Question) -> Pick:
    """The plan for the device that is known, or for the best of the cluster's."""
    if asked.request.device is not None:
        return planning.planned(service, asked)
    return planning.picked(service, asked, value_of(inputs.gpus, _NODES_UNREAD))


def _held_to(found: FitAssessment, service: LLMService) -> FitAssessment:
    """With fitPolicy Enforce, what does not fit is kept back."""
    is_enforced = service.spec.fit_policy == "Enforce"
    if found.hold is not None or not is_enforced or found.fitness.reason is not Reason.DOES_NOT_FIT:
        return found
    return replace(found, hold=Obstacle(Reason.DOES_NOT_FIT, found.fitness.message))


def _length(service: LLMService, plan: Plan) -> int | None:
    """What `auto` stands for; vLLM finds it by itself where the plan does not know."""
    is_open = service.spec.batching.max_model_len == "auto" and plan.verdict in (Fit.FITS, Fit.TIGHT)
    return plan.max_model_len or None if is_open else None


def _unknown(message: str) -> Finding:
    return Finding(ConditionStatus.UNKNOWN, Reason.FACTS_MISSING, message)


def missing_feature(service: LLMService, room: Room, document: str | None) -> Obstacle | None:
    """What no node's labels say that it has; `document` is the model's facts, as JSON text."""
    required = cpu_requirements(service, document)
    if not required:
        return None
    given = service.spec.pod_template.spec
    pod_spec = {
        "nodeSelector": dict(given.node_selector),
        "tolerations": placement.tolerations(service),
        "affinity": placement.affinity(service),
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
    """Of the CPU, by the spec and by what the checkpoint says of its quantization: none for a service on GPUs."""
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
