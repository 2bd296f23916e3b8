"""Small projections of pods: where each one stands and, when it fails, what is known about why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from llmservice_operator.observe import still

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Termination:
    """The end of a container, the latest one known."""

    reason: str
    exit_code: int
    signal: int
    message: str
    """Our supervisor's JSON, or the tail of the log where the supervisor itself was killed."""
    finished_at: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not start."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """One pod of a service."""

    namespace: str
    name: str
    uid: str
    resource_version: str = field(compare=False)
    deleting: bool
    service: str | None
    revision: str
    owner_uid: str | None
    phase: str
    scheduled: bool
    unschedulable: tuple[str, ...]
    """The scheduler's causes, sorted; empty while it has not said anything."""
    ready: bool
    started: bool
    address: str
    """The pod's IP; empty before it has one."""
    running: bool
    """The server's process runs, whether or not it answers yet."""
    container: str
    """The container that `waiting` and `terminated` speak of: the first one in trouble, else the server."""
    waiting: Waiting | None
    terminated: Termination | None
    restarts: int
    reason: str
    """Pod-level reason: Evicted, Preempted, NodeLost, ..."""
    message: str

    @classmethod
    def from_object(cls, obj: Json) -> Self:
        """Project one pod as the API server sent it."""
        metadata, status = obj["metadata"], obj.get("status") or {}
        labels = metadata.get("labels") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        scheduling = conditions.get("PodScheduled", {})
        trouble = _trouble(status)
        server = _server(status)
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata.get("resourceVersion", ""),
            deleting=metadata.get("deletionTimestamp") is not None,
            service=labels.get("llmservice.dev/service"),
            revision=str(labels.get("llmservice.dev/revision", "")),
            owner_uid=next((r["uid"] for r in metadata.get("ownerReferences") or () if r.get("controller")), None),
            phase=str(status.get("phase", "")),
            scheduled=scheduling.get("status") == "True" or bool((obj.get("spec") or {}).get("nodeName")),
            unschedulable=_causes(scheduling),
            ready=conditions.get("Ready", {}).get("status") == "True",
            started=bool(server.get("started")),
            address=str(status.get("podIP") or ""),
            running="running" in (server.get("state") or {}),
            container=str(trouble.get("name", "")),
            waiting=_waiting(trouble),
            terminated=_termination(trouble),
            restarts=sum(int(c.get("restartCount") or 0) for c in _containers(status)),
            reason=str(status.get("reason", "")),
            message=str(status.get("message", "")),
        )


def _causes(scheduling: Json) -> tuple[str, ...]:
    if scheduling.get("status") != "False":
        return ()
    if scheduling.get("reason") == "SchedulingGated":
        return ("the pod has scheduling gates",)
    return still.unschedulable_causes(str(scheduling.get("message", "")))


def _containers(status: Json) -> Iterator[Json]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _server(status: Json) -> Json:
    return next((c for c in status.get("containerStatuses") or () if c.get("name") == "server"), {})


_STARTING = frozenset({"", "PodInitializing", "ContainerCreating"})


def _trouble(status: Json) -> Json:
    """The first container that waits for more than its turn or that ended badly; init containers come first."""
    for container in _containers(status):
        state = container.get("state") or {}
        if (state.get("waiting") or {}).get("reason", "") not in _STARTING or _ended(container):
            return container
    return _server(status)


def _ended(container: Json) -> Json:
    """The end to speak of: of the current run, else of the last one, unless the container serves again."""
    state = container.get("state") or {}
    current = state.get("terminated")
    if current:
        done_its_work = current.get("exitCode") == 0 and container.get("name") != "server"
        return {} if done_its_work else current
    if container.get("ready"):
        return {}
    return (container.get("lastState") or {}).get("terminated") or {}


def _waiting(container: Json) -> Waiting | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = str(waiting.get("reason", ""))
    return None if reason in _STARTING else Waiting(reason, still.waiting(str(waiting.get("message", ""))))


def _termination(container: Json) -> Termination | None:
    ended = _ended(container)
    if not ended:
        return None
    return Termination(
        reason=str(ended.get("reason", "")),
        exit_code=int(ended.get("exitCode") or 0),
        signal=int(ended.get("signal") or 0),
        message=str(ended.get("message", "")),
        finished_at=str(ended.get("finishedAt", "")),
    )
