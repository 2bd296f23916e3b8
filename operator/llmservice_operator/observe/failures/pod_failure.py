"""The failure of one pod: of its containers, its placement or its node; and the reason for messages of a kubelet, a
container runtime or a registry.

Of several matching patterns the first one counts: specific ones come first. `StatusFailure` is the value that is
written to and read from status.failure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from llmservice_api.reasons import Reason
from llmservice_planner.room import Room
from llmservice_runtime.contract import (
    FETCH_CONTAINER,
    GPU,
    RUNTIME_CONTAINER,
    SERVER_CONTAINER,
    Failure,
    FailureReason,
)
from llmservice_runtime.failures.reasons import Ends

from llmservice_operator.facts import normalize, scheduling
from llmservice_operator.facts.pods import PodFacts, Termination, Waiting
from llmservice_operator.observe.observed import Reports, cause_of, report_of

Json = Mapping[str, Any]

LINE_LIMIT = 1024
_TEXT_LIMIT = 2048
_LINES_LIMIT = 32
"""Limits of the CRD, which would otherwise refuse the whole status."""
ENDS_BY_TIME = frozenset(str(reason) for reason in Reason if reason.row.ends is Ends.BY_TIME)
NO_POD = "No pod can be made"
"""Start of the message of a workload's failure, which has the same reasons as the refusal of a child."""
_PATIENCE = 3
"""Restarts after which a failure that might pass counts as final."""
LASTS_AFTER = 600.0
"""Seconds after which it counts as final where nothing restarts."""


@dataclass(frozen=True, slots=True)
class StatusFailure:
    reason: Reason
    message: str
    remedy: str
    since: str = ""
    pod: str | None = None
    evidence: tuple[str, ...] = ()
    restarts: int = 0
    lasted: float = field(default=0.0, compare=False)
    """Seconds since it began."""

    @property
    def is_final(self) -> bool:
        """Whether it lasts until somebody changes something."""
        ends = self.reason.row.ends
        if ends is Ends.BY_TIME and self.lasted >= LASTS_AFTER:
            return True
        return ends is Ends.BY_CHANGE or (ends in (Ends.BY_RESTART, Ends.BY_TIME) and self.restarts >= _PATIENCE)

    def sentence(self) -> str:
        """What happened and what to do, in one line."""
        end = "" if self.message.rstrip().endswith((".", "!", "?")) else "."
        return f"{self.message.rstrip()}{end} {self.remedy}".strip()

    def to_object(self) -> dict[str, Any]:
        message, remedy = self.message[:_TEXT_LIMIT], self.remedy[:_TEXT_LIMIT]
        obj: dict[str, Any] = {"reason": str(self.reason), "message": message, "remedy": remedy}
        if self.pod is not None:
            obj["pod"] = self.pod
        obj["since"] = self.since
        if self.evidence:
            obj["evidence"] = [line[:LINE_LIMIT] for line in self.evidence[:_LINES_LIMIT]]
        return obj

    @classmethod
    def from_object(cls, obj: Json) -> StatusFailure | None:
        """From status.failure; None where the reason is another version's, or the time is invalid."""
        try:
            reason = Reason(str(obj.get("reason", "")))
            datetime.fromisoformat(str(obj.get("since", "")))
        except ValueError:
            return None
        return cls(
            reason=reason,
            message=str(obj.get("message", "")),
            remedy=str(obj.get("remedy", "")),
            since=str(obj.get("since", "")),
            pod=obj.get("pod"),
            evidence=tuple(obj.get("evidence") or ()),
        )


def since_of(reason: Reason, previous: Json | None, now: str) -> str:
    """The start of `previous` if it has the same reason, else `now`."""
    is_same = previous is not None and previous.get("reason") == reason
    return str(previous.get("since") or now) if is_same and previous is not None else now


def status_failure(reason: Reason, message: str, **more: Any) -> StatusFailure:
    """A failure with the reason's own remedy."""
    return StatusFailure(reason, message, reason.remedy, **more)


IMAGE_WORDS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
"""Reasons of waiting containers whose image is missing."""
START_WORDS = frozenset(
    {"CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError"}
    | {"StartError", "ContainerCannotRun"}
)
"""Reasons of containers that never ran and have no log."""
CONFIG_WORD = "CreateContainerConfigError"

_LONGEST = 700
"""Characters of a sentence, from its end, where the cause is."""
_CONTAINER_ID = re.compile(r"(?<!sha256:)\b[0-9a-f]{64}\b")


class Cause(NamedTuple):
    """The meaning of a message."""

    reason: Reason
    remedy: str = ""
    """If the reason's own remedy is too general."""


class _Pattern(NamedTuple):
    words: re.Pattern[str]
    cause: Cause


def _of(words: str, reason: Reason, remedy: str = "") -> _Pattern:
    return _Pattern(re.compile(words, re.IGNORECASE), Cause(reason, remedy))


_DISK = _of(r"no space left on device|disk quota exceeded", Reason.NODE_DISK_FULL)
_PULL: tuple[_Pattern, ...] = (
    _DISK,
    _of(
        r"no match for platform in manifest|no image found in image index for architecture|no matching manifest for ",
        Reason.IMAGE_ARCHITECTURE_MISMATCH,
    ),
    _of(
        r"pull access denied|insufficient_scope|\b40[13] (?:Unauthorized|Forbidden)\b|unauthorized"
        r"|authorization failed|authentication required|no basic auth credentials|\bdenied\b",
        Reason.IMAGE_PULL_DENIED,
    ),
    _of(
        r"no such host",
        Reason.IMAGE_PULL_FAILED,
        "Check the host in the image's name; the node's name server does not know it.",
    ),
    _of(
        r"\bx509: ",
        Reason.IMAGE_PULL_FAILED,
        "Have the node's container runtime trust the CA that signed the registry's certificate, and check that the "
        "certificate is of this host and has not expired.",
    ),
    _of(
        r"\b429 Too Many Requests|toomanyrequests|registry is unavailable"
        r"|\b500 Internal Server Error|\b502 Bad Gateway|\b503 Service Unavailable|\b504 Gateway Time-?out"
        r"|connection refused|connection reset|i/o timeout|no route to host|network is unreachable"
        r"|server misbehaving|TLS handshake timeout|\btls: |Client\.Timeout|deadline exceeded"
        r"|context canceled|(?-i:\bEOF)\s*$",
        Reason.REGISTRY_UNAVAILABLE,
    ),
    _of(r"not found|manifest unknown|name unknown|no such image|not present with pull policy", Reason.IMAGE_NOT_FOUND),
)
_WAIT = "Wait, where the node has just started or its driver is being updated. Else: "
_START: tuple[_Pattern, ...] = (
    _of(r"unsatisfied condition: ", Reason(FailureReason.DRIVER_MISMATCH)),
    _of(
        r"unresolvable CDI devices",
        Reason.DRIVER_UNAVAILABLE,
        f"{_WAIT}the node has no CDI specification of that device, or one of an earlier driver: have it made anew "
        "there (`nvidia-ctk cdi generate`, or a restart of the GPU operator's toolkit and device plugin).",
    ),
    _of(
        r"driver/library version mismatch",
        Reason.DRIVER_UNAVAILABLE,
        f"{_WAIT}reboot the node, or reload the driver's kernel module: its driver was updated, and the module of the "
        "one before is still loaded.",
    ),
    _of(
        r"driver not loaded|load library failed",
        Reason.DRIVER_UNAVAILABLE,
        f"{_WAIT}install the GPU's driver on the node, or load its kernel module; `nvidia-smi` there shows whether it "
        "works.",
    ),
    _of(r"nvidia-container-cli: device error", Reason(FailureReason.ACCELERATOR_MISSING)),
    _of(
        r"nvidia-container-cli: |could not apply required modification to OCI specification", Reason.DRIVER_UNAVAILABLE
    ),
    _DISK,
    _of(r"exec format error", Reason.IMAGE_ARCHITECTURE_MISMATCH),
)


def why_not_pulled(word: str, message: str) -> Cause:
    """The cause of a failed pull. `word` is one of IMAGE_WORDS; `message` quotes the registry."""
    if word in ("ErrImageNeverPull", "InvalidImageName"):
        return Cause(Reason.IMAGE_NOT_FOUND)
    return _first(_PULL, message) or Cause(Reason.IMAGE_PULL_FAILED)


def why_not_started(message: str) -> Cause:
    """The cause for a container that never ran."""
    return _first(_START, message) or Cause(Reason.CONTAINER_NOT_STARTED)


def is_of_another_architecture(message: str) -> bool:
    """Whether the only line of a container's log says that its program is of another architecture."""
    return message.rstrip().lower().endswith("exec format error")


def is_of_full_disk(message: str) -> bool:
    return _DISK.words.search(message) is not None


def sentence_of(message: str) -> str:
    """In one line, without names that change with each attempt; of a long message the end, which has the cause."""
    line = _CONTAINER_ID.sub("...", " ".join(message.split())).removesuffix(": unknown").rstrip(".")
    return line if len(line) <= _LONGEST else f"... {line[-_LONGEST:]}"


def _first(patterns: Sequence[_Pattern], message: str) -> Cause | None:
    return next((each.cause for each in patterns if each.words.search(message)), None)


_EVIDENCE_LINES = 5
_ENDS = 3
"""Ends without a reported cause that make a crash loop."""

_OPERATORS_IMAGE = (
    "The container runs the operator's own image: check image of its chart's values, and "
    "services.imagePullSecrets where the registry asks for a login."
)
_OPERATORS_MEMORY = "Raise services.helperMemory in the operator's chart values: the container's limit follows it."
_VOLUMES_IMAGE = (
    "The pod mounts this image as a volume: check spec.model.uri (or the volume in spec.podTemplate.spec.volumes), and "
    "spec.runtime.imagePullSecrets where its registry asks for a login."
)
_NAMED_BY_THE_SPEC = frozenset({Reason.IMAGE_NOT_FOUND, Reason.IMAGE_PULL_DENIED, Reason.IMAGE_PULL_FAILED})
"""Reasons whose remedy names the field of the image."""
# A node that shuts down without pressure is not a failure of the pod.
_SHUTDOWN = frozenset({"Terminated", "NodeShutdown", "Shutdown"})


SERVER_IS_READY = "The server itself is ready, but its pod gets no requests as long as one of its containers is not."


def of_pod(pod: PodFacts, reports: Reports, containers: frozenset[str] | None = None) -> StatusFailure | None:
    """The failure of a pod; None without one, or if it may pass. `containers`: the operator's containers in the pod;
    None: unknown, and then no container counts as injected."""
    if pod.ready:
        return None
    if pod.is_lost:
        return _of_lost_node(pod)
    if pod.was_ready and (hung := _of_hang(pod, reports)) is not None:
        return hung
    if (ended := _of_group(pod, reports)) is not None:
        return ended
    if containers is not None and (injected := _of_injected(pod, containers)) is not None:
        return injected
    if pod.terminated is not None and not _is_past(pod, pod.terminated):
        found = _of_termination(pod, pod.terminated)
        return replace(found, message=found.message + _default_limit(pod, found), restarts=_restarts(pod, found))
    if pod.waiting is not None:
        found = _of_waiting(pod, pod.waiting)
        return found if pod.waiting.reason in IMAGE_WORDS else replace(found, restarts=_restarts(pod, found))
    if pod.unschedulable and not pod.scheduled:
        return status_failure(scheduling.reason_of(pod.unschedulable), "", evidence=pod.unschedulable)
    return None


def _default_limit(pod: PodFacts, found: StatusFailure) -> str:
    """Where memory ran out: that a LimitRange set the limit."""
    is_of_memory = pod.terminated is not None and pod.terminated.reason == "OOMKilled"
    is_of_memory = is_of_memory or found.reason is Reason(FailureReason.MEMORY_LIMIT_EXCEEDED)
    if not (pod.default_memory and is_of_memory):
        return ""
    return (
        f" Its memory limit of {pod.default_memory} is the default of a LimitRange of the namespace: set one of its "
        "own in the container's resources."
    )


def _of_injected(pod: PodFacts, containers: frozenset[str]) -> StatusFailure | None:
    """The failure of a container that the operator did not build into the pod."""
    unready = next((name for name in pod.unready if name not in containers), None)
    end, waiting = pod.terminated, pod.waiting
    if pod.container not in containers and pod.container and (end is not None or waiting is not None):
        name = pod.container
        if end is not None and end.reason not in START_WORDS:
            how = f"ended with {_how_and_why(end)}"
        elif end is not None:
            how = f"does not start: {end.reason}: {sentence_of(end.message)}"
        else:
            assert waiting is not None
            how = f"does not start: {waiting.reason}: {sentence_of(waiting.message)}".removesuffix(": ")
        evidence = (end and _log_of(end)) or (how,)
    elif unready is not None:
        name, how, evidence = unready, "is not ready", (f"container {unready}: running, not ready",)
    else:
        return None
    message = f"Container {name} {how}. It is not of this service: a webhook or policy of the cluster added it."
    if pod.server_ready:
        message = f"{message} {SERVER_IS_READY}"
    restarts = pod.ends if name == pod.container else 0
    return status_failure(
        Reason.INJECTED_CONTAINER_FAILED, message, pod=pod.name, evidence=tuple(evidence), restarts=restarts
    )


_OF_A_SMALL_GPU = frozenset(
    {
        FailureReason.KV_CACHE_TOO_SMALL,
        FailureReason.GPU_OUT_OF_MEMORY,
        FailureReason.PRECISION_UNSUPPORTED,
        FailureReason.STARTUP_FAILED,
        FailureReason.ENGINE_DIED,
    }
)


def gpu_of(pod: PodFacts) -> GPU | None:
    """The GPU of a pod that failed for a cause that may be the GPU; None otherwise, or if it was not reported."""
    end = pod.terminated
    reported = None if end is None or _is_past(pod, end) else Failure.from_json(end.message)
    return reported.gpu if reported is not None and reported.reason in _OF_A_SMALL_GPU else None


def on_another_gpu(failure: StatusFailure, verdict: str) -> StatusFailure:
    """The plan's verdict for the pod's GPU, with the pod's report as evidence."""
    found = status_failure(Reason.DOES_NOT_FIT, verdict, since=failure.since, pod=failure.pod)
    evidence = (f"{failure.reason}: {failure.message}", *failure.evidence)
    return replace(found, remedy=_LARGER_GPU, evidence=evidence, restarts=failure.restarts)


def is_of_driver(pod: PodFacts) -> bool:
    """Whether it fails because its node's driver does not match its image or GPU."""
    found = of_pod(pod, {})
    return found is not None and found.reason is Reason(FailureReason.DRIVER_MISMATCH)


def with_driver(failure: StatusFailure, pod: PodFacts, room: Room | None) -> StatusFailure:
    """A driver failure with the version of the node's driver, where the failure lacks it and the node's labels have
    it."""
    if room is None or failure.reason is not Reason(FailureReason.DRIVER_MISMATCH):
        return failure
    driver = next((node.driver for node in room.nodes if node.name == pod.node), "")
    if not driver or driver.partition(",")[0] in failure.message:
        return failure
    return replace(failure, message=f"{failure.message} (node {pod.node} has driver {driver})")


_LARGER_GPU = (
    "Label the nodes with their products and name those on which it fits in spec.accelerator.products, which keeps the "
    "pods from other nodes. status.plan.remedies has changes with which it needs less, where the plan knows some."
)


def _restarts(pod: PodFacts, found: StatusFailure) -> int:
    """Restarts of the failing container; others prove nothing. A driver takes minutes to load, and a container is tried
    three times within one."""
    if found.reason is Reason.DRIVER_UNAVAILABLE:
        return 0
    return pod.server_restarts if pod.container == SERVER_CONTAINER else pod.ends


def of_ended_pod(pod: PodFacts) -> StatusFailure | None:
    """The failure of a pod that its node evicted or rejected. Ends of its containers show in its replacement, too."""
    if pod.phase != "Failed" or not pod.reason or pod.reason in _SHUTDOWN:
        return None
    text = normalize.eviction(pod.message)
    reason = Reason.EVICTED if pod.reason == "Evicted" else Reason.POD_REJECTED
    did = "put pod" if reason is Reason.EVICTED else "refused pod"
    message = f"Node {pod.node} {did} {pod.name}{'' if reason is Reason.POD_REJECTED else ' out'}: {text or pod.reason}"
    evidence = (f"{pod.reason}: {text}",) if text else (pod.reason,)
    return status_failure(reason, message, since=pod.ended_at, pod=pod.name, evidence=evidence)


def _is_past(pod: PodFacts, end: Termination) -> bool:
    """Whether a server that ended has been ready since; it exits with 0 only when it is told to, whatever vLLM's exit
    code."""
    return pod.container == SERVER_CONTAINER and (pod.was_ready or (end.exit_code == 0 and not end.signal))


def _of_hang(pod: PodFacts, reports: Reports) -> StatusFailure | None:
    """A hang, once the supervisor reports it; it ends the server much later, with more evidence."""
    report = report_of(pod, reports)
    if report is None or report.state is None or not report.state.hung:
        return None
    message = (
        f"Requests wait in pod {pod.name} and its engine does not move, so it is not ready and gets no new ones; "
        "it is restarted if it stays so."
    )
    evidence = (report.state.progress,) if report.state.progress else ()
    # Earlier restarts make it no more likely to last: repeated ends are failures of their own.
    return status_failure(
        Reason(FailureReason.ENGINE_HUNG), message, since=pod.unready_since, pod=pod.name, evidence=evidence
    )


def _of_group(pod: PodFacts, reports: Reports) -> StatusFailure | None:
    """Why vLLM last ended on all pods of a replica over several nodes, by its leader's report."""
    report = report_of(pod, reports)
    group = report.state.group if report is not None and report.state is not None else None
    if group is None or group.cause is None:
        return None
    cause = group.cause
    found = StatusFailure(
        Reason(cause.failure.reason), cause_of(cause), cause.failure.remedy or Reason(cause.failure.reason).remedy,
        since=pod.unready_since, pod=cause.pod or pod.name, evidence=cause.failure.evidence, restarts=group.restarts,
    )  # fmt: skip
    if not group.is_exhausted:
        return found
    reason = Reason.GROUP_RESTART_BUDGET_EXHAUSTED
    message = f"Pods of {pod.name}'s group started vLLM {group.restarts} times within an hour. {found.message}"
    return replace(found, reason=reason, message=message, remedy=f"{found.remedy} {reason.remedy}")


def _of_lost_node(pod: PodFacts) -> StatusFailure:
    message = f"Node {pod.node} no longer reports to the cluster, so its pod {pod.name} counts as not ready."
    evidence = ("The pod's condition Ready was turned off by the cluster; its kubelet last said ContainersReady=True.",)
    return status_failure(Reason.NODE_LOST, message, since=pod.unready_since, pod=pod.name, evidence=evidence)


def _of_waiting(pod: PodFacts, waiting: Waiting) -> StatusFailure:
    text = f"{waiting.reason}: {sentence_of(waiting.message)}" if waiting.message else waiting.reason
    if waiting.reason in START_WORDS:
        return _of_start(pod, why_not_started(waiting.message), text)
    if waiting.reason not in IMAGE_WORDS:
        reason = Reason.CONTAINER_CONFIG_INVALID if waiting.reason == CONFIG_WORD else Reason.UNKNOWN
        return _of_start(pod, Cause(reason), text)
    cause = why_not_pulled(waiting.reason, waiting.message)
    is_general = cause.reason in _NAMED_BY_THE_SPEC and not cause.remedy
    if is_general and pod.container in (RUNTIME_CONTAINER, FETCH_CONTAINER):
        cause = cause._replace(remedy=_OPERATORS_IMAGE)
    elif is_general and waiting.is_of_volume:
        cause = cause._replace(remedy=_VOLUMES_IMAGE)
    return _of_start(pod, cause, text)


def _of_start(pod: PodFacts, cause: Cause, text: str, since: str = "") -> StatusFailure:
    """The failure of a container that is missing or never ran."""
    message, remedy = f"Container {pod.container}: {text}", cause.remedy or cause.reason.remedy
    if cause.reason is Reason.IMAGE_ARCHITECTURE_MISMATCH:
        message = f"The image of container {pod.container} has no build for the architecture of node {pod.node}: {text}"
    elif cause.reason is Reason.NODE_DISK_FULL:
        message, remedy = f"{message} (the disk of node {pod.node})", f"Free space on node {pod.node}. {remedy}"
    return StatusFailure(cause.reason, message, remedy, since, pod.name, (text,))


def _of_termination(pod: PodFacts, end: Termination) -> StatusFailure:
    reported = Failure.from_json(end.message)
    if reported is not None:
        reason, evidence = Reason(reported.reason), reported.evidence[-_EVIDENCE_LINES:]
        return StatusFailure(
            reason, reported.message, reported.remedy, end.finished_at, pod.name, evidence or (_how(end),)
        )
    if end.reason in START_WORDS or is_of_another_architecture(end.message):
        text = f"{end.reason}: {sentence_of(end.message)}" if end.message else end.reason
        return _of_start(pod, why_not_started(end.message), text, end.finished_at)
    how = _how_and_why(end)
    lines = _log_of(end) or (how,)
    if pod.container == FETCH_CONTAINER:
        message = f"Container {FETCH_CONTAINER}, which fetches models and adapters, ended with {how}."
        return status_failure(
            Reason(FailureReason.FETCH_CONTAINER_FAILED), message, since=end.finished_at, pod=pod.name, evidence=lines
        )
    if pod.container != SERVER_CONTAINER:
        message = f"Init container {pod.container} ended with {how}."
        found = status_failure(
            Reason.INIT_CONTAINER_FAILED, message, since=end.finished_at, pod=pod.name, evidence=lines
        )
        is_too_small = pod.container == RUNTIME_CONTAINER and end.reason == "OOMKilled"
        return replace(found, remedy=_OPERATORS_MEMORY) if is_too_small else found
    if end.reason == "OOMKilled":
        reason = Reason(FailureReason.MEMORY_LIMIT_EXCEEDED)
    else:
        reason = Reason.CRASH_LOOP if pod.ends >= _ENDS else Reason.UNKNOWN
    again = " again and again, the first time seen" if reason is Reason.CRASH_LOOP else ""
    message = f"Container {pod.container} ended{again} with {how}."
    return status_failure(reason, message, since=end.finished_at, pod=pod.name, evidence=lines)


def _log_of(end: Termination) -> tuple[str, ...]:
    """An end during a drain is reported in JSON, which is not a log line."""
    log = () if end.message.startswith('{"version"') else end.message.splitlines()
    return tuple(line for line in log if line.strip())[-_EVIDENCE_LINES:]


def _how_and_why(end: Termination) -> str:
    return f"{_how(end)} ({end.reason})" if end.reason else _how(end)


def _how(end: Termination) -> str:
    return f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"
