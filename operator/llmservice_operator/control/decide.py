"""From what the spec says and what the cluster shows to what is to be done: pure, and a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from llmservice_runtime.flags import render

from llmservice_operator.api.errors import Problem
from llmservice_operator.api.reasons import REASONS, Reason
from llmservice_operator.api.service import LLMService
from llmservice_operator.build import adapters, inspection
from llmservice_operator.build.effective import effective, gpus
from llmservice_operator.build.engine import engine_options, image, vllm_version
from llmservice_operator.build.meta import selector_text
from llmservice_operator.build.service import url
from llmservice_operator.build.settings import Settings
from llmservice_operator.control.attention import again, lack_of
from llmservice_operator.control.children import applies, in_the_way, looked, needless_budget, prunes
from llmservice_operator.control.choose import Choice, choose, standing
from llmservice_operator.control.decision import Apply, Decision, soonest
from llmservice_operator.control.events import events
from llmservice_operator.control.fit import Outcome, assess
from llmservice_operator.control.ownership import Ownership, name_conflicts, ownership
from llmservice_operator.control.wanted import Wanted, kept_up, wanted, with_hash
from llmservice_operator.observe.facts import RevisionFacts
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.reports import asks
from llmservice_operator.observe.rollout import PATIENCE
from llmservice_operator.observe.status import is_told, may_wait, moment_of, status_of
from llmservice_operator.observe.told import plan_of
from llmservice_operator.observe.verdict import Obstacle, Subject, Verdict
from llmservice_operator.planner.checks import check

Json = Mapping[str, Any]


def decide(service: LLMService, observed: Observed, settings: Settings, now: datetime) -> Decision:
    """Everything to do about one LLMService."""
    if service.is_deleting:
        return Decision(notes=(REASONS[Reason.DELETING].summary,))
    problems = check(
        service.spec,
        image=image(service, settings),
        vllm_version=vllm_version(service, settings),
        arguments=render(engine_options(service)),
    )
    if problems:
        return _refuse(_subject(service), problems, observed, service.spec.scaling.replicas, now)
    stand = standing(service, _own_revisions(service, observed))
    outcome = assess(service, observed, settings, now, stand)
    if outcome.lack is not None:
        return Decision(lack=outcome.lack)
    choice = choose(service, stand, outcome.chosen, settings)
    if outcome.hold is not None and not service.spec.paused and not _runs(observed, choice):
        return _keep_back(service, observed, settings, outcome, now)
    children = wanted(service, choice)
    problems = name_conflicts(service, observed, {child.id for child in children})
    if problems:
        return _refuse(_subject(service), problems, observed, service.spec.scaling.replicas, now)
    apply = tuple(applies(service, observed, children))
    obstacle = in_the_way(service, observed, children)
    verdict = _verdict(service, settings, choice, outcome, obstacle, is_pending=bool(apply))
    if service.spec.paused:
        return _report(_subject(service), observed, verdict, now, notes=(REASONS[Reason.PAUSED].summary,))
    prune = (*prunes(service, observed, choice), *looked(service, observed, outcome))
    return _report(
        _subject(service), observed, verdict, now, apply=apply, prune=prune, requeue_after=outcome.requeue_after
    )


def decide_invalid(obj: Json, problems: tuple[Problem, ...], observed: Observed, now: datetime) -> Decision:
    """For a stored object whose spec cannot be parsed: say so, and leave alone what serves."""
    metadata = obj["metadata"]
    if metadata.get("deletionTimestamp") is not None:
        return Decision(notes=(REASONS[Reason.DELETING].summary,))
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
        strategy=service.spec.rollout.strategy,
        selector=selector_text(service.name),
        gpus=gpus(service),
        endpoint=_endpoint(service) | (_served_names(previous) if observed.deployment is not None else {}),
        effective=(observed.deployment and previous.get("effective")) or effective(service, settings),
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
    return kept_up(service, record.data()["template"] if record is not None else None, listed)


def _served_names(previous: Json) -> dict[str, Any]:
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
        strategy=str((previous.get("rollout") or {}).get("strategy", "")),
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
    return [r for r in observed.revisions if ownership(r, service) in (Ownership.OURS, Ownership.ORPHAN)]


def _verdict(
    service: LLMService,
    settings: Settings,
    choice: Choice,
    outcome: Outcome,
    obstacle: Obstacle | None,
    *,
    is_pending: bool,
) -> Verdict:
    return Verdict(
        obstacle=obstacle,
        is_pending=is_pending,
        paused=service.spec.paused,
        replicas=service.spec.scaling.replicas,
        revision=choice.label,
        strategy=service.spec.rollout.strategy,
        update_pending=choice.update_pending,
        selector=selector_text(service.name),
        gpus=gpus(service),
        endpoint=_endpoint(service),
        effective=effective(service, settings, choice.chosen),
        fitness=outcome.fitness,
        plan=outcome.plan,
        model=outcome.model,
        adapters=tuple(sorted(adapter.name for adapter in service.spec.adapters)),
        adapters_digest=adapters.digest(service),
    )


def _endpoint(service: LLMService) -> dict[str, Any]:
    return {
        "url": url(service.name, service.namespace, service.spec.endpoint.port),
        "modelNames": list(service.served_names),
    }
