"""From what the spec says and what the cluster shows to what is to be done: pure, and a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from llmservice_operator.api.errors import Problem
from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.remembered import of_service
from llmservice_operator.api.service import LLMService
from llmservice_operator.build import adapters, inspection
from llmservice_operator.build.deployment import Strategy
from llmservice_operator.build.effective import effective, gpus
from llmservice_operator.build.engine import image, vllm_arguments, vllm_version
from llmservice_operator.build.meta import selector_text
from llmservice_operator.build.service import url
from llmservice_operator.build.settings import Settings
from llmservice_operator.build.template import pod_template
from llmservice_operator.control import updates
from llmservice_operator.control.updates import waits_on
from llmservice_operator.decide.children import applies, in_the_way, looked, needless_budget, prunes
from llmservice_operator.decide.decision import Apply, Decision, TurnOf, Update, soonest
from llmservice_operator.decide.desired import Wanted, adopted, kept_up, wanted, with_hash
from llmservice_operator.decide.events import events
from llmservice_operator.decide.fit.assess import Outcome, assess
from llmservice_operator.decide.ownership import Ownership, name_conflicts, ownership
from llmservice_operator.decide.rollout.revision import Choice, choose, standing
from llmservice_operator.decide.rollout.rollback import WayBack, digest_of, way_back
from llmservice_operator.decide.rollout.strategy import Change, Way, first, rollout_events, standing_strategy, way
from llmservice_operator.decide.status_inputs import again, lack_of
from llmservice_operator.observe.observed import Observed, Turn
from llmservice_operator.observe.projections.children import DeploymentFacts, RevisionFacts
from llmservice_operator.observe.reports import asks
from llmservice_operator.observe.rollout.progress import PATIENCE
from llmservice_operator.observe.rollout.status_rollout import Rolling, as_told
from llmservice_operator.observe.status.previous_status import plan_of
from llmservice_operator.observe.status.status import is_told, may_wait, moment_of, status_of
from llmservice_operator.observe.status.verdict import Obstacle, Subject, Verdict
from llmservice_operator.planner.checks import check

Json = Mapping[str, Any]

AT_ONCE = 0.0
"""Seconds until the next look, where what was told is the memory for it."""


def decide(service: LLMService, observed: Observed, settings: Settings, now: datetime) -> Decision:
    """Everything to do about one LLMService."""
    if service.is_deleting:
        return Decision(notes=(Reason.DELETING.summary,))
    revisions = _own_revisions(service, observed)
    back = way_back(service, revisions)
    if isinstance(back, Problem):
        return _refuse(_subject(service), (back,), observed, service.spec.scaling.replicas, now)
    spec_hash = digest_of(service) if service.spec.rollout.auto_rollback else None
    service = service if back is None else back.service
    stand = standing(service, revisions, back.record if back is not None else None)
    problems = _checked(service, settings)
    if problems and stand.same_key is None:
        return _refuse(_subject(service), problems, observed, service.spec.scaling.replicas, now)
    refused = problems if stand.is_update else ()
    if refused and stand.same_key is not None:  # what is recorded of the spec runs on
        stand = stand.on(stand.same_key)
    running = waits_on(service, observed, stand, revisions) if back is None else None
    if running is not None and observed.turn is None:
        return Decision(lack=TurnOf())
    waits_for = observed.turn if running is not None and observed.turn and not observed.turn.is_granted else None
    if running is not None and waits_for is not None:
        stand = stand.on(running)
    outcome = assess(service, observed, settings, now, stand)
    if outcome.lack is not None:
        return Decision(lack=outcome.lack)
    choice = choose(service, stand, outcome.chosen, settings)
    if outcome.hold is not None and back is None and not service.spec.paused and not _runs(observed, choice):
        return _keep_back(service, observed, settings, outcome, now)
    case = Case(service, observed, settings, now, revisions, back, waits_for, spec_hash, problems, bool(refused))
    return _carry_on(case, outcome, choice)


@of_service
def _checked(service: LLMService, settings: Settings) -> tuple[Problem, ...]:
    return check(
        service.spec,
        image=image(service, settings),
        vllm_version=vllm_version(service, settings),
        arguments=vllm_arguments(service),
    )


@dataclass(frozen=True, slots=True)
class Case:
    """What a decision is about."""

    service: LLMService
    """As it is to run: with what needs a restart as it was recorded, where a recorded revision is to run."""
    observed: Observed
    settings: Settings
    now: datetime
    revisions: Sequence[RevisionFacts]
    back: WayBack | None
    waits_for: Turn | None
    """The turn that an update that was asked for has not got."""
    spec_hash: str | None
    """Of the spec as it is, for an automatic rollback."""
    problems: tuple[Problem, ...] = ()
    """For which this release would not start the service; of a recorded revision they stop nothing."""
    is_update_refused: bool = False
    """An update was asked for, and they keep it from being made."""


def _carry_on(case: Case, outcome: Outcome, choice: Choice) -> Decision:
    """The revision is known; how it comes in, and what else there is to do."""
    service, observed = case.service, case.observed
    how = _way(case, choice)
    if how.lack is not None:
        return Decision(lack=how.lack)
    orphans = (r for r in case.revisions if ownership(r, service) is Ownership.ORPHAN and r.label != choice.label)
    children = [*wanted(service, choice, how.strategy), *adopted(service, orphans)]
    problems = name_conflicts(service, observed, {child.id for child in children})
    if problems:
        return _refuse(_subject(service), problems, observed, service.spec.scaling.replicas, case.now)
    apply = tuple(applies(service, observed, children))
    obstacle = in_the_way(service, observed, children) or _rolled_back(case.back) or _refused(case) or how.obstacle
    verdict = _verdict(case, choice, outcome, how, obstacle, is_pending=bool(apply))
    if service.spec.paused:
        return _report(_subject(service), observed, verdict, case.now, notes=(Reason.PAUSED.summary,))
    if how.is_to_be_told_first or how.is_held:
        apply = tuple(item for item in apply if item.kind != DeploymentFacts.kind)
    prune = (*prunes(service, observed, choice), *looked(service, observed, outcome))
    wait = soonest(
        outcome.requeue_after,
        how.look_again,
        AT_ONCE if how.is_to_be_told_first else None,
        updates.LOOK_AGAIN if case.waits_for is not None else None,
    )
    decision = _report(_subject(service), observed, verdict, case.now, apply=apply, prune=prune, requeue_after=wait)
    return decision if decision.lack is not None else _with_rollout(decision, case, choice, how, obstacle)


def _way(case: Case, choice: Choice) -> Way:
    live = case.observed.deployment
    if live is None or ownership(live, case.service) not in (Ownership.OURS, Ownership.ORPHAN):
        return first(case.service)
    change = Change(case.service, choice, live, case.observed, case.settings, case.now)
    return way(change, may_choose=not case.service.spec.paused and (case.back is None or case.back.failed is None))


def _rolled_back(back: WayBack | None) -> Obstacle | None:
    return Obstacle(Reason.ROLLED_BACK, back.reason) if back is not None and back.failed is not None else None


def _refused(case: Case) -> Obstacle | None:
    if not case.is_update_refused:
        return None
    first, *_ = case.problems
    return Obstacle(first.reason, f"{first.field}: {first.message}", remedy=first.remedy)


def _with_rollout(decision: Decision, case: Case, choice: Choice, how: Way, obstacle: Obstacle | None) -> Decision:
    """What the status says of the rollout has consequences: turns of others, Events, and a way back."""
    before = case.service.status.get("rollout") or {}
    after = before if decision.status is None else decision.status.get("rollout") or {}
    waits, replicas = case.waits_for is not None, case.service.spec.scaling.replicas
    update = updates.update_of(choice, case.revisions, after, waits=waits, replicas=replicas)
    if update is Update.UNDER_WAY and obstacle is not None and obstacle.is_final:
        update = Update.FAILED  # it is not taken, and who waits for it is to know whom to ask
    begun = (choice.label, how.reason) if how.reason else None
    decision = replace(
        decision, update=update, begun=begun, events=(*decision.events, *rollout_events(before, after, how))
    )
    has_just_failed = "failedSpec" in after and after["failedSpec"] != before.get("failedSpec")
    return replace(decision, requeue_after=soonest(decision.requeue_after, AT_ONCE)) if has_just_failed else decision


def decide_invalid(obj: Json, problems: tuple[Problem, ...], observed: Observed, now: datetime) -> Decision:
    """For a stored object whose spec cannot be parsed: say so, and leave alone what serves."""
    metadata = obj["metadata"]
    if metadata.get("deletionTimestamp") is not None:
        return Decision(notes=(Reason.DELETING.summary,))
    subject = Subject(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=int(metadata.get("generation") or 0),
        previous=obj.get("status") or {},
    )
    replicas = observed.deployment.spec_replicas if observed.deployment is not None else 0
    return _refuse(subject, problems, observed, replicas, now)


def _runs(observed: Observed, choice: Choice) -> bool:
    """Whether the Deployment is of this revision already."""
    return observed.deployment is not None and observed.deployment.revision == choice.label


def _keep_back(
    service: LLMService, observed: Observed, settings: Settings, outcome: Outcome, now: datetime
) -> Decision:
    """What serves is kept up with what it was made with; the status tells of it, and what keeps the rest back."""
    subject, previous = _subject(service), service.status
    children = _serving(service, observed)
    problems = name_conflicts(service, observed, {child.id for child in children})
    if problems:
        return _refuse(subject, problems, observed, service.spec.scaling.replicas, now)
    apply = tuple(applies(service, observed, children))
    verdict = Verdict(
        obstacle=outcome.hold,
        is_pending=bool(apply),
        replicas=service.spec.scaling.replicas,
        revision=observed.deployment.revision if observed.deployment is not None else "",
        rolling=replace(as_told(previous.get("rollout") or {}), strategy=_kept_strategy(service, observed)),
        selector=selector_text(service.name),
        gpus=gpus(service),
        endpoint=_endpoint(service) | (_served_model_names(previous) if observed.deployment is not None else {}),
        effective=(observed.deployment and previous.get("effective"))
        or effective(service, pod_template(service, settings)),
        fitness=outcome.fitness,
        plan=outcome.plan,
        model=outcome.model,
        adapters=tuple(item["name"] for item in previous.get("adapters") or ()),
    )
    return _report(
        subject,
        observed,
        verdict,
        now,
        apply=(*_look(service, observed, settings, outcome), *apply),
        prune=(*needless_budget(service, observed), *looked(service, observed, outcome)),
        requeue_after=outcome.requeue_after,
    )


def _serving(service: LLMService, observed: Observed) -> list[Wanted]:
    """The children of the revision that runs, as its record has it; none where nothing of this service's runs."""
    live = observed.deployment
    if live is None or ownership(live, service) is not Ownership.OURS:
        return []
    record = next((r for r in _own_revisions(service, observed) if r.label == live.revision), None)
    listed = observed.service.adapters if observed.service is not None else None
    template = record.data()["template"] if record is not None else None
    return kept_up(service, template, _kept_strategy(service, observed), listed)


def _kept_strategy(service: LLMService, observed: Observed) -> Strategy:
    return first(service).strategy if observed.deployment is None else standing_strategy(service, observed.deployment)


def _served_model_names(previous: Json) -> dict[str, Any]:
    """Those that pods were started with; an edit of them waits."""
    names = (previous.get("endpoint") or {}).get("modelNames")
    return {"modelNames": names} if names else {}


def _look(service: LLMService, observed: Observed, settings: Settings, outcome: Outcome) -> Iterator[Apply]:
    """The Job that looks at the model; what it is made of can never be changed, and it does not last."""
    if outcome.job is not None and observed.inspection_job(outcome.job) is None:
        child = with_hash(inspection.job(service, settings))
        yield Apply(child.manifest, "the model is to be planned", is_optional=True, input_hash=child.input_hash)


def _refuse(
    subject: Subject, problems: tuple[Problem, ...], observed: Observed, replicas: int, now: datetime
) -> Decision:
    """Only the status changes; it goes on telling what serves."""
    previous = subject.previous
    verdict = Verdict(
        problems=problems,
        replicas=replicas,
        revision=observed.deployment.revision if observed.deployment is not None else "",
        rolling=as_told(previous.get("rollout") or {}),
        selector=selector_text(subject.name),
        gpus=int(previous.get("gpus") or 0),
        endpoint=previous.get("endpoint") or {},
        effective=previous.get("effective") or {},
        plan=previous.get("plan") if observed.deployment is None else plan_of(observed.deployment.revision, previous),
        model=previous.get("model"),
        adapters=tuple(item["name"] for item in previous.get("adapters") or ()),
    )
    return _report(subject, observed, verdict, now, notes=tuple(map(str, problems)))


def _report(subject: Subject, observed: Observed, verdict: Verdict, now: datetime, **actions: Any) -> Decision:
    status = status_of(subject, observed, verdict, now)
    if not verdict.problems and (lack := lack_of(observed, verdict, status, now)) is not None:
        return Decision(lack=lack)
    asked = asks(observed.pods, observed.reports, verdict.revision, status, verdict.adapters_digest)
    actions["requeue_after"] = soonest(actions.get("requeue_after"), again(observed, verdict, status, now))
    is_unsettled = moment_of(subject, observed, verdict).is_unsettled
    decision = Decision(asks=asked, is_unsettled=is_unsettled, **actions)
    if is_unsettled and may_wait(subject, observed, verdict):
        patience = PATIENCE - observed.unsettled_for
        return replace(decision, requeue_after=min(patience, decision.requeue_after or patience))
    if is_told(status, subject.previous):
        return decision
    return replace(decision, status=status, events=events(subject.previous, status))


def _subject(service: LLMService) -> Subject:
    return Subject(service.name, service.namespace, service.uid, service.generation, service.status)


def _own_revisions(service: LLMService, observed: Observed) -> list[RevisionFacts]:
    """Those of an orphaned service count: the model that they describe may still be running."""
    ours = (Ownership.OURS, Ownership.ORPHAN)
    return [r for r in observed.revisions if r.is_whole and ownership(r, service) in ours]


def _verdict(
    case: Case, choice: Choice, outcome: Outcome, how: Way, obstacle: Obstacle | None, *, is_pending: bool
) -> Verdict:
    service = case.service
    return Verdict(
        obstacle=obstacle,
        is_pending=is_pending,
        paused=service.spec.paused,
        replicas=service.spec.scaling.replicas,
        revision=choice.label,
        rolling=_rolling(case, choice, how),
        selector=selector_text(service.name),
        gpus=gpus(service),
        endpoint=_endpoint(service),
        effective=effective(service, choice.template, choice.chosen),
        fitness=outcome.fitness,
        plan=outcome.plan,
        model=outcome.model,
        adapters=tuple(sorted(adapter.name for adapter in service.spec.adapters)),
        adapters_digest=adapters.digest(service),
    )


def _rolling(case: Case, choice: Choice, how: Way) -> Rolling:
    back, turn = case.back, case.waits_for
    return Rolling(
        strategy=how.strategy,
        reason=back.reason if back is not None and back.failed is not None else how.reason,
        pinned=back is not None and back.failed is None,
        failed=back.failed if back is not None else None,
        spec=case.spec_hash,
        update_pending=turn is not None or (choice.update_pending and (back is None or back.is_whole)),
        update_waiting=updates.why_waiting(turn) if turn is not None else "",
        update_blocked=" ".join(map(str, case.problems)),
    )


def _endpoint(service: LLMService) -> dict[str, Any]:
    return {
        "url": url(service.name, service.namespace, service.spec.endpoint.port),
        "modelNames": list(service.served_model_names),
    }
