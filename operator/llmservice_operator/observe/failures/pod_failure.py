"""What one pod shows of a failure: of its containers, of its place, of its node."""

from __future__ import annotations

import re
from dataclasses import replace

from llmservice_runtime.contract import FETCH_CONTAINER, RUNTIME_CONTAINER, SERVER_CONTAINER, Failure, FailureReason

from llmservice_operator.api.reasons import Reason
from llmservice_operator.observe.failures import normalize, scheduling
from llmservice_operator.observe.failures.status_failure import StatusFailure, status_failure
from llmservice_operator.observe.projections.pods import PodFacts, Termination, Waiting
from llmservice_operator.observe.reports import Reports, report_of

_EVIDENCE_LINES = 5
_ENDS = 3
"""So many ends without a word about why are a crash loop."""

IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreStartHookError"})
_DENIED = re.compile(
    r"pull access denied|insufficient_scope|\b40[13] (?:Unauthorized|Forbidden)\b|unauthorized|authorization failed|"
    r"authentication required|no basic auth credentials|\bdenied\b",
    re.IGNORECASE,
)
_OPERATORS_IMAGE = (
    "The container runs the operator's own image: check image of its chart's values, and "
    "services.imagePullSecrets where the registry asks for a login."
)
_MISSING = re.compile(r"not found|manifest unknown|name unknown|no such image|not present with pull policy", re.I)
# A node that goes away for another reason than pressure is no fault of the pod's.
_SHUTDOWN = frozenset({"Terminated", "NodeShutdown", "Shutdown"})


def of_pod(pod: PodFacts, reports: Reports) -> StatusFailure | None:
    """None where nothing is wrong, or nothing yet."""
    if pod.ready:
        return None
    if pod.is_lost:
        return _of_lost_node(pod)
    if pod.was_ready and (hung := _of_hang(pod, reports)) is not None:
        return hung
    if pod.terminated is not None and not _is_past(pod, pod.terminated):
        return replace(_of_termination(pod, pod.terminated), restarts=_restarts(pod))
    if pod.waiting is not None:
        return replace(_of_waiting(pod, pod.waiting), restarts=_restarts(pod))
    if pod.unschedulable and not pod.scheduled:
        return status_failure(scheduling.reason_of(pod.unschedulable), "", evidence=pod.unschedulable)
    return None


def _restarts(pod: PodFacts) -> int:
    return pod.ends if pod.container == FETCH_CONTAINER else pod.restarts


def of_ended_pod(pod: PodFacts) -> StatusFailure | None:
    """Of a pod that its node gave up. What its containers ended with stands in the pod that replaces it too."""
    if pod.phase != "Failed" or not pod.reason or pod.reason in _SHUTDOWN:
        return None
    text = normalize.eviction(pod.message)
    reason = Reason.EVICTED if pod.reason == "Evicted" else Reason.POD_REJECTED
    did = "put pod" if reason is Reason.EVICTED else "refused pod"
    message = f"Node {pod.node} {did} {pod.name}{'' if reason is Reason.POD_REJECTED else ' out'}: {text or pod.reason}"
    evidence = (f"{pod.reason}: {text}",) if text else (pod.reason,)
    return status_failure(reason, message, since=pod.ended_at, pod=pod.name, evidence=evidence)


def _is_past(pod: PodFacts, end: Termination) -> bool:
    """A server that was ready since has got over it; and it ends well only when told to, whatever vLLM's exit code."""
    return pod.container == SERVER_CONTAINER and (pod.was_ready or (end.exit_code == 0 and not end.signal))


def _of_hang(pod: PodFacts, reports: Reports) -> StatusFailure | None:
    """A hang, as soon as the supervisor reports it: it ends the server, and gives more evidence, much later."""
    report = report_of(pod, reports)
    if report is None or report.state is None or not report.state.hung:
        return None
    message = (
        f"Requests wait in pod {pod.name} and its engine does not move, so it is not ready and gets no new ones; "
        "it is restarted if it stays so."
    )
    evidence = (report.state.progress,) if report.state.progress else ()
    # Earlier restarts make it no likelier to stay: repeated ends are failures of their own.
    return status_failure(
        Reason(FailureReason.ENGINE_HUNG), message, since=pod.unready_since, pod=pod.name, evidence=evidence
    )


def _of_lost_node(pod: PodFacts) -> StatusFailure:
    message = f"Node {pod.node} no longer reports to the cluster, so its pod {pod.name} counts as not ready."
    evidence = ("The pod's condition Ready was turned off by the cluster; its kubelet last said ContainersReady=True.",)
    return status_failure(Reason.NODE_LOST, message, since=pod.unready_since, pod=pod.name, evidence=evidence)


def _of_waiting(pod: PodFacts, waiting: Waiting) -> StatusFailure:
    text = f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
    reason = Reason.UNKNOWN
    if waiting.reason in IMAGE:
        reason = _image_reason(waiting)
    elif waiting.reason in _CONFIG:
        reason = Reason.CONTAINER_CONFIG_INVALID
    found = status_failure(reason, f"Container {pod.container}: {text}", pod=pod.name, evidence=(text,))
    is_operators = pod.container in (RUNTIME_CONTAINER, FETCH_CONTAINER) and waiting.reason in IMAGE
    return replace(found, remedy=_OPERATORS_IMAGE) if is_operators else found


def _image_reason(waiting: Waiting) -> Reason:
    """By what the container runtime quotes of the registry's answer."""
    if _DENIED.search(waiting.message):
        return Reason.IMAGE_PULL_DENIED
    if _MISSING.search(waiting.message) or waiting.reason == "ErrImageNeverPull":
        return Reason.IMAGE_NOT_FOUND
    return Reason.IMAGE_PULL_FAILED


def _of_termination(pod: PodFacts, end: Termination) -> StatusFailure:
    reported = Failure.from_json(end.message)
    if reported is not None:
        reason, evidence = Reason(reported.reason), reported.evidence[-_EVIDENCE_LINES:]
        return StatusFailure(
            reason, reported.message, reported.remedy, end.finished_at, pod.name, evidence or (_how(end),)
        )
    how = f"{_how(end)} ({end.reason})" if end.reason else _how(end)
    # One that ended in the middle of a drain says so in JSON, which is no line of a log.
    log = () if end.message.startswith('{"version"') else end.message.splitlines()
    lines = tuple(line for line in log if line.strip())[-_EVIDENCE_LINES:] or (how,)
    if pod.container == FETCH_CONTAINER:
        message = f"Container {FETCH_CONTAINER}, which fetches models and adapters, ended with {how}."
        return status_failure(
            Reason(FailureReason.FETCH_CONTAINER_FAILED), message, since=end.finished_at, pod=pod.name, evidence=lines
        )
    if pod.container != SERVER_CONTAINER:
        message = f"Init container {pod.container} ended with {how}."
        return status_failure(
            Reason.INIT_CONTAINER_FAILED, message, since=end.finished_at, pod=pod.name, evidence=lines
        )
    if end.reason == "OOMKilled":
        reason = Reason(FailureReason.MEMORY_LIMIT_EXCEEDED)
    else:
        reason = Reason.CRASH_LOOP if pod.ends >= _ENDS else Reason.UNKNOWN
    again = " again and again, the first time seen" if reason is Reason.CRASH_LOOP else ""
    message = f"Container {pod.container} ended{again} with {how}."
    return status_failure(reason, message, since=end.finished_at, pod=pod.name, evidence=lines)


def _how(end: Termination) -> str:
    return f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"
