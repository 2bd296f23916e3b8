"""Does it fit? What is said about it, what the next revision is made with, and whether there may be one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from llmservice_operator.api.conditions import ConditionStatus
from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.remembered import of_service
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.chosen import NOTHING, Chosen
from llmservice_operator.build.inspection import inspection_key
from llmservice_operator.build.resources import accelerator_resource
from llmservice_operator.build.settings import Settings
from llmservice_operator.decide.decision import GpusOf, Lack, ReadingOf, RoomFor
from llmservice_operator.decide.fit import cpu_fit, planning
from llmservice_operator.decide.fit.model_facts import ModelFacts, facts_of
from llmservice_operator.decide.fit.planning import Question
from llmservice_operator.decide.rollout.revision import Standing
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.status.plan import document, fitness
from llmservice_operator.observe.status.previous_status import plan_of, revision_of
from llmservice_operator.observe.status.verdict import Fitness, Obstacle
from llmservice_operator.planner.pick import Pick
from llmservice_operator.planner.plan import Fit, Plan

Json = Mapping[str, Any]

LOOK_AGAIN = 60.0
"""Seconds between looks at the nodes while other nodes would help: nobody tells us when one comes."""
_IS_READ = "The model's configuration is being read."
_OF_AN_EARLIER_RELEASE = (
    "What runs was started without a plan; the next revision is planned. status.measured has vLLM's own figures."
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the question."""

    fitness: Fitness
    chosen: Chosen = NOTHING
    """What the revision is made with, or was."""
    plan: Json | None = None
    """The value of status.plan."""
    model: Json | None = None
    """The value of status.model."""
    hold: Obstacle | None = None
    """Why the Deployment is neither made nor changed, unless it is of this revision already."""
    lack: Lack | None = None
    """What has to be found out first."""
    job: str | None = None
    """Name of the Job that looks at the model; others are not needed any more."""
    requeue_after: float | None = None


def assess(service: LLMService, observed: Observed, settings: Settings, now: datetime, stand: Standing) -> Outcome:
    """What the plan says, of a revision that is recorded or of one that would be made now."""
    recorded = stand.chosen
    if service.spec.fit_policy == "Ignore":
        ignored = Fitness(ConditionStatus.UNKNOWN, Reason.POLICY_IGNORE, Reason.POLICY_IGNORE.summary)
        return Outcome(ignored, recorded or NOTHING)
    is_told = stand.same_key is not None and stand.same_key.label == revision_of(service.status)
    facts = facts_of(
        service, observed, now, may_borrow=not is_told, may_ask=recorded is None and not service.spec.paused
    )
    if facts.lack is not None:
        return Outcome(_unknown(facts.why_not), lack=facts.lack)
    if facts.is_waiting:
        return _waiting(service, observed, facts)
    if recorded is not None and stand.same_key is not None:
        told = plan_of(stand.same_key.label, service.status)
        outcome = _recorded(service, observed, settings, facts, stand, told or {})
    else:
        outcome = _on_cpus(service, observed, facts, _new(service, observed, settings, facts))
    if outcome.lack is not None:
        return outcome
    wait = min(filter(None, (outcome.requeue_after, facts.look_again_after)), default=None)
    return _held_to(replace(outcome, model=facts.record, job=facts.job, requeue_after=wait), service)


def _waiting(service: LLMService, observed: Observed, facts: ModelFacts) -> Outcome:
    """Until the model was looked at, nothing of the edit is made; what is told of the revision that serves stands."""
    serving = observed.deployment.revision if observed.deployment is not None else None
    return Outcome(
        Fitness(ConditionStatus.UNKNOWN, Reason.INSPECTING_MODEL, facts.why_not),
        plan=plan_of(serving, service.status) if serving is not None else None,
        model=_other_model(service) if serving is not None else None,
        hold=Obstacle(Reason.INSPECTING_MODEL, facts.why_not, is_final=False),
        job=facts.job,
        requeue_after=facts.look_again_after,
    )


def _other_model(service: LLMService) -> Json | None:
    """What is told of another model than the spec's: of the spec's own there is a failure at most, which is over."""
    told: Json = service.status.get("model") or {}
    return told if told.get("inspection") != inspection_key(service.spec) else None


def _recorded(
    service: LLMService, observed: Observed, settings: Settings, facts: ModelFacts, stand: Standing, told: Json
) -> Outcome:
    """What was planned when it was made; planned again, and once, where other facts became known since."""
    recorded = stand.chosen or NOTHING
    plan, digest = recorded.plan, facts.digest(service)
    if digest is not None and digest != (plan or {}).get("facts"):
        if told.get("facts") == digest:
            plan = told
        else:
            model = _model(observed, facts)
            if isinstance(model, ReadingOf):
                return Outcome(_unknown(_IS_READ), lack=model)
            if model is None:  # this service is looked at again when it was read
                return _said(recorded, told or plan)
            asked = planning.question(service, settings, model, facts.tensors, stand.template)
            device = planning.frozen_device(service, recorded)
            if recorded.max_model_len is not None:
                asked = replace(asked, request=replace(asked.request, max_model_len=recorded.max_model_len))
            choice = _planned(service, observed, planning.on(asked, device))
            if choice is None:
                return _lacking_nodes(service)
            plan = document(choice.plan, digest)
    return _said(recorded, plan)


def _said(recorded: Chosen, plan: Json | None) -> Outcome:
    return Outcome(_unknown(_OF_AN_EARLIER_RELEASE) if plan is None else fitness(plan), recorded, plan)


def _model(observed: Observed, facts: ModelFacts) -> bytes | ReadingOf | None:
    """What was read of the model; None: it is being read."""
    assert facts.document is not None
    if facts.is_stated:
        return planning.stated(facts.document)
    reading = observed.reading
    return reading.answer if reading is not None and reading.document == facts.document else ReadingOf(facts.document)


def _new(service: LLMService, observed: Observed, settings: Settings, facts: ModelFacts) -> Outcome:
    """What a revision would be made with now."""
    model = _model(observed, facts) if facts.is_known else None
    if isinstance(model, ReadingOf):
        return Outcome(_unknown(_IS_READ), lack=model)
    if facts.is_known and model is None:
        return _waiting(service, observed, replace(facts, why_not=_IS_READ))
    asked = planning.question(service, settings, model, facts.tensors)
    if facts.is_known:
        choice = _planned(service, observed, asked)
        if choice is None:
            return _lacking_nodes(service)
    else:
        choice = planning.unplanned(service, asked, facts.why_not)
    chosen, plan = _chosen(service, choice, facts.digest(service))
    is_kept_back = service.spec.fit_policy == "Enforce" and choice.plan.verdict is Fit.DOES_NOT_FIT
    return Outcome(fitness(plan), chosen, plan, requeue_after=LOOK_AGAIN if choice.is_short and is_kept_back else None)


def _on_cpus(service: LLMService, observed: Observed, facts: ModelFacts, outcome: Outcome) -> Outcome:
    """A revision that no CPU of the cluster can run is not made, however much memory it needs."""
    if outcome.lack is not None or outcome.plan is None:
        return outcome
    match cpu_fit.judge(service, observed, facts.document):
        case RoomFor() as lack:
            return _unknown_until(lack)
        case Obstacle() as missing:
            plan = {**outcome.plan, "verdict": str(Fit.DOES_NOT_FIT), "reason": missing.sentence()}
            chosen = replace(outcome.chosen, plan=plan)
            hold = missing if service.spec.fit_policy == "Enforce" else None
            again = LOOK_AGAIN if hold is not None else None
            return replace(outcome, fitness=fitness(plan), chosen=chosen, plan=plan, hold=hold, requeue_after=again)
    return outcome


@of_service
def _chosen(service: LLMService, choice: Pick, digest: str | None) -> tuple[Chosen, Json]:
    """What a revision is made with, and the plan as it is told."""
    plan = document(choice.plan, digest)
    return Chosen(choice.product, _length(service, choice.plan), plan), plan


def _planned(service: LLMService, observed: Observed, asked: Question) -> Pick | None:
    """The plan for the device that is known, or for the best of the cluster's; None: the nodes are to be looked at."""
    if asked.request.device is not None:
        return planning.planned(service, asked)
    return None if observed.gpus is None else planning.picked(service, asked, observed.gpus)


def _lacking_nodes(service: LLMService) -> Outcome:
    return _unknown_until(_gpus_of(service))


def _unknown_until(lack: Lack) -> Outcome:
    return Outcome(_unknown("The nodes are being looked at."), lack=lack)


def _held_to(outcome: Outcome, service: LLMService) -> Outcome:
    """With fitPolicy Enforce, what does not fit is kept back."""
    is_enforced = service.spec.fit_policy == "Enforce"
    if outcome.hold is not None or not is_enforced or outcome.fitness.reason is not Reason.DOES_NOT_FIT:
        return outcome
    return replace(outcome, hold=Obstacle(Reason.DOES_NOT_FIT, outcome.fitness.message))


def _length(service: LLMService, plan: Plan) -> int | None:
    """What `auto` stands for; vLLM finds it by itself where the plan does not know."""
    is_open = service.spec.batching.max_model_len == "auto" and plan.verdict in (Fit.FITS, Fit.TIGHT)
    return plan.max_model_len or None if is_open else None


def _gpus_of(service: LLMService) -> GpusOf:
    resource = accelerator_resource(service)
    assert resource is not None, "CPUs are not looked for"
    return GpusOf(resource, tuple(sorted(service.spec.pod_template.spec.node_selector.items())))


def _unknown(message: str) -> Fitness:
    return Fitness(ConditionStatus.UNKNOWN, Reason.FACTS_MISSING, message)
