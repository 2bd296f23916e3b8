"""The whole status of an LLMService, including conditions, its Events, and the time of the next reconcile: pure
functions of observations and decisions.

Equal facts give an equal status, so it is written at transitions only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from kubeloop.resources import rfc3339
from llmservice_api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_api.constants import TYPICAL_REQUEST, selector_text
from llmservice_api.errors import Problem
from llmservice_api.holding import stored_idle, stored_port
from llmservice_api.lifecycle import MOST_CONCURRENCY, Autoscaling
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService
from llmservice_api.status import LLMServiceStatus
from llmservice_planner.room import Room

from llmservice_operator.behaviours.autoscaling import autoscaled, deletion_costs, pods_to_count
from llmservice_operator.behaviours.gateway import gateway_ready, move_route
from llmservice_operator.behaviours.holding import (
    ScaleToZero,
    is_listed,
    slices_without_spec,
    undesired_slices,
)
from llmservice_operator.behaviours.routing import past_router, routing_ready, undesired_past_router, unreached
from llmservice_operator.children import DesiredChild, apply_of, obstacle_to_prune
from llmservice_operator.decision import (
    NO_REQUIREMENTS,
    QUOTAS_SECONDS,
    REFRESH_SECONDS,
    Apply,
    Decision,
    Event,
    Inputs,
    Prune,
    Requirements,
    RoomQuery,
    soonest,
    value_of,
)
from llmservice_operator.facts import scheduling
from llmservice_operator.facts.pods import OPERATORS_CONTAINERS
from llmservice_operator.manifests.server import accelerator_resource
from llmservice_operator.observe.failures.failure import (
    FailureContext,
    failure_of,
    is_refusal,
    may_be_of_nodes,
    refusal_of,
    rollout_failure,
)
from llmservice_operator.observe.failures.pod_events import EventQuery, PodEvents, event_query, refused_pods
from llmservice_operator.observe.failures.pod_failure import ENDS_BY_TIME, StatusFailure
from llmservice_operator.observe.observed import (
    Observed,
    adapters_of,
    asks,
    groups_of,
    measured_of,
    name_conflicts,
    progress_of,
    starting_state,
)
from llmservice_operator.observe.progress import (
    SETTLE_SECONDS,
    Progress,
    gates_of,
    progress,
    rollout_of,
    stored_rollout,
)
from llmservice_operator.observe.verdict import Finding, Subject, Verdict, plan_of
from llmservice_operator.workload.kinds import is_workload
from llmservice_operator.workload.port import WorkloadFacts

Json = Mapping[str, Any]

_OURS = {field.alias or name for name, field in LLMServiceStatus.model_fields.items()} - {"conditions"}


class ProgressSnapshot(NamedTuple):
    """Progress of the desired revision, and the pod that `status.progress` is about."""

    progress: Progress
    starting: Json | None


def progress_snapshot(subject: Subject, observed: Observed, verdict: Verdict, now: datetime) -> ProgressSnapshot:
    """Computed once from the observed state, for the status and for other decisions."""
    starting = progress_of(observed.pods, observed.reports, verdict.revision, subject.previous)
    state = starting_state(observed.pods, observed.reports, verdict.revision, starting)
    workload, listed = _own_workload(subject, observed, verdict.revision), _listed(subject, observed)
    rollout = subject.previous.get("rollout") or {}
    before = gates_of(rollout) if rollout.get("revision") == verdict.revision else {}
    found = progress(
        workload, observed.replicas, listed, verdict.revision, verdict.replicas, state, before=before, now=now
    )
    return ProgressSnapshot(found, starting)


def status_of(
    subject: Subject,
    observed: Observed,
    verdict: Verdict,
    moment: ProgressSnapshot,
    now: datetime,
    *,
    room: Room | None = None,
    pod_events: PodEvents | None = None,
) -> dict[str, Any]:
    """The value of `.status`. `room` and `pod_events` were read for failures of pods; None: not read."""
    stamp = rfc3339(now)
    pods, reports, previous = observed.pods, observed.reports, subject.previous
    rollout = moment.progress
    adapters = adapters_of(verdict.adapters, verdict.adapters_digest or "", pods, reports, verdict.revision, previous)
    context = _failure_context(subject, observed, verdict, room, pod_events)
    revision_failure = _revision_failure(subject, observed, verdict, rollout, stamp, context)
    status: dict[str, Any] = {
        "observedGeneration": subject.generation,
        "conditions": conditions(subject, verdict, rollout, revision_failure, adapters, stamp),
        "replicas": rollout.replicas,
        "updatedReplicas": rollout.updated,
        "readyReplicas": rollout.answering,
        "availableReplicas": rollout.answering,
        "selector": verdict.selector,
        "ready": f"{rollout.answering}/{verdict.replicas}",
        "gpus": verdict.gpus,
    }
    if verdict.endpoint:
        status["endpoint"] = _endpoint(verdict, adapters)
    port = {} if verdict.holding_port is None else {"port": verdict.holding_port}
    if holding := port | ({} if verdict.idle is None else {"idle": verdict.idle}):
        status["holding"] = holding
    if verdict.revision:
        status["rollout"] = rollout_of(
            verdict.rolling,
            verdict.revision,
            rollout,
            revision_failure,
            is_pending=verdict.is_pending,
            previous=previous.get("rollout") or {},
        )
    failure = refusal_of(verdict, previous.get("failure"), stamp) or revision_failure
    if failure is not None:
        status["failure"] = failure.to_object()
    # A crash-looping pod would write its phases again with each restart.
    if moment.starting is not None and not (revision_failure is not None and revision_failure.is_final):
        status["progress"] = dict(moment.starting)
    if verdict.model:
        status["model"] = dict(verdict.model)
    if verdict.plan:
        status["plan"] = dict(verdict.plan)
    if measured := measured_of(pods, reports, verdict.revision, previous):
        status["measured"] = measured
    if verdict.effective:
        status["effective"] = _effective(verdict, measured or {})
    if adapters:
        status["adapters"] = adapters
    if groups := groups_of(pods, reports, previous):
        status["groups"] = groups
    return status


def may_wait(subject: Subject, observed: Observed, verdict: Verdict) -> bool:
    """Whether the stored status may stay a moment longer: one watch may lag behind the others."""
    previous = subject.previous
    is_of_now = previous.get("observedGeneration") == subject.generation
    is_same = (previous.get("rollout") or {}).get("revision") == verdict.revision
    is_applied = not (verdict.problems or verdict.obstacle or verdict.is_pending)
    return is_of_now and is_same and is_applied and observed.unsettled_for < SETTLE_SECONDS


def is_stored(status: Json, previous: Json) -> bool:
    """Whether the stored status equals this one; fields and conditions of others are ignored."""
    if any(status.get(key) != previous.get(key) for key in _OURS):
        return False
    stored = {c.get("type"): c for c in previous.get("conditions") or ()}
    types = {c["type"] for c in status["conditions"]}
    passing = {"Fits", "Autoscaled", "RoutingReady", "Reconciling", "Stalled"} - types
    return not passing & set(stored) and all(stored.get(c["type"]) == c for c in status["conditions"])


def _own_workload(subject: Subject, observed: Observed, revision: str) -> WorkloadFacts | None:
    """The one of this revision first: while replicas move between kinds of workloads another one serves."""
    own = [each for each in observed.workloads if each.owner_uid == subject.uid]
    return next((each for each in own if each.revision == revision), own[0] if own else None)


def _listed(subject: Subject, observed: Observed) -> frozenset[str] | None:
    """Without the service's own Service no request reaches a pod, whatever endpoints are left; nor does one past a
    router that is not ready, where nothing leads there."""
    if observed.service is None or observed.service.owner_uid != subject.uid:
        return frozenset()
    return None if observed.endpoints is None else observed.endpoints - unreached(subject, observed)[0]


def _failure_context(
    subject: Subject, observed: Observed, verdict: Verdict, room: Room | None, pod_events: PodEvents | None
) -> FailureContext:
    workload = _own_workload(subject, observed, verdict.revision)
    template = workload.template() if workload is not None and room else {}
    wanted, pod = scheduling.accelerator_request(verdict.effective), template.get("spec")
    built = _built_containers(observed, verdict.revision)
    return FailureContext(
        observed.reports,
        pod_events,
        wanted,
        room,
        pod,
        subject.namespace,
        built,
        misplaced=verdict.misplaced,
        where_pods_go=verdict.where_pods_go,
    )


def _built_containers(observed: Observed, revision: str) -> frozenset[str] | None:
    """Containers of the revision's recorded template; only read where a pod has another one that fails."""
    pods = [pod for pod in observed.pods if pod.revision == revision and not pod.ready]
    if all(pod.container in {"", *OPERATORS_CONTAINERS} and not pod.unready for pod in pods):
        return None
    record = next((each for each in observed.revisions if each.label == revision and each.is_valid_record), None)
    if record is None:
        return None
    pod_spec = (record.data().get("template") or {}).get("spec") or {}
    built = (*(pod_spec.get("initContainers") or ()), *(pod_spec.get("containers") or ()))
    return OPERATORS_CONTAINERS | {str(container.get("name")) for container in built}


def _revision_failure(
    subject: Subject, observed: Observed, verdict: Verdict, rollout: Progress, stamp: str, context: FailureContext
) -> StatusFailure | None:
    """The failure of the desired revision; failures of pods take precedence over a slow rollout."""
    if rollout.is_rolled_out or not verdict.revision:
        return None
    previous, workload = _previous_failure(subject, verdict), _own_workload(subject, observed, verdict.revision)
    workload = refused_pods(workload, context.events)
    pods = observed.pods if workload is not None else ()
    found = failure_of(workload, pods, verdict.revision, previous, stamp, context)
    # A missing or changed Service has no endpoints either.
    is_applied = not (verdict.problems or verdict.obstacle or verdict.is_pending)
    late = workload.deadline_message if workload is not None else ""
    overdue = f"{workload.kind}: {late}" if workload is not None and late else ""
    found = found or rollout_failure(rollout, previous, stamp, overdue=overdue, is_applied=is_applied)
    if found is not None and found.reason is Reason.NO_ENDPOINTS and (why := unreached(subject, observed)[1]):
        found = replace(found, message=f"{found.message} {why}", remedy=Reason.ROUTER_REFUSED.remedy)
    return found


def _previous_failure(subject: Subject, verdict: Verdict) -> Json | None:
    """The stored failure of this revision; None for a new one."""
    rollout, failure = subject.previous.get("rollout") or {}, subject.previous.get("failure")
    return failure if rollout.get("revision") == verdict.revision and not is_refusal(failure) else None


def _effective(verdict: Verdict, measured: Json) -> dict[str, Any]:
    """With the target of autoscaling, which depends on vLLM's measurements."""
    effective = {name: section for name, section in verdict.effective.items() if name != "scaling"}
    if verdict.autoscaling is None:
        return effective
    return effective | {"scaling": effective_scaling(verdict.autoscaling, effective, measured, verdict.plan or {})}


def _endpoint(verdict: Verdict, adapters: list[dict[str, Any]]) -> dict[str, Any]:
    """With the names of loaded adapters."""
    names = [*verdict.endpoint.get("modelNames", ()), *(item["name"] for item in adapters if item["loaded"])]
    return {**verdict.endpoint, "modelNames": list(dict.fromkeys(names))}


@dataclass(frozen=True, slots=True)
class _Draft:
    type: ConditionType
    status: bool | ConditionStatus
    reason: Reason
    message: str


def conditions(
    subject: Subject,
    verdict: Verdict,
    progress: Progress,
    failure: StatusFailure | None,
    adapters: Sequence[Json],
    now: str,
) -> list[dict[str, Any]]:
    """All conditions in their order; a transition time changes only with the status."""
    before = {c.get("type"): c for c in subject.previous.get("conditions") or ()}
    drafts = _drafts(verdict, progress, failure, _unserved(adapters))
    return [_condition(item, subject, before.get(str(item.type)), now).to_object() for item in drafts]


def _condition(draft: _Draft, subject: Subject, before: Json | None, now: str) -> Condition:
    status = draft.status
    if isinstance(status, bool):
        status = ConditionStatus.TRUE if status else ConditionStatus.FALSE
    return Condition.after(
        before, draft.type, status, draft.reason, draft.message, generation=subject.generation, now=now
    )


def _drafts(verdict: Verdict, progress: Progress, failure: StatusFailure | None, unserved: str) -> Iterator[_Draft]:
    yield _accepted(verdict)
    if verdict.fitness is not None:
        yield _Draft(ConditionType.FITS, verdict.fitness.status, verdict.fitness.reason, verdict.fitness.message)
    yield _available(verdict, progress)
    if verdict.autoscaled is not None:
        scaled = verdict.autoscaled
        yield _Draft(ConditionType.AUTOSCALED, scaled.status, scaled.reason, scaled.message)
    if verdict.routing is not None:
        routed = verdict.routing
        yield _Draft(ConditionType.ROUTING_READY, routed.status, routed.reason, routed.message)
    ready = _ready(verdict, progress, failure)
    if ready.status:
        ready = replace(ready, message=ready.message + unserved)
    yield ready
    if ready.status or ready.reason is Reason.PAUSED:
        return
    is_stalled = _is_stalled(verdict, progress, failure)
    yield _Draft(ConditionType.STALLED if is_stalled else ConditionType.RECONCILING, True, ready.reason, ready.message)


def _unserved(adapters: Sequence[Json]) -> str:
    """The base model serves without adapters, so they change no condition."""
    names = [item["name"] for item in adapters if item.get("message")]
    return f" Adapters that are not served: {', '.join(names)}; status.adapters says why." if names else ""


def _accepted(verdict: Verdict) -> _Draft:
    if verdict.problems:
        message = " ".join(map(str, verdict.problems))
        return _Draft(ConditionType.ACCEPTED, False, verdict.problems[0].reason, message)
    reason = Reason.PAUSED if verdict.paused else Reason.VALID
    return _Draft(ConditionType.ACCEPTED, True, reason, reason.summary)


def _available(verdict: Verdict, progress: Progress) -> _Draft:
    if progress.answering:
        return _Draft(ConditionType.AVAILABLE, True, Reason.REPLICAS_READY, Reason.REPLICAS_READY.summary)
    reason, message = Reason.NO_REPLICA_READY, Reason.NO_REPLICA_READY.summary
    if progress.unlisted:
        reason, routed = Reason.NO_ENDPOINTS, verdict.routing
        message = routed.message if routed is not None and routed.reason is reason else reason.summary
    elif not progress.wanted:
        reason, message = _at_zero(verdict)
    return _Draft(ConditionType.AVAILABLE, False, reason, message)


def _at_zero(verdict: Verdict) -> tuple[Reason, str]:
    """Why no replica is to run; where requests are held, what starts one."""
    if verdict.held_seconds is None:
        return Reason.SCALED_TO_ZERO, Reason.SCALED_TO_ZERO.summary
    return Reason.IDLE, f"{Reason.IDLE.summary} It is held for up to {verdict.held_seconds} s."


def _ready(verdict: Verdict, progress: Progress, failure: StatusFailure | None) -> _Draft:
    """No replica where none is requested counts as ready: tools that wait for Ready would otherwise wait for ever."""
    reason, message = _ready_reason(verdict, progress, failure)
    return _Draft(ConditionType.READY, reason in _AS_ASKED_FOR, reason, message)


_AS_ASKED_FOR = (Reason.ROLLED_OUT, Reason.SCALED_TO_ZERO, Reason.IDLE)


def _ready_reason(verdict: Verdict, progress: Progress, failure: StatusFailure | None) -> tuple[Reason, str]:
    """RolledOut, or the first obstacle from the spec down to the pods."""
    if verdict.problems:
        return verdict.problems[0].reason, str(verdict.problems[0])
    if verdict.obstacle is not None and not verdict.paused:
        return verdict.obstacle.reason, verdict.obstacle.sentence()
    if progress.is_rolled_out and not verdict.is_pending:
        return (Reason.ROLLED_OUT, Reason.ROLLED_OUT.summary) if progress.wanted else _at_zero(verdict)
    if verdict.paused:
        return Reason.PAUSED, Reason.PAUSED.summary
    if progress.is_rolled_out or (progress.is_unsettled and verdict.is_pending):
        return Reason.PROGRESSING, "Children are being brought to what the spec asks for."
    if failure is not None:
        return failure.reason, failure.sentence()
    return progress.reason, progress.message


def _is_stalled(verdict: Verdict, progress: Progress, failure: StatusFailure | None) -> bool:
    """In the order of the Ready reason: an obstacle of the spec takes precedence over an earlier revision's failure."""
    if verdict.problems:
        return True
    if verdict.obstacle is not None and not verdict.paused:
        # A pod that waits for a node is of this revision, and waits no longer than the rollout's deadline.
        is_late = verdict.obstacle.reason is Reason.WAITING_FOR_GPU and progress.is_overdue
        return verdict.obstacle.is_final or is_late
    # A quota blocks a pod beside the old ones: what they release may be enough, and meanwhile they serve.
    is_passing = failure is not None and failure.reason is Reason.QUOTA_EXCEEDED and progress.answering > 0
    return progress.is_overdue or (failure is not None and failure.is_final and not is_passing)


def effective_scaling(autoscaling: Autoscaling, effective: Json, measured: Json, plan: Json) -> dict[str, int]:
    """status.effective of autoscaling, from other sections of the new status: `measured` and `plan` are of the revision
    that serves or is being rolled out, or empty."""
    stated = autoscaling.target.concurrency_per_replica
    concurrency = concurrency_of(effective, measured, plan) if stated == "auto" else stated
    found = {"minReplicas": autoscaling.min_replicas, "maxReplicas": autoscaling.max_replicas}
    if autoscaling.may_be_at_zero:
        found["idleSeconds"] = autoscaling.scale_down.idle_seconds
    return found if concurrency is None else found | {"concurrencyPerReplica": concurrency}


def concurrency_of(effective: Json, measured: Json, plan: Json) -> int | None:
    """Requests of usual length that one replica computes at once, 1 to MOST_CONCURRENCY; None: unknown.

    At most as many as vLLM takes into one step, and as the KV cache holds; vLLM's measurement takes precedence over the
    plan. It does not depend on the load.
    """
    batching = effective.get("batching") or {}
    tokens = _first(measured.get("kvCacheTokens"), plan.get("kvCacheTokens"))
    lengths = measured.get("maxModelLen"), batching.get("maxModelLen"), plan.get("requestedMaxModelLen")
    usual = min(TYPICAL_REQUEST, _first(*lengths) or TYPICAL_REQUEST)
    limits = [_first(batching.get("maxNumSeqs")), None if tokens is None else tokens // usual]
    known = [limit for limit in limits if limit is not None]
    return max(1, min(*known, MOST_CONCURRENCY)) if known else None


def _first(*values: object) -> int | None:
    """The first that is a number of at least one."""
    return next((value for value in values if isinstance(value, int) and value >= 1), None)


_SINGLE = 3
"""Adapters with an Event each; further ones share one."""


@dataclass(frozen=True, slots=True)
class Case:
    """The subject of a decision, and what follows directly from its inputs. None: the spec cannot be parsed."""

    inputs: Inputs
    subject: Subject
    service: LLMService | None = None
    """With the number of replicas that its workload is to have."""
    scale_to_zero: ScaleToZero | None = None
    is_selected: bool = False
    """The revision to run is known, and the cause of a failure is worth reading."""


def report(case: Case, verdict: Verdict, *, prune: tuple[Prune, ...] = (), **actions: Any) -> Decision | Requirements:
    """The decision with these `actions` (fields of `Decision`), and the status for `verdict`. Refused ones of `prune`
    are omitted."""
    inputs, subject = case.inputs, case.subject
    observed, now = inputs.observed, inputs.now
    if observed.kept or observed.unanswered:
        verdict = replace(verdict, obstacle=verdict.obstacle or obstacle_to_prune(case.service, observed, prune))
        prune = tuple(each for each in prune if (each.kind, each.name) not in observed.kept)
    scaled = _with_scaling(verdict, case)
    needed = scaled if isinstance(scaled, Requirements) else NO_REQUIREMENTS
    workload = _own_workload(subject, observed, verdict.revision)
    query = event_query(observed.pods, observed.reports, verdict.revision, now, workload, observed.replicas)
    if case.is_selected:
        needed |= _of_failures(case, verdict, query)
        needed |= _of_deletion(case, actions.get("apply", ()))
    if needed or isinstance(scaled, Requirements):
        return needed
    verdict = scaled
    moment = progress_snapshot(subject, observed, verdict, now)
    room = inputs.room.value if inputs.room is not None else None
    pod_events = inputs.pod_events.value if inputs.pod_events is not None else None
    status = status_of(subject, observed, verdict, moment, now, room=room, pod_events=pod_events)
    is_unsettled = moment.progress.is_unsettled
    is_unplaced = (status.get("failure") or {}).get("reason") in scheduling.REASONS
    may_last = (status.get("failure") or {}).get("reason") in ENDS_BY_TIME
    is_at_quota = verdict.autoscaled is not None and verdict.autoscaled.reason is Reason.QUOTA_BELOW_MAXIMUM
    actions["requeue_after"] = soonest(
        actions.get("requeue_after"),
        REFRESH_SECONDS if is_unplaced or may_last else None,
        moment.progress.overdue_in,
        None if case.scale_to_zero is None else case.scale_to_zero.recheck_after,
        QUOTAS_SECONDS if is_at_quota else None,
        query.again,
    )
    asked = asks(observed.pods, observed.reports, verdict.revision, status, verdict.adapters_digest)
    decision = _with_deletion_costs(Decision(asks=asked, is_unsettled=is_unsettled, prune=prune, **actions), case)
    if is_unsettled and may_wait(subject, observed, verdict):
        patience = SETTLE_SECONDS - observed.unsettled_for
        return replace(decision, requeue_after=min(patience, decision.requeue_after or patience))
    if is_stored(status, subject.previous):
        return decision
    return replace(decision, status=status, events=events(subject.previous, status))


def _of_failures(case: Case, verdict: Verdict, query: EventQuery) -> Requirements:
    """What to read from the cluster to explain why pods do not run."""
    inputs = case.inputs
    needed = Requirements(pod_events=query.pods if inputs.pod_events is None else ())
    failure = case.subject.previous.get("failure") or {}
    if not may_be_of_nodes(inputs.observed.pods, verdict.revision, failure):
        return needed
    shown = scheduling.accelerator_request(case.subject.previous.get("effective") or {})
    own = accelerator_resource(case.service) if case.service is not None else None
    room = inputs.free_room(
        RoomQuery(shown.resource if shown is not None else own, REFRESH_SECONDS, is_only_shown=True)
    )
    return needed | room if isinstance(room, Requirements) else needed


def _of_deletion(case: Case, applies: Iterable[Apply]) -> Requirements:
    """Requests in flight of the pods, where the workload is about to be scaled down."""
    if case.service is None or case.inputs.in_flight is not None or not any(is_workload(each.kind) for each in applies):
        return NO_REQUIREMENTS
    return Requirements(in_flight=pods_to_count(case.service, case.inputs.observed))


def _with_scaling(verdict: Verdict, case: Case) -> Verdict | Requirements:
    """The verdict with autoscaling, holding of requests, and routing."""
    inputs, previous, found = case.inputs, case.subject.previous, case.scale_to_zero
    if case.service is None or found is None:
        port, routing = stored_port(previous), _stored_routing(previous)
        return replace(verdict, holding_port=port, idle=stored_idle(previous), routing=routing)
    scaled = autoscaled(case.service, inputs, found.problem, is_accepted=case.is_selected)
    if isinstance(scaled, Requirements):
        return scaled
    scaling = case.service.spec.scaling
    return replace(
        verdict,
        routing=_routing(case.service, inputs),
        autoscaling=scaling.autoscaling,
        autoscaled=scaled,
        holding_port=found.port,
        idle=found.idle,
        held_seconds=scaling.holding.timeout_seconds if found.is_held else None,
    )


_WORST_FIRST = (ConditionStatus.FALSE, ConditionStatus.UNKNOWN, ConditionStatus.TRUE)


def _routing(service: LLMService, inputs: Inputs) -> Finding | None:
    """The router's and the Gateway's: the worse one."""
    found = (ready(service, inputs.observed, inputs.settings) for ready in (routing_ready, gateway_ready))
    each = [finding for finding in found if finding is not None]
    return min(each, key=lambda finding: _WORST_FIRST.index(finding.status), default=None)


def _stored_routing(previous: Json) -> Finding | None:
    """What was said last: router and route stay in the way of requests while the spec cannot be parsed. None where
    nothing was, or another version said it."""
    stored = next((c for c in previous.get("conditions") or () if c.get("type") == ConditionType.ROUTING_READY), None)
    if stored is None:
        return None
    try:
        status, reason = ConditionStatus(str(stored.get("status"))), Reason(str(stored.get("reason")))
    except ValueError:
        return None
    return Finding(status, reason, str(stored.get("message") or ""))


def _with_deletion_costs(decision: Decision, case: Case) -> Decision:
    """The decision with the pods to end, where the workload is about to be scaled down."""
    service = case.service
    if service is None or not any(is_workload(apply.kind) for apply in decision.apply):
        return decision
    in_flight = value_of(case.inputs.in_flight, {})
    return replace(decision, deletion_costs=deletion_costs(service, case.inputs.observed, in_flight))


def refuse(case: Case, problems: tuple[Problem, ...], replicas: int) -> Decision | Requirements:
    """Change only the status and the routes of requests; the status stays about what serves."""
    inputs, subject = case.inputs, case.subject
    live, previous = inputs.observed.workload, subject.previous
    verdict = Verdict(
        problems=problems,
        replicas=replicas,
        revision=live.revision if live is not None else "",
        rolling=stored_rollout(previous.get("rollout") or {}),
        selector=selector_text(subject.name),
        gpus=int(previous.get("gpus") or 0),
        endpoint=previous.get("endpoint") or {},
        effective=previous.get("effective") or {},
        plan=previous.get("plan") if live is None else plan_of(live.revision, previous),
        model=previous.get("model"),
        adapters=tuple(item["name"] for item in previous.get("adapters") or ()),
    )
    return report(case, verdict, notes=tuple(map(str, problems)), **_slices(case))


def _slices(case: Case) -> dict[str, Any]:
    """Routes despite the refusal: requests go to a listed pod, or else to the current activators."""
    subject, observed = case.subject, case.inputs.observed
    slices, past = () if is_listed(observed) else _held(case), past_router(subject, observed)
    ours = [each for each in (*(slices or ()), *past) if not name_conflicts(subject, observed, {each.id})]
    return {
        "apply": (
            *(apply for each in ours if (apply := apply_of(each, subject, observed)) is not None),
            *move_route(subject, observed),
        ),
        "prune": (
            *undesired_slices(subject, observed, slices),
            *undesired_past_router(subject, observed, past),
        ),
    }


def _held(case: Case) -> tuple[DesiredChild, ...] | None:
    if case.scale_to_zero is not None:
        return case.scale_to_zero.slices
    inputs, subject = case.inputs, case.subject
    return slices_without_spec(subject, stored_port(subject.previous), inputs.observed, inputs.activators)


def subject_of(service: LLMService) -> Subject:
    """The service for its status."""
    return Subject(service.name, service.namespace, service.uid, service.generation, service.status)


def events(before: Json, after: Json) -> tuple[Event, ...]:
    """Events for the step from one status to the next."""
    return (*_events(_by_type(before), _by_type(after), before, after), *_adapters(before, after))


def _events(old: dict[str, Json], new: dict[str, Json], before: Json, after: Json) -> Iterator[Event]:
    if _turned("Accepted", "False", old, new) or _other_words("Accepted", "False", old, new):
        yield _event("Warning", new["Accepted"])
    yield from _fits(old.get("Fits", {}), new.get("Fits", {}), new)
    scaled = new.get("Autoscaled", {})
    if scaled.get("reason") == Reason.HOLDING_UNAVAILABLE != old.get("Autoscaled", {}).get("reason"):
        yield _event("Warning", scaled)  # a replica runs that was not requested
    revision, earlier = ((status.get("rollout") or {}).get("revision") for status in (after, before))
    if revision and earlier and revision != earlier:
        yield Event("Normal", Reason.PROGRESSING, f"Rolling out revision {revision}.")
    if _turned("Ready", "True", old, new):
        yield _event("Normal", new["Ready"])
    known = {old.get("Stalled", {}).get("reason"), (before.get("failure") or {}).get("reason"), None}
    if new.get("Accepted", {}).get("status") == "False":
        known.add(new["Accepted"]["reason"])  # reported above, or before: a taken name is also a failure
    failure = after.get("failure") or {}
    if failure.get("reason") not in known:
        yield Event("Warning", failure["reason"], f"{failure['message']} {failure['remedy']}")
    # A failure that might pass was reported when it began; becoming final is no new failure.
    known.add(failure.get("reason"))
    if new.get("Accepted", {}).get("status") == "True" and new.get("Stalled", {}).get("reason") not in known:
        yield _event("Warning", new["Stalled"])


def _fits(old: Json, new: Json, conditions: dict[str, Json]) -> Iterator[Event]:
    """A changed verdict, or a first one that needs action; one that stops the service is Stalled instead."""
    reason, before = new.get("reason"), old.get("reason")
    if reason in (None, before, Reason.INSPECTING_MODEL, Reason.POLICY_IGNORE):
        return
    if before in (None, Reason.INSPECTING_MODEL) and reason in (Reason.FITS, Reason.FACTS_MISSING):
        return
    if reason == conditions.get("Stalled", {}).get("reason"):
        return
    yield _event("Warning" if reason == Reason.DOES_NOT_FIT else "Normal", new)


def _adapters(before: Json, after: Json) -> Iterator[Event]:
    reported = {item.get("name"): item.get("message") for item in before.get("adapters") or ()}
    news = [
        item
        for item in after.get("adapters") or ()
        if item.get("message") not in (None, "", reported.get(item["name"]))
    ]
    for item in news[:_SINGLE]:
        yield Event("Warning", Reason.ADAPTER_NOT_SERVED, f"Adapter {item['name']}: {item['message']}")
    if more := [item["name"] for item in news[_SINGLE:]]:
        text = f"{len(more)} more adapters are not served; status.adapters says why: {', '.join(more)}"
        yield Event("Warning", Reason.ADAPTER_NOT_SERVED, text)


def _by_type(status: Json) -> dict[str, Json]:
    return {c.get("type", ""): c for c in status.get("conditions") or ()}


def _turned(type_: str, status: str, old: dict[str, Json], new: dict[str, Json]) -> bool:
    return new.get(type_, {}).get("status") == status and old.get(type_, {}).get("status") != status


def _other_words(type_: str, status: str, old: dict[str, Json], new: dict[str, Json]) -> bool:
    both = (old.get(type_, {}), new.get(type_, {}))
    return all(c.get("status") == status for c in both) and both[0].get("message") != both[1].get("message")


def _event(kind: str, condition: Json) -> Event:
    return Event(kind, str(condition["reason"]), str(condition["message"]))
