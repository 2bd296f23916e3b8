"""How far the wanted revision has come, from the Deployment and its pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmservice_runtime.contract import Phase

from llmservice_operator.api.reasons import Reason
from llmservice_operator.observe.facts import DeploymentFacts
from llmservice_operator.observe.pods import PodFacts

_PHASES: Mapping[Phase | None, str] = {
    Phase.PREFLIGHT: "The accelerator and the flags are being checked.",
    Phase.FETCHING: "The model is being fetched; status.progress says how far it is.",
    Phase.LOADING: "vLLM is loading the model.",
    Phase.SMOKE: "vLLM is answering its first request.",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """Numbers of one moment."""

    wanted: int
    replicas: int
    updated: int
    ready: int
    available: int
    is_rolled_out: bool
    """Every replica, and no other pod, is of the wanted revision and answers."""
    is_overdue: bool
    reason: Reason
    message: str


def progress(
    deployment: DeploymentFacts | None,
    pods: tuple[PodFacts, ...],
    revision: str,
    wanted: int,
    phase: Phase | None = None,
) -> Progress:
    """Pods that are going away do not count: they are out of the Service already.

    `phase` is what the supervisor of a starting pod says, where it was heard.
    """
    if deployment is None:
        reason, message = Reason.PROGRESSING, "Pods of this revision are being made."
        return Progress(wanted, 0, 0, 0, 0, False, False, reason, message)
    is_current = deployment.revision == revision and deployment.observed_generation >= deployment.generation
    old = [pod for pod in pods if not pod.deleting and pod.phase != "Failed" and pod.revision != revision]
    counts = (deployment.updated, deployment.ready, deployment.available, deployment.replicas)
    is_rolled_out = (
        is_current and not old and deployment.spec_replicas == wanted and all(count == wanted for count in counts)
    )
    reason, message = _stage(deployment, pods, revision, is_current, phase)
    return Progress(
        wanted=wanted,
        replicas=_without_flicker(deployment, deployment.replicas),
        updated=_without_flicker(deployment, deployment.updated) if deployment.revision == revision else 0,
        ready=deployment.ready,
        available=deployment.available,
        is_rolled_out=is_rolled_out,
        is_overdue=is_current and deployment.deadline_exceeded,
        reason=reason,
        message=message,
    )


def _without_flicker(deployment: DeploymentFacts, count: int) -> int:
    """A pod that is being replaced counts on: for a moment its Deployment has one less, which is no news."""
    is_settled = deployment.replicas == deployment.updated and deployment.replica_failure is None
    return max(count, deployment.spec_replicas) if is_settled else count


def _stage(
    deployment: DeploymentFacts, pods: tuple[PodFacts, ...], revision: str, is_current: bool, phase: Phase | None
) -> tuple[Reason, str]:
    """The step that the least advanced replica of the wanted revision is at."""
    new = [pod for pod in pods if pod.revision == revision and not pod.deleting and not pod.ready]
    # A pod that the scheduler has not looked at yet is about to be placed, or unschedulable: no step of its own.
    if (
        not is_current
        or any(not pod.scheduled for pod in new)
        or (not new and deployment.updated < deployment.spec_replicas)
    ):
        return Reason.PROGRESSING, "Pods of this revision are being made."
    if any(not pod.running for pod in new):
        return Reason.PROGRESSING, "Pods are on a node; images are pulled and containers set up."
    if new:
        return Reason.STARTING, _PHASES.get(phase, "The model is being fetched or loaded.")
    return Reason.PROGRESSING, "Pods that are no longer wanted are going away."
