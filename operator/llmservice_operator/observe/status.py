"""The whole status of an LLMService, including conditions, as pure functions of observations and decisions.

Equal facts give an equal status, so it is written at transitions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from kubeloop.timestamps import rfc3339
from llmservice_api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_api.constants import TYPICAL_REQUEST
from llmservice_api.lifecycle import MOST_CONCURRENCY, Autoscaling
from llmservice_api.reasons import Reason
from llmservice_api.status import LLMServiceStatus
from llmservice_planner.room import Room

from llmservice_operator.facts import scheduling
from llmservice_operator.facts.pods import OPERATORS_CONTAINERS
from llmservice_operator.observe.failures.failure import (
    FailureContext,
    failure_of,
    is_refusal,
    refusal_of,
    rollout_failure,
)
from llmservice_operator.observe.failures.pod_events import PodEvents
from llmservice_operator.observe.failures.status_failure import StatusFailure
from llmservice_operator.observe.observed import (
    Observed,
    adapters_of,
    measured_of,
    progress_of,
    starting_state,
)
from llmservice_operator.observe.progress import SETTLE_SECONDS, Progress, gates_of, progress, rollout_of
from llmservice_operator.observe.verdict import Subject, Verdict
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
    workload, listed = _own_workload(subject, observed), _listed(subject, observed)
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
    passing = {"Fits", "Autoscaled", "Reconciling", "Stalled"} - types
    return not passing & set(stored) and all(stored.get(c["type"]) == c for c in status["conditions"])


def _own_workload(subject: Subject, observed: Observed) -> WorkloadFacts | None:
    found = observed.workload
    return found if found is not None and found.owner_uid == subject.uid else None


def _listed(subject: Subject, observed: Observed) -> frozenset[str] | None:
    """Without the service's own Service no request reaches a pod, whatever endpoints are left."""
    if observed.service is None or observed.service.owner_uid != subject.uid:
        return frozenset()
    return observed.endpoints


def _failure_context(
    subject: Subject, observed: Observed, verdict: Verdict, room: Room | None, pod_events: PodEvents | None
) -> FailureContext:
    workload = _own_workload(subject, observed)
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
    previous, workload = _previous_failure(subject, verdict), _own_workload(subject, observed)
    pods = observed.pods if workload is not None else ()
    found = failure_of(workload, pods, verdict.revision, previous, stamp, context)
    # A missing or changed Service has no endpoints either.
    is_applied = not (verdict.problems or verdict.obstacle or verdict.is_pending)
    late = workload.deadline_message if workload is not None else ""
    overdue = f"{workload.kind}: {late}" if workload is not None and late else ""
    return found or rollout_failure(rollout, previous, stamp, overdue=overdue, is_applied=is_applied)


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
        reason, message = Reason.NO_ENDPOINTS, Reason.NO_ENDPOINTS.summary
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
