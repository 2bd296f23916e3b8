"""What stands between a service and being ready, from its pods and its Deployment: one failure, the most telling one.

Pods come and go while nothing changes. A failure therefore stays what it was, word for word, for as long as the same
pod shows the same reason, and what is not about one pod names none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmservice_runtime.contract import Failure

from llmservice_operator.api.reasons import REASONS, Reason
from llmservice_operator.observe.facts import DeploymentFacts
from llmservice_operator.observe.pods import PodFacts, Termination

Json = Mapping[str, Any]

_EVIDENCE_LINES = 5
_LINE_LIMIT = 1024
_TEXT_LIMIT = 2048
"""Longer texts would be refused by the CRD, and the whole status with them."""
_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreStartHookError"})
# Before these something can still change by itself: a restart, a node that comes, a network that heals.
_MAY_PASS = frozenset(
    {
        Reason.UNSCHEDULABLE,
        Reason.ENGINE_DIED,
        Reason.ENGINE_HUNG,
        Reason.MODEL_DOWNLOAD_FAILED,
        Reason.GPU_MEMORY_BUSY,
        Reason.START_TIMEOUT,
        Reason.SMOKE_REQUEST_FAILED,
        Reason.UNKNOWN,
    }
)
_PATIENCE = 3
"""Restarts after which what may pass is not expected to."""

_RANK = {
    reason: rank
    for rank, reasons in enumerate(
        (
            (Reason.CONTAINER_CONFIG_INVALID, Reason.IMAGE_PULL_FAILED),
            (Reason.QUOTA_EXCEEDED, Reason.ADMISSION_REFUSED),
            (Reason.UNSCHEDULABLE,),
        ),
        start=1,
    )
    for reason in reasons
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """A failure as the status tells it."""

    reason: Reason
    message: str
    remedy: str
    since: str = ""
    pod: str | None = None
    evidence: tuple[str, ...] = ()
    restarts: int = 0

    @property
    def is_final(self) -> bool:
        """Without somebody's help it will not go away."""
        return self.reason not in _MAY_PASS or (self.restarts >= _PATIENCE and self.reason is not Reason.UNSCHEDULABLE)

    def sentence(self) -> str:
        """What happened and what to do about it, in one line."""
        end = "" if self.message.rstrip().endswith((".", "!", "?")) else "."
        return f"{self.message.rstrip()}{end} {self.remedy}".strip()

    def to_object(self) -> dict[str, Any]:
        message, remedy = self.message[:_TEXT_LIMIT], self.remedy[:_TEXT_LIMIT]
        told: dict[str, Any] = {"reason": str(self.reason), "message": message, "remedy": remedy}
        if self.pod is not None:
            told["pod"] = self.pod
        told["since"] = self.since
        if self.evidence:
            told["evidence"] = [line[:_LINE_LIMIT] for line in self.evidence]
        return told


def trouble_of(
    deployment: DeploymentFacts | None,
    pods: tuple[PodFacts, ...],
    revision: str,
    previous: Json | None,
    now: str,
) -> Trouble | None:
    """The failure to tell about the wanted revision. `previous` is the one told so far for it."""
    current = [pod for pod in pods if pod.revision == revision and not pod.deleting and pod.phase != "Failed"]
    before = _from_object(previous) if previous else None
    found = [trouble for pod in current if (trouble := _of_pod(pod)) is not None]
    refused = _of_deployment(deployment) if deployment is not None and deployment.revision == revision else None
    if refused is not None:
        found.append(refused)
    if not found:
        return before if before is not None and _still_holds(before, current) else None
    worst = min(found, key=lambda t: (_RANK.get(t.reason, 0), not _same(t, before), t.pod or ""))
    return _settled(worst, before, now)


def _of_pod(pod: PodFacts) -> Trouble | None:
    if pod.ready:
        return None
    if pod.terminated is not None:
        return replace(_of_termination(pod, pod.terminated), restarts=pod.restarts)
    if pod.waiting is not None:
        reason = Reason.UNKNOWN
        if pod.waiting.reason in _IMAGE:
            reason = Reason.IMAGE_PULL_FAILED
        elif pod.waiting.reason in _CONFIG:
            reason = Reason.CONTAINER_CONFIG_INVALID
        text = f"{pod.waiting.reason}: {pod.waiting.message}" if pod.waiting.message else pod.waiting.reason
        return Trouble(reason, text, REASONS[reason].remedy, pod=pod.name, restarts=pod.restarts)
    if pod.unschedulable and not pod.scheduled:
        return Trouble(Reason.UNSCHEDULABLE, "", REASONS[Reason.UNSCHEDULABLE].remedy, evidence=pod.unschedulable)
    return None


def _of_termination(pod: PodFacts, end: Termination) -> Trouble:
    told = Failure.from_json(end.message)
    if told is not None:
        reason = Reason(told.reason.value)
        return Trouble(reason, told.message, told.remedy, end.finished_at, pod.name, told.evidence[-_EVIDENCE_LINES:])
    reason = Reason.MEMORY_LIMIT_EXCEEDED if end.reason == "OOMKilled" else Reason.UNKNOWN
    how = f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"
    lines = tuple(line for line in end.message.splitlines() if line.strip())[-_EVIDENCE_LINES:]
    message = f"Container {pod.container} ended with {how}" + (f" ({end.reason})." if end.reason else ".")
    return Trouble(reason, message, REASONS[reason].remedy, end.finished_at, pod.name, lines)


def _of_deployment(deployment: DeploymentFacts) -> Trouble | None:
    if deployment.replica_failure is None:
        return None
    reason = Reason.QUOTA_EXCEEDED if deployment.replica_failure.startswith("quota ") else Reason.ADMISSION_REFUSED
    return Trouble(reason, f"No pod can be made: {deployment.replica_failure}.", REASONS[reason].remedy)


def _still_holds(before: Trouble, current: list[PodFacts]) -> bool:
    """Between two looks of the scheduler or the kubelet a pod has nothing to say; that is no news."""
    if before.reason is Reason.UNSCHEDULABLE:
        return not any(pod.scheduled for pod in current)
    if before.reason in (Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_CONFIG_INVALID):
        return any(pod.name == before.pod and not pod.running for pod in current)
    return False


def _same(one: Trouble, other: Trouble | None) -> bool:
    return other is not None and (one.reason, one.pod) == (other.reason, other.pod)


def _settled(found: Trouble, before: Trouble | None, now: str) -> Trouble:
    """The words that were used before, where it is the same failure; causes of the scheduler add up."""
    if before is None or not _same(found, before):
        since = (before.since if before is not None and before.reason is found.reason else found.since) or now
        before_causes: tuple[str, ...] = ()
    else:
        if found.reason is not Reason.UNSCHEDULABLE:
            return replace(before, restarts=found.restarts)
        since, before_causes = before.since, before.evidence
    found = replace(found, since=since)
    if found.reason is not Reason.UNSCHEDULABLE:
        return found
    causes = tuple(sorted({*before_causes, *found.evidence}))
    message = "No node has room for a pod of this service: " + "; ".join(causes) + "."
    return replace(found, evidence=causes, message=message)


def _from_object(told: Json) -> Trouble | None:
    try:
        reason = Reason(str(told.get("reason", "")))
    except ValueError:
        return None
    return Trouble(
        reason=reason,
        message=str(told.get("message", "")),
        remedy=str(told.get("remedy", "")),
        since=str(told.get("since", "")),
        pod=told.get("pod"),
        evidence=tuple(told.get("evidence") or ()),
    )
