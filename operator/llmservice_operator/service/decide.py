"""Decides from spec and cluster what to do about one LLMService. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from kubeloop.resources import rfc3339
from llmservice_api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_api.constants import selector_text
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService, is_paused

from llmservice_operator.behaviours.fit.assess import FitAssessment, assess, picks_for_new_spec
from llmservice_operator.behaviours.gateway import move_route, with_route, without_pool_in_use
from llmservice_operator.behaviours.groups import GroupStep, group_step, with_nodes
from llmservice_operator.behaviours.holding import (
    HoldingInputs,
    RolloutHolding,
    ScaleToZero,
    rollout_holding,
    rollout_holding_events,
    scale_to_zero,
    undesired_slices,
    with_replicas,
)
from llmservice_operator.behaviours.rollout import UPDATE_RECHECK_SECONDS as RECHECK_SECONDS
from llmservice_operator.behaviours.rollout import (
    Change,
    current_strategy,
    initial_step,
    rollout_events,
    rollout_step,
    update_of,
    why_waiting,
)
from llmservice_operator.behaviours.routing import route, undesired_past_router
from llmservice_operator.children import (
    DesiredChild,
    adopted_records,
    applies,
    between_kinds,
    claims_unseen,
    desired_children,
    finished_jobs,
    groups_unseen,
    held_edit_children,
    is_pending,
    obstacle_to_apply,
    prunes,
    selecting_leaders,
    undesired_children,
    with_hash,
)
from llmservice_operator.decision import (
    Adopt,
    Apply,
    Decision,
    Event,
    HoldingQuery,
    Inputs,
    Requirements,
    Restart,
    RolloutStep,
    Update,
    soonest,
    value_of,
)
from llmservice_operator.facts.children import HoldingSliceFacts
from llmservice_operator.manifests import inspection
from llmservice_operator.manifests.children import adapters_digest, endpoint
from llmservice_operator.manifests.pod_template import effective, gpus, pod_template
from llmservice_operator.manifests.server import where_pods_go
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.observed import Observed, Ownership, name_conflicts, ownership
from llmservice_operator.observe.progress import RolloutDecision, stored_rollout
from llmservice_operator.observe.verdict import Obstacle, Subject, Verdict
from llmservice_operator.revisions import (
    DesiredRevision,
    Rollback,
    Selection,
    desired_revision,
    own_revisions,
    rolled_workload,
    select,
)
from llmservice_operator.service.status import (
    Case,
    refuse,
    report,
    subject_of,
)
from llmservice_operator.workload.kinds import is_workload
from llmservice_operator.workload.port import Strategy

Json = Mapping[str, Any]


AT_ONCE = 0.0
"""Seconds until the next reconcile, where the status that is written now is an input of the next decision."""
ADOPTION_SECONDS = 30.0
"""Seconds after the creation of a later service in which the garbage collector may delete children of the earlier
one."""


def decide(inputs: Inputs) -> Decision | Requirements:
    """The decision; or what has to be read first, after which more may be needed."""
    if inputs.parent["metadata"].get("deletionTimestamp") is not None:
        return Decision(notes=(Reason.DELETING.summary,))
    known = with_nodes(inputs, picks_for_new_spec)
    if isinstance(known, Requirements):
        return known
    step = group_step(known)
    if isinstance(step, Requirements):
        return step
    inputs = replace(known, observed=step.observed)
    found, rollback = _decide(inputs)
    return found if isinstance(found, Requirements) else complete(with_groups(found, step), inputs, rollback)


def complete(decision: Decision, inputs: Inputs, rollback: Rollback | None = None) -> Decision:
    """The decision with actions that do not depend on the spec."""
    return with_degraded(with_adoption(decision, inputs), inputs, rollback)


def with_groups(decision: Decision, step: GroupStep) -> Decision:
    wait = soonest(decision.requeue_after, step.recheck_after)
    return replace(decision, release=step.release, is_placing=step.is_placing, requeue_after=wait)


def _decide(inputs: Inputs) -> tuple[Decision | Requirements, Rollback | None]:
    """The decision, and the recorded revision that runs instead of the spec's, if any."""
    if inputs.stored is None:
        return _invalid(inputs), None
    holding = scale_to_zero(inputs.stored, inputs.observed, inputs.settings, _holding_inputs(inputs))
    if holding.needs_port:
        return Requirements(port=HoldingQuery(holding.port, holding.is_held)), None
    service = with_replicas(inputs.stored, holding.replicas)
    selection = select(service, inputs.observed, inputs.settings, value_of(inputs.update_permission, None))
    case = Case(inputs, subject_of(service), service, holding, is_selected=isinstance(selection, Selection))
    if not isinstance(selection, Selection):
        return refuse(case, selection, service.spec.scaling.replicas), None
    return _of_selection(case, holding, selection), selection.rollback


def _holding_inputs(inputs: Inputs) -> HoldingInputs:
    return HoldingInputs(
        inputs.activators,
        inputs.unknown_for,
        value_of(inputs.port_claim, None),
        value_of(inputs.holding, None),
        value_of(inputs.in_flight, None),
    )


def _of_selection(case: Case, holding: ScaleToZero, selection: Selection) -> Decision | Requirements:
    inputs = case.inputs
    if selection.needs_update_permission and inputs.update_permission is None:
        return Requirements(update_permission=True)
    if needed := inputs.reports_of(HoldingQuery(holding.port, holding.is_held, holding.asks)):
        return needed
    if holding.counts and inputs.in_flight is None:
        return Requirements(in_flight=holding.counts)
    fit = assess(inputs, selection)
    if isinstance(fit, Requirements):
        return fit
    desired = desired_revision(selection.service, selection.match, fit.chosen, inputs.settings)
    live = inputs.observed.workload
    runs = live is not None and live.revision == desired.label
    if fit.hold is not None and selection.rollback is None and not selection.service.spec.paused and not runs:
        return hold_edit(case, holding, selection.service, fit)
    unseen = groups_unseen(selection.service, inputs.observed, desired.template)
    unseen = unseen or claims_unseen(selection.service, inputs.observed, desired.template)
    if unseen is not None:
        return hold_edit(case, holding, selection.service, replace(fit, hold=unseen))
    step = _step(inputs, selection, desired)
    return step if isinstance(step, Requirements) else _roll_out(case, holding, selection, fit, desired, step)


def _invalid(inputs: Inputs) -> Decision | Requirements:
    """For a spec that cannot be parsed: report it, and leave what serves unchanged."""
    metadata, live = inputs.parent["metadata"], inputs.observed.workload
    subject = Subject(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=int(metadata.get("generation") or 0),
        previous=inputs.parent.get("status") or {},
    )
    return refuse(Case(inputs, subject), inputs.problems, live.spec_replicas if live is not None else 0)


def _roll_out(
    case: Case,
    holding: ScaleToZero,
    selection: Selection,
    fit: FitAssessment,
    desired: DesiredRevision,
    step: RolloutStep,
) -> Decision | Requirements:
    """Roll out a known revision, with everything else that is to do."""
    inputs, service, observed = case.inputs, selection.service, case.inputs.observed
    holding_step = rollout_holding(inputs, holding.port, step, desired.label)
    asks = holding_step.asks if holding_step is not None else ()
    if needed := inputs.reports_of(HoldingQuery(holding.port, holding.is_held, asks)):
        return needed
    slices = holding.slices if holding_step is None else holding_step.slices
    orphans = [r for r in selection.revisions if ownership(r, service) is Ownership.ORPHAN and r.label != desired.label]
    made = desired_children(service, selection.asked, desired, step.strategy, inputs.settings)
    made = selecting_leaders(service, observed, desired, made)
    made = between_kinds(service, observed, desired, made, step.strategy)
    made = with_route(service, observed, made, desired.label)
    routing = route(service, observed, inputs.settings, made)
    # Before the workload, so that requests are held before the last replica ends.
    children = [*(slices or ()), *routing.slices, *routing.made, *adopted_records(service, orphans)]
    problems = name_conflicts(service, observed, {child.id for child in children})
    if problems:
        return refuse(case, problems, service.spec.scaling.replicas)
    apply = tuple(applies(service, observed, children))
    obstacle = (
        obstacle_to_apply(service, observed, children)
        or _rolled_back(selection.rollback)
        or _refused(selection)
        or step.obstacle
    )
    verdict = _verdict(selection, desired, fit, step, holding_step, obstacle, is_pending=is_pending(apply))
    shown = {
        "desired": tuple(child.manifest for child in (*children, *routing.own)),
        "restart": _restart(inputs, desired, step),
    }
    unheld = (
        *undesired_slices(service, observed, slices),
        *undesired_past_router(service, observed, routing.slices),
    )
    if service.spec.paused:
        held = (*(item for item in apply if item.kind == HoldingSliceFacts.kind), *move_route(service, observed))
        return report(case, verdict, apply=held, prune=unheld, notes=(Reason.PAUSED.summary,), **shown)
    if step.is_reported_first or step.is_held or (holding_step is not None and holding_step.is_waiting):
        apply = tuple(item for item in apply if not is_workload(item.kind))
    apply = (*apply, *routing.applies(service, observed))
    gone = prunes(service, selection.asked, observed, desired, inputs.settings)
    gone = without_pool_in_use(service, observed, gone)
    prune = (*unheld, *routing.prune, *gone, *finished_jobs(service, observed, fit.job))
    wait = soonest(
        fit.requeue_after,
        step.recheck_after,
        holding_step.recheck_after if holding_step is not None else None,
        AT_ONCE if step.is_reported_first else None,
        RECHECK_SECONDS if selection.waiting_update is not None else None,
    )
    decision = report(case, verdict, apply=apply, prune=prune, requeue_after=wait, **shown)
    if isinstance(decision, Requirements):
        return decision
    decision = _with_rollout(decision, selection, desired, step, obstacle)
    return replace(decision, events=(*decision.events, *rollout_holding_events(service.status, holding_step)))


def _step(inputs: Inputs, selection: Selection, desired: DesiredRevision) -> RolloutStep | Requirements:
    live = rolled_workload(selection.service, inputs.observed, desired.label)
    if live is None:
        return initial_step(selection.service)
    change = Change(selection.service, desired.label, live, desired.template, inputs)
    return rollout_step(change, may_choose=selection.may_choose_strategy)


def _rolled_back(rollback: Rollback | None) -> Obstacle | None:
    is_automatic = rollback is not None and rollback.failed is not None
    return Obstacle(Reason.ROLLED_BACK, rollback.reason) if is_automatic and rollback is not None else None


def _refused(selection: Selection) -> Obstacle | None:
    if not selection.is_update_refused:
        return None
    first, *_ = selection.problems
    return Obstacle(first.reason, f"{first.field}: {first.message}", remedy=first.remedy)


def _restart(inputs: Inputs, desired: DesiredRevision, step: RolloutStep) -> Restart | None:
    live = inputs.observed.workload
    if live is None or live.revision in ("", desired.label) or not live.spec_replicas:
        return None
    return Restart(live.revision, desired.label, step.strategy, step.reason)


def _with_rollout(
    decision: Decision, selection: Selection, desired: DesiredRevision, step: RolloutStep, obstacle: Obstacle | None
) -> Decision:
    """The decision with consequences of its status.rollout: updates of other services, Events, a rollback."""
    before = selection.service.status.get("rollout") or {}
    after = before if decision.status is None else decision.status.get("rollout") or {}
    waits, replicas = selection.waiting_update is not None, selection.service.spec.scaling.replicas
    update = update_of(desired, selection.revisions, after, waits=waits, replicas=replicas)
    if update is Update.RUNNING and obstacle is not None and obstacle.is_final:
        update = Update.FAILED  # it no longer counts as running, and the status of waiting services names it
    has_just_failed = "failedSpec" in after and after["failedSpec"] != before.get("failedSpec")
    return replace(
        decision,
        update=update,
        claims_update=selection.needs_update_permission and not waits,
        ongoing_rollout=(desired.label, step.reason) if step.reason else None,
        events=(*decision.events, *rollout_events(before, after, step)),
        requeue_after=soonest(decision.requeue_after, AT_ONCE if has_just_failed else None),
    )


def _verdict(
    selection: Selection,
    desired: DesiredRevision,
    fit: FitAssessment,
    step: RolloutStep,
    holding_step: RolloutHolding | None,
    obstacle: Obstacle | None,
    *,
    is_pending: bool,
) -> Verdict:
    service = selection.service
    return Verdict(
        obstacle=obstacle,
        is_pending=is_pending,
        paused=service.spec.paused,
        replicas=service.spec.scaling.replicas,
        revision=desired.label,
        rolling=_rolling(selection, desired, step, holding_step),
        selector=selector_text(service.name),
        gpus=gpus(service),
        endpoint=endpoint(service),
        effective=effective(service, desired.template, desired.chosen),
        misplaced=fit.misplaced,
        where_pods_go=where_pods_go(service, desired.template),
        fitness=fit.fitness,
        plan=fit.plan,
        model=fit.model,
        adapters=tuple(sorted(adapter.name for adapter in service.spec.adapters)),
        adapters_digest=adapters_digest(service),
    )


def _rolling(
    selection: Selection, desired: DesiredRevision, step: RolloutStep, holding_step: RolloutHolding | None
) -> RolloutDecision:
    back, waiting = selection.rollback, selection.waiting_update
    return RolloutDecision(
        strategy=step.strategy,
        reason=back.reason if back is not None and back.failed is not None else step.reason,
        kept=back.kept if back is not None else "",
        gap=holding_step.text if holding_step is not None else "",
        pinned=back is not None and back.failed is None,
        failed=back.failed if back is not None else None,
        spec=selection.spec_hash,
        update_pending=waiting is not None or (desired.update_pending and (back is None or back.has_spec)),
        update_waiting=why_waiting(waiting) if waiting is not None else "",
        update_blocked=" ".join(map(str, selection.problems)),
    )


def with_degraded(decision: Decision, inputs: Inputs, back: Rollback | None) -> Decision:
    """The decision, with the condition Degraded while there is a reason for it."""
    found, parent = _found(inputs, back), inputs.parent
    stored = parent.get("status") or {}
    conditions = stored.get("conditions") or ()
    before = next((c for c in conditions if c.get("type") == ConditionType.DEGRADED), None)
    if found is None and before is None:
        return decision
    status = dict(decision.status if decision.status is not None else stored)
    rest = [c for c in status.get("conditions") or () if c.get("type") != ConditionType.DEGRADED]
    if found is not None:
        (reason, message), generation = found, int(parent["metadata"].get("generation") or 0)
        now = rfc3339(inputs.now)
        degraded = Condition.after(
            before, ConditionType.DEGRADED, ConditionStatus.TRUE, reason, message, generation=generation, now=now
        )
        rest.append(degraded.to_object())
    if rest == list(conditions) and {**status, "conditions": conditions} == {**stored, "conditions": conditions}:
        return replace(decision, status=None, events=())
    events = decision.events
    if found is not None and before is None:
        events = (*events, Event("Warning", found[0], rest[-1]["message"]))
    return replace(decision, status={**status, "conditions": rest}, events=events)


def _found(inputs: Inputs, back: Rollback | None) -> tuple[Reason, str] | None:
    """Reason and message; errors of the operator first, since they may hide others."""
    if evidence := inputs.internal_errors:
        reason = Reason.INTERNAL_ERROR
        return reason, f"{reason.summary} {evidence}. {reason.remedy}"
    if back is None or not back.lacks or back.is_protected:
        return None
    names = ", ".join(f"spec.{field}" for field in back.lacks)
    reason = Reason.REVISION_UNPROTECTED
    return reason, f"Revision {back.record.label} runs without {names} of the spec. {reason.remedy}"


def hold_edit(case: Case, holding: ScaleToZero, service: LLMService, fit: FitAssessment) -> Decision | Requirements:
    """Apply nothing of the desired revision: `fit.hold` has the cause."""
    inputs, observed, previous = case.inputs, case.inputs.observed, service.status
    live = observed.workload
    serving = _serving(service, observed, inputs.settings)
    routing = route(service, observed, inputs.settings, with_route(service, observed, serving, None))
    children = [*(holding.slices or ()), *routing.slices, *routing.made] if serving else []
    problems = name_conflicts(service, observed, {child.id for child in children})
    if problems:
        return refuse(case, problems, service.spec.scaling.replicas)
    apply = tuple(applies(service, observed, children))
    verdict = Verdict(
        obstacle=fit.hold,
        is_pending=is_pending(apply),
        replicas=service.spec.scaling.replicas,
        revision=live.revision if live is not None else "",
        rolling=replace(stored_rollout(previous.get("rollout") or {}), strategy=_strategy(service, observed)),
        selector=selector_text(service.name),
        gpus=gpus(service),
        endpoint=endpoint(service) | (_served_names(previous) if live is not None else {}),
        effective=(live and previous.get("effective")) or effective(service, pod_template(service, inputs.settings)),
        fitness=fit.fitness,
        plan=fit.plan,
        model=fit.model,
        adapters=tuple(item["name"] for item in previous.get("adapters") or ()),
    )
    inspect = tuple(_inspect(inputs, service, fit))
    return report(
        case,
        verdict,
        desired=tuple(child.manifest for child in (*children, *routing.own)),
        apply=(*inspect, *apply, *routing.applies(service, observed)),
        prune=(
            *undesired_slices(service, observed, holding.slices),
            *undesired_past_router(service, observed, routing.slices),
            *routing.prune,
            *without_pool_in_use(service, observed, undesired_children(service, observed, inputs.settings)),
            *finished_jobs(service, observed, fit.job),
        ),
        requeue_after=fit.requeue_after,
    )


def _serving(service: LLMService, observed: Observed, settings: Settings) -> list[DesiredChild]:
    """Children of the running revision, from its record; empty where none runs."""
    live = observed.workload
    if live is None or ownership(live, service) is not Ownership.OURS:
        return []
    record = next((r for r in own_revisions(service, observed) if r.label == live.revision), None)
    listed = observed.service.adapters if observed.service is not None else None
    data = record.data() if record is not None else None
    return held_edit_children(service, observed, live, data, _strategy(service, observed), listed, settings)


def _strategy(service: LLMService, observed: Observed) -> Strategy:
    return initial_step(service).strategy if observed.workload is None else current_strategy(service, observed.workload)


def _served_names(previous: Json) -> dict[str, Any]:
    """Names with which pods were started; an edit of them is held."""
    names = (previous.get("endpoint") or {}).get("modelNames")
    return {"modelNames": names} if names else {}


def _inspect(inputs: Inputs, service: LLMService, fit: FitAssessment) -> Iterator[Apply]:
    """The Job that inspects the model; its spec is immutable and it is short-lived."""
    if fit.job is not None and inputs.observed.inspection_job(fit.job) is None:
        child = with_hash(inspection.job(service, inputs.settings))
        yield Apply(child.manifest, "the model is to be planned", is_optional=True, input_hash=child.input_hash)


def with_adoption(decision: Decision, inputs: Inputs) -> Decision:
    """The decision, with adoptions of children of a deleted LLMService of the same name first.

    The garbage collector misses them if the API server ends during a deletion; the service would wait for its own name
    for ever. Names are unique, so an owner of this name with another uid is deleted. Its children become this service's
    unchanged: what serves goes on, and what is not desired is pruned.
    """
    metadata = inputs.parent["metadata"]
    left, created = list(_orphans(metadata, inputs.observed)), metadata.get("creationTimestamp")
    if not left or created is None or is_paused(inputs.parent["spec"]):
        return decision
    age = (inputs.now - datetime.fromisoformat(created)).total_seconds()
    if age < ADOPTION_SECONDS:
        return replace(decision, requeue_after=soonest(decision.requeue_after, ADOPTION_SECONDS - age))
    kept = inputs.observed.kept
    return replace(decision, adopt=tuple(each for each in left if (each.kind, each.name) not in kept))


def _orphans(metadata: Json, observed: Observed) -> Iterator[Adopt]:
    for child in observed.children():
        owner = child.controller
        if owner is not None and not child.deleting and owner.is_earlier(metadata["name"], metadata["uid"]):
            yield Adopt(child.kind, child.name, child.uid, owner.uid)
