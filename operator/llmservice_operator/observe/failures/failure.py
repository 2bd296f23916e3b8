"""Why a service is not ready: a refusal before any pod, the failure of its pods and workload that explains most, or a
failure of the rollout that no pod shows.

Pods are replaced while nothing else changes. So the text of a failure stays while the same pod shows the same reason,
and a failure that is not about one pod names none. An invalid spec is not a failure: nothing was tried, the condition
Accepted shows it, and it must not cause an alert.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from llmservice_api.reasons import Reason
from llmservice_planner.room import Room
from llmservice_runtime.contract import FailureReason

from llmservice_operator.facts import scheduling
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.observe.failures.pod_events import PodEvents, of_events
from llmservice_operator.observe.failures.pod_failure import (
    NO_POD,
    SERVER_IS_READY,
    StatusFailure,
    is_of_driver,
    of_ended_pod,
    of_pod,
    on_another_gpu,
    since_of,
    status_failure,
    with_driver,
)
from llmservice_operator.observe.observed import Reports
from llmservice_operator.observe.progress import Progress
from llmservice_operator.observe.verdict import Verdict
from llmservice_operator.workload.port import WorkloadFacts

Json = Mapping[str, Any]

_REFUSED = frozenset(
    {Reason.QUOTA_EXCEEDED, Reason.LIMIT_RANGE_EXCEEDED, Reason.ADMISSION_REFUSED, Reason.ADMISSION_UNAVAILABLE}
    | {Reason.API_SERVER_FAILING}
)
_LIMIT_RANGE = re.compile(
    r"\b(?:minimum|maximum) [^ ]+ usage per (?:Container|Pod|PersistentVolumeClaim) is "
    r"|\bmax limit to request ratio per |must be less than or equal to [^ ]+ limit of "
)
"""Messages of the admission plugin LimitRanger. They name no LimitRange; where a default is below a request, the API
server reports only the contradiction."""

_NOBODY_ANSWERS = "failed calling webhook"
"""A webhook that does refuse says `admission webhook ... denied the request`."""


def reason_of(message: str) -> Reason:
    """The reason for a refusal of a child or a pod; `message` is normalized by `normalize.replica_failure`."""
    if message.startswith("quota ") and " is used up: " in message:
        return Reason.QUOTA_EXCEEDED
    if _LIMIT_RANGE.search(message):
        return Reason.LIMIT_RANGE_EXCEEDED
    return Reason.ADMISSION_UNAVAILABLE if _NOBODY_ANSWERS in message else Reason.ADMISSION_REFUSED


def may_be_of_nodes(pods: Sequence[PodFacts], revision: str, stored: Json) -> bool:
    """Whether nodes are part of the cause why this revision's pods do not run: no free GPU, unclear scheduling, or an
    old driver. `stored` is status.failure."""
    there = [pod for pod in pods if pod.revision == revision and not pod.deleting and pod.phase != "Failed"]
    causes = {cause for pod in there for cause in pod.unschedulable}
    if stored.get("reason") in scheduling.REASONS and any(not pod.scheduled for pod in there):
        causes |= set(stored.get("evidence") or ())
    return scheduling.are_of_gpus(causes) or scheduling.may_need_nodes(causes) or _lacks_driver(there, stored)


def _lacks_driver(pods: Sequence[PodFacts], stored: Json) -> bool:
    """Whether a pod fails because of its node's driver and the status has no such failure yet: its text does not change
    later."""
    found = [pod for pod in pods if is_of_driver(pod)]
    is_reported = stored.get("reason") == FailureReason.DRIVER_MISMATCH
    reported = {pod.revision for pod in found if is_reported and pod.name == stored.get("pod")}
    return any(pod.revision not in reported for pod in found)


def refusal_of(verdict: Verdict, previous: Json | None, now: str) -> StatusFailure | None:
    """The failure for refused children; None if none was. `previous` is the stored status.failure."""
    conflicts = [problem for problem in verdict.problems if problem.reason is Reason.NAME_CONFLICT]
    known = previous if is_refusal(previous) else None
    if conflicts:
        message, evidence = (" ".join(p.message for p in conflicts), tuple(p.evidence for p in conflicts))
        since = since_of(Reason.NAME_CONFLICT, known, now)
        return status_failure(Reason.NAME_CONFLICT, message, since=since, evidence=evidence)
    obstacle = verdict.obstacle
    if verdict.problems or verdict.paused or obstacle is None or obstacle.reason not in _REFUSED:
        return None
    since = since_of(obstacle.reason, known, now)
    return StatusFailure(obstacle.reason, obstacle.message, obstacle.remedy, since=since, evidence=obstacle.evidence)


def is_refusal(failure: Json | None) -> bool:
    """Whether a failure is a refusal of a child. A quota refuses pods with the same reason."""
    reason, message = (failure or {}).get("reason"), str((failure or {}).get("message", ""))
    return reason == Reason.NAME_CONFLICT or (reason in _REFUSED and not message.startswith(NO_POD))


_NAMED_PODS = 3


def rollout_failure(
    progress: Progress, previous: Json | None, now: str, *, overdue: str, is_applied: bool
) -> StatusFailure | None:
    """The rollout's failure, where pods have none. `previous`: the stored failure of the desired revision.

    `overdue`: the message of the workload's controller about the deadline, or empty. `is_applied`: all children,
    including the Service, are as desired.
    """
    if progress.is_overdue:
        seen = (*([overdue] if overdue else []), progress.message)
        reason, message = Reason.PROGRESS_DEADLINE_EXCEEDED, _overdue(progress)
        return status_failure(reason, message, since=since_of(reason, previous, now), evidence=seen)
    if is_applied and progress.is_unsettled and progress.unlisted:
        seen = tuple(f"Pod {name}: Ready, in no EndpointSlice of the Service" for name in progress.unlisted)
        reason, message = Reason.NO_ENDPOINTS, _unlisted(progress.unlisted)
        return status_failure(reason, message, since=since_of(reason, previous, now), evidence=seen)
    return None


def _overdue(progress: Progress) -> str:
    """The phase of the rollout, and whether anything serves."""
    serves = "What served before goes on." if progress.answering else "Nothing serves."
    return f"{Reason.PROGRESS_DEADLINE_EXCEEDED.summary} {progress.message} {serves}"


def _unlisted(pods: tuple[str, ...]) -> str:
    named = ", ".join(pods[:_NAMED_PODS]) + (", ..." if len(pods) > _NAMED_PODS else "")
    return f"Ready, but not among the Service's endpoints, so that no request reaches them: {named}."


_IMAGE = frozenset(
    {Reason.IMAGE_NOT_FOUND, Reason.IMAGE_PULL_DENIED, Reason.IMAGE_PULL_FAILED, Reason.IMAGE_ARCHITECTURE_MISMATCH}
    | {Reason.REGISTRY_UNAVAILABLE, Reason.NODE_DISK_FULL}
)
_NOT_STARTED = _IMAGE | {Reason.CONTAINER_CONFIG_INVALID, Reason.CONTAINER_NOT_STARTED, Reason.DRIVER_UNAVAILABLE}
_REPLACED_WITHIN = timedelta(seconds=120)
"""A pod created this soon after an evicted one is its replacement."""
_NEWS_FOR = timedelta(seconds=600)
"""An older eviction does not explain a missing pod."""
_SETTLES_AFTER = timedelta(seconds=60)
"""How long a reason of the scheduler lasts before one of lower rank replaces it."""

# Causes of others first.
_RANK = {
    reason: rank
    for rank, reasons in enumerate(
        (
            (*_NOT_STARTED, Reason.INJECTED_CONTAINER_FAILED, Reason.POD_SANDBOX_FAILED, Reason.PROBE_BLOCKED),
            (Reason.NODE_LOST,),
            (Reason.QUOTA_EXCEEDED, Reason.LIMIT_RANGE_EXCEEDED, Reason.ADMISSION_REFUSED),
            (Reason.ADMISSION_UNAVAILABLE, Reason.API_SERVER_FAILING),
            tuple(scheduling.REASONS),
            (Reason.EVICTED, Reason.POD_REJECTED),
        ),
        start=1,
    )
    for reason in reasons
}


@dataclass(frozen=True, slots=True)
class FailureContext:
    reports: Reports
    events: PodEvents | None = None
    wanted: scheduling.AcceleratorRequest | None = None
    """Accelerators of one pod."""
    room: Room | None = None
    """Free resources; None: not read."""
    pod_spec: Json | None = None
    """Pod spec of the workload."""
    namespace: str = ""
    """The service's: names of pods in other namespaces are left out."""
    containers: frozenset[str] | None = None
    """The operator's containers in the pods; None: unknown."""
    misplaced: Mapping[str, str] = field(default_factory=dict)
    """As `Verdict.misplaced`."""
    where_pods_go: str = ""
    """As `Verdict.where_pods_go`; empty: the reason's own remedy."""


NO_CONTEXT = FailureContext({})


def failure_of(
    workload: WorkloadFacts | None,
    pods: tuple[PodFacts, ...],
    revision: str,
    previous: Json | None,
    now: str,
    context: FailureContext = NO_CONTEXT,
) -> StatusFailure | None:
    """The failure of the desired revision, or None.

    `previous` is the stored failure of this revision; `now` is in RFC 3339.
    """
    own = [pod for pod in pods if pod.revision == revision and not pod.deleting]
    current = [pod for pod in own if pod.phase != "Failed"]
    before = StatusFailure.from_object(previous) if previous else None
    found = [*_of_pods(current, context), *_replaced(own, current, before, now)]
    refused = _of_workload(workload) if workload is not None and workload.revision == revision else None
    if refused is not None:
        found.append(refused)
    if not found:
        still = before if before is not None and _still_holds(before, current, context) else None
        return None if still is None else _lasting(still, now)
    worst = min(found, key=lambda t: (_RANK.get(t.reason, 0), not _same(t, before), t.pod or ""))
    return _lasting(_settled(worst, before, now, context), now)


def _lasting(failure: StatusFailure, now: str) -> StatusFailure:
    began = datetime.fromisoformat(failure.since)
    return replace(failure, lasted=max(0.0, (datetime.fromisoformat(now) - began).total_seconds()))


def _of_pods(current: Sequence[PodFacts], context: FailureContext) -> Iterator[StatusFailure]:
    for pod in current:
        shown = of_pod(pod, context.reports, context.containers)
        if shown is None and not pod.ready:
            shown = of_events(pod, context.events, context.reports)
        if shown is not None:
            verdict = context.misplaced.get(pod.name)
            yield with_driver(shown, pod, context.room) if verdict is None else on_another_gpu(shown, verdict)


def _replaced(
    own: Sequence[PodFacts], current: Sequence[PodFacts], before: StatusFailure | None, now: str
) -> Iterator[StatusFailure]:
    """The last evicted pod, until its replacement is ready. Old evictions are ignored, also while a service that was at
    zero has no pod yet."""
    ended = max((pod for pod in own if of_ended_pod(pod)), key=lambda pod: (pod.ended_at, pod.name), default=None)
    if ended is None:
        return
    starting = [pod for pod in current if not pod.ready]
    eviction = of_ended_pod(ended)
    is_reported = before is not None and before.pod == ended.name
    is_awaited = not current and (is_reported or _is_close(now, ended.ended_at or now, _NEWS_FOR))
    if eviction is not None and (is_awaited or any(_replaces(pod, ended) for pod in starting)):
        yield eviction


def _replaces(pod: PodFacts, ended: PodFacts) -> bool:
    return not (pod.started or pod.restarts) and _is_close(pod.created_at, ended.ended_at, _REPLACED_WITHIN)


def _is_close(one: str, other: str, span: timedelta) -> bool:
    if not (one and other):
        return False
    return abs(datetime.fromisoformat(one) - datetime.fromisoformat(other)) <= span


def _of_workload(workload: WorkloadFacts) -> StatusFailure | None:
    failure = workload.replica_failure
    if failure is None:
        return None
    return status_failure(reason_of(failure), f"{NO_POD}: {failure}.", evidence=(failure,))


def _still_holds(before: StatusFailure, current: Sequence[PodFacts], context: FailureContext) -> bool:
    """Whether a stored failure is still valid: between two reports of the scheduler or the kubelet a pod shows
    nothing."""
    same = [pod for pod in current if pod.name == before.pod]
    if before.pod is None and before.reason in scheduling.REASONS:
        return not any(pod.scheduled for pod in current)
    if before.reason in _NOT_STARTED:
        return any(not pod.running and not pod.is_initializing for pod in same)
    # Events decide if they were read.
    unseen = [pod for pod in same if context.events is None or pod.name not in context.events.by_pod]
    if before.reason in (Reason.VOLUME_UNAVAILABLE, Reason.POD_SANDBOX_FAILED):
        return any(pod.is_setting_up for pod in unseen)
    return before.reason is Reason.PROBE_BLOCKED and any(pod.running and not pod.ready for pod in unseen)


def _same(one: StatusFailure, other: StatusFailure | None) -> bool:
    if other is None or one.pod != other.pod:
        return False
    # The supervisor's report at the end of a hang replaces the one before it.
    if one.reason is Reason(FailureReason.ENGINE_HUNG) and one.message != other.message:
        return False
    # The message has to show whether the server itself is ready.
    if one.reason is Reason.INJECTED_CONTAINER_FAILED and (SERVER_IS_READY in one.message) != (
        SERVER_IS_READY in other.message
    ):
        return False
    # The container runtime does not repeat the registry's response each time.
    vague = one.reason is Reason.IMAGE_PULL_FAILED and other.reason in _IMAGE
    return one.reason is other.reason or vague or _are_unplaced(one, other)


def _are_unplaced(one: StatusFailure, other: StatusFailure) -> bool:
    """A volume that cannot be mounted is about a pod; one that the scheduler lacks is not."""
    return one.pod is None and one.reason in scheduling.REASONS and other.reason in scheduling.REASONS


def _settled(found: StatusFailure, before: StatusFailure | None, now: str, context: FailureContext) -> StatusFailure:
    """The stored text, if it is the same failure."""
    if found.pod is None and found.reason in scheduling.REASONS:
        return _unplaced(found, before if before is not None and _are_unplaced(found, before) else None, now, context)
    if before is not None and _same(found, before):
        return replace(before, restarts=found.restarts)
    since = (before.since if before is not None and before.reason is found.reason else found.since) or now
    return replace(found, since=since)


def _unplaced(found: StatusFailure, before: StatusFailure | None, now: str, context: FailureContext) -> StatusFailure:
    """Causes of the scheduler are accumulated, since they alternate; a reason of lower rank takes over only after a
    while."""
    causes, since = set(found.evidence), now
    if before is not None and not _is_over(causes, before, now):
        # A removed gate does not return.
        causes |= {cause for cause in before.evidence if not scheduling.are_gates([cause])}
    evidence = tuple(sorted(causes))
    reason = scheduling.reason_of(evidence, scheduling.is_taint(context.room, context.pod_spec))
    if before is not None and before.reason is reason:
        since = before.since
    message = scheduling.message_of(evidence, reason, context.wanted, context.room, context.namespace)
    own_remedy = scheduling.remedy_of(reason, context.wanted, context.room, context.pod_spec)
    remedy = (reason is Reason.NO_MATCHING_NODE and context.where_pods_go) or own_remedy
    return replace(found, reason=reason, message=message, remedy=remedy, evidence=evidence, since=since)


def _is_over(causes: set[str], before: StatusFailure, now: str) -> bool:
    """Whether the earlier reason is no longer among the causes, and older than _SETTLES_AFTER."""
    if scheduling.reason_of(causes) is scheduling.reason_of(before.evidence) or not before.since:
        return False
    stood = datetime.fromisoformat(now) - datetime.fromisoformat(before.since)
    return stood >= _SETTLES_AFTER
