"""Progress of the desired revision, from the workload, its pods and the endpoints of the Service.

status.rollout records what runs, what ran before, what failed and what waits; rollbacks depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any

from kubeloop.resources import rfc3339
from llmservice_api.reasons import Reason
from llmservice_api.status import MOST_GATED
from llmservice_runtime.contract import Phase, State

from llmservice_operator.facts import scheduling
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.observe.failures.pod_failure import StatusFailure
from llmservice_operator.workload.port import Replica, WorkloadFacts

Json = Mapping[str, Any]
Gates = Mapping[str, str]
"""By uid of pods that were seen with a scheduling gate: when their gates were gone, empty while they have one."""

SETTLE_SECONDS = 3.0
"""Seconds in which pods, endpoints and the workload's counters have to agree before the status reports a difference.

Three watches bring the same change a fraction of a second apart; a status for each would show states that never
existed.
"""

_PHASES: Mapping[Phase | None, str] = {
    Phase.PREFLIGHT: "The accelerator and the flags are being checked.",
    Phase.FETCHING: "The model is being fetched; status.progress says how far it is.",
    Phase.LOADING: "vLLM is loading the model.",
    Phase.SMOKE: "vLLM is answering its first request.",
}
_LONG_WAIT = 60.0
"""Seconds of waiting for a node after which a pod's deadline counts from its scheduling."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Numbers at one time."""

    wanted: int
    replicas: int
    updated: int
    answering: int
    """Ready pods of any revision that get requests."""
    unlisted: tuple[str, ...]
    """Names of ready pods that get no requests."""
    is_rolled_out: bool
    """Every replica, and no other pod, is of the desired revision and gets requests."""
    is_unsettled: bool
    """Rolled out by its pods, but not by the endpoints or the workload's counters."""
    is_overdue: bool
    reason: Reason
    message: str
    overdue_in: float | None = None
    """Seconds until it is overdue, where the workload's own deadline passed while a pod waited for a node."""
    gates: Gates = field(default_factory=dict)
    """Of the revision's pods that are not ready."""


def progress(
    workload: WorkloadFacts | None,
    replicas: Sequence[Replica],
    listed: frozenset[str] | None,
    revision: str,
    wanted: int,
    starting: State | None = None,
    *,
    before: Gates,
    now: datetime,
) -> Progress:
    """The progress on which pods, endpoints and workload agree: one of their watches may lag behind.

    Replicas that are being deleted do not count: they get no requests. `listed` are the uids of pods that get requests;
    None: unknown, and each ready pod counts. `starting` is the state of a starting pod, if its supervisor answered.
    `before`: gates of the revision's pods at the last evaluation.
    """
    there = [each for each in replicas if not (each.is_terminating or each.has_ended)]
    present = [pod for each in there for pod in each.pods]
    ready = [each.answering for each in there if each.ready]
    unlisted = tuple(pod.name for pods in ready for pod in pods if listed is not None and pod.uid not in listed)
    answering = sum(any(pod.name not in unlisted for pod in pods) for pods in ready)
    if workload is None:
        reason, message = Reason.PROGRESSING, "Pods of this revision are being made."
        return Progress(wanted, 0, 0, answering, unlisted, False, False, False, reason, message)
    is_looked_at = workload.observed_generation >= workload.generation
    is_current = workload.revision == revision and is_looked_at
    new = [pod for pod in present if pod.revision == revision and not pod.ready]
    is_done_by_pods = (
        workload.revision == revision
        and workload.spec_replicas == wanted == len(there)
        and all(each.ready and each.revision == revision for each in there)
    )
    found = gates(new, before, now)
    if not new and not is_done_by_pods:  # a pod that was removed, as by Kueue, is about to be recreated
        found = {uid: until or rfc3339(now) for uid, until in before.items()}
    late = [pod for pod in new if not pod.was_ready]
    lacks = lacks_pods(workload, there, revision)
    may_be_late = workload.deadline_exceeded if workload.keeps_deadline else (bool(late) and is_current) or lacks
    left = _first_deadline(workload, new if workload.keeps_deadline else late, found, now) if may_be_late else None
    is_waiting = left is not None and left > 0
    counts = (workload.updated, workload.ready, workload.available, workload.replicas)
    is_rolled_out = is_done_by_pods and is_looked_at and not unlisted and all(count == wanted for count in counts)
    reason, message = _stage(workload, present, revision, is_current, is_done_by_pods, starting)
    return Progress(
        wanted=wanted,
        replicas=_without_flicker(workload, workload.replicas),
        updated=_without_flicker(workload, workload.updated) if workload.revision == revision else 0,
        answering=answering,
        unlisted=unlisted,
        is_rolled_out=is_rolled_out,
        is_unsettled=is_done_by_pods and not is_rolled_out,
        is_overdue=(is_current or lacks) and may_be_late and not is_waiting,
        reason=reason,
        message=message,
        overdue_in=left if is_waiting and left != inf else None,
        gates=found,
    )


def lacks_pods(workload: WorkloadFacts, there: Sequence[Replica], revision: str) -> bool:
    """Whether pods of this revision are missing that nobody else reports: the controller keeps no deadline."""
    if workload.keeps_deadline or workload.revision != revision:
        return False
    complete = sum(each.revision == revision and len(each.pods) >= workload.nodes for each in there)
    return complete < workload.spec_replicas


def gates_of(rollout: Json) -> Gates:
    """From `status.rollout`."""
    parts = (str(each).partition(" ") for each in rollout.get("gatedPods") or ())
    return {uid: until for uid, _, until in parts}


def gates(pods: Iterable[PodFacts], before: Gates, now: datetime) -> Gates:
    """Gates of these pods, known ones first; `before`: those of the last evaluation. No object records when a gate was
    removed."""
    found: dict[str, str] = {}
    for pod in pods:
        if not pod.scheduled and scheduling.are_gates(pod.unschedulable):
            found[pod.uid] = ""
        elif pod.uid in before:
            found[pod.uid] = before[pod.uid] or rfc3339(now)
    return {uid: found[uid] for uid in sorted(found, key=lambda uid: (uid not in before, uid))}


def _first_deadline(workload: WorkloadFacts, new: list[PodFacts], found: Gates, now: datetime) -> float | None:
    """Seconds until the first pod is overdue; None: no pod waited long for a node, and the workload's deadline counts.

    A pod's deadline counts from its scheduling if it waited long for that, or from the removal of its gate.
    """
    if workload.keeps_deadline and not found and not any(_waited(pod) for pod in new):
        return None
    starts = [
        pod.scheduled_at if _waited(pod) else found.get(pod.uid) or pod.created_at
        for pod in new
        if found.get(pod.uid) != ""
    ]
    if not new:
        starts = list(found.values()) if workload.keeps_deadline else [workload.changed_at]
    stamp = rfc3339(now, "microseconds")
    return min((workload.deadline_seconds - _seconds(start, stamp, unknown=inf) for start in starts), default=inf)


def _waited(pod: PodFacts) -> bool:
    return pod.scheduled and _seconds(pod.created_at, pod.scheduled_at) >= _LONG_WAIT


def _seconds(start: str, end: str, unknown: float = 0.0) -> float:
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except (TypeError, ValueError):
        return unknown


def _without_flicker(workload: WorkloadFacts, count: int) -> int:
    """Counts a pod that is being replaced: the workload has one less for a moment."""
    is_settled = workload.replicas == workload.updated and workload.replica_failure is None
    return max(count, workload.spec_replicas) if is_settled else count


def _stage(
    workload: WorkloadFacts,
    present: list[PodFacts],
    revision: str,
    is_current: bool,
    is_done_by_pods: bool,
    starting: State | None,
) -> tuple[Reason, str]:
    """The phase of the least advanced replica of the desired revision."""
    new = [pod for pod in present if pod.revision == revision and not pod.ready]
    if is_done_by_pods:
        return Reason.PROGRESSING, f"All pods are ready; the {workload.kind} has not counted them yet."
    # A pod that the scheduler has not seen yet will be scheduled or unschedulable: not a phase of its own.
    if (
        not is_current
        or any(not pod.scheduled for pod in new)
        or (not new and workload.updated < workload.spec_replicas)
    ):
        return Reason.PROGRESSING, "Pods of this revision are being made."
    if any(not pod.running for pod in new):
        waits_for = min((pod.waits_for for pod in new if pod.waits_for), default="")
        doing = (
            f"the server waits for container {waits_for}" if waits_for else "images are pulled and containers set up"
        )
        return Reason.PROGRESSING, f"Pods are on a node; {doing}."
    if new and all(pod.server_ready for pod in new):
        unready = min((name for pod in new for name in pod.unready), default="")
        what = f"container {unready} of its pod is not" if unready else "a readiness gate of its pod is not met"
        return Reason.PROGRESSING, f"The server is ready; {what}."
    if new:
        return _start(starting)
    return Reason.PROGRESSING, "Pods that are no longer wanted are going away."


def _start(starting: State | None) -> tuple[Reason, str]:
    """A slow start is not a failure: the supervisor ends a start without progress."""
    doing = _PHASES.get(starting.phase if starting is not None else None, "The model is being fetched or loaded.")
    if starting is None or not starting.slow:
        return Reason.STARTING, doing
    usual = starting.usual_start_seconds
    usually = f" It usually takes about {_rounded(usual)} s." if usual else ""
    return Reason.STARTING_SLOWLY, f"{doing} The start takes longer than planned, but it goes on.{usually}"


def _rounded(seconds: float) -> int:
    """Two digits: it is an estimate, and the message must not change with each measured start."""
    return int(float(f"{seconds:.2g}"))


_OF_OTHERS = frozenset(
    {Reason.QUOTA_EXCEEDED, Reason.IMAGE_PULL_FAILED, Reason.REGISTRY_UNAVAILABLE, Reason.NODE_DISK_FULL}
    | {Reason.POD_SANDBOX_FAILED, Reason.DRIVER_UNAVAILABLE, Reason.INJECTED_CONTAINER_FAILED}
)
"""A quota may be short until an old pod is gone, a registry may answer later, another node may have room and a driver,
and containers that others inject are in pods of every revision."""

_LIMIT = 4096
"""The CRD's limit."""


@dataclass(frozen=True, slots=True)
class RolloutDecision:
    strategy: str = ""
    reason: str = ""
    """Why this strategy, while relevant."""
    gap: str = ""
    """What happens to requests while no replica answers; empty: the stored text stays."""
    kept: str = ""
    """Protection of the current spec that a rollback kept, while it runs."""
    pinned: bool = False
    """spec.rollout.pinnedRevision names the revision, or the one from which it was created."""
    failed: str | None = None
    """The revision that an automatic rollback left; the status is then about its replacement."""
    spec: str | None = None
    """Hash of the spec, to recognize it after a failure; None: no rollback is configured."""
    update_pending: bool = False
    update_waiting: str = ""
    """Why a requested update has not started."""
    update_blocked: str = ""
    """Why this release would not create the running revision."""


def rollout_of(
    rolling: RolloutDecision,
    revision: str,
    moment: Progress,
    failure: StatusFailure | None,
    *,
    is_pending: bool,
    previous: Json,
) -> dict[str, Any]:
    """The value of status.rollout. `is_pending`: a child is not as desired, so nothing counts as rolled out."""
    status: dict[str, Any] = {"strategy": rolling.strategy, "revision": revision}
    is_rolled_out = moment.is_rolled_out and not is_pending and moment.wanted > 0
    stable = revision if is_rolled_out else previous.get("stableRevision")
    is_new = stable != revision
    is_failing = is_new and not moment.is_rolled_out and (moment.is_overdue or _is_its_own(failure))
    # A revision that ran before is not new, but its return may interrupt service.
    reason = rolling.reason if is_new or rolling.failed or not moment.is_rolled_out else ""
    if rolling.kept and rolling.kept not in reason:  # a rollback's own reason is read from here again
        reason = f"{reason} {rolling.kept}".strip()
    if reason:
        status["reason"] = reason[:_LIMIT]
    said = previous.get("gap") if previous.get("revision") == revision and not moment.answering else None
    if gap := rolling.gap or said:
        status["gap"] = gap
    if stable:
        status["stableRevision"] = stable
    if rolling.pinned:
        status["pinned"] = True
    if rolling.failed or is_failing:
        status["failedRevision"] = rolling.failed or revision
        if rolling.spec is not None and stable:
            status["failedSpec"] = rolling.spec
    if rolling.update_pending:
        status["updatePending"] = True
    if rolling.update_waiting:
        status["updateWaiting"] = rolling.update_waiting
    if moment.gates:
        kept = [*moment.gates.items()][:MOST_GATED]
        status["gatedPods"] = sorted(f"{uid} {until}".strip() for uid, until in kept)
    if rolling.update_blocked:
        status["updateBlocked"] = rolling.update_blocked[:_LIMIT]
    return status


def _is_its_own(failure: StatusFailure | None) -> bool:
    """Whether the revision itself failed: causes outside it have until the deadline."""
    return failure is not None and failure.is_final and failure.reason not in _OF_OTHERS


def stored_rollout(previous: Json) -> RolloutDecision:
    """From the stored status.rollout: an edit that is held or refused changes no rollout."""
    return RolloutDecision(
        strategy=str(previous.get("strategy") or ""),
        reason=str(previous.get("reason") or ""),
        pinned=bool(previous.get("pinned")),
        failed=previous.get("failedRevision") if "failedSpec" in previous else None,
        spec=previous.get("failedSpec"),
        update_pending=bool(previous.get("updatePending")),
    )
