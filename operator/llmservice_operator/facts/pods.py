"""Projections of pods: the state of each and, if it fails, the cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from llmservice_api.constants import (
    DELETION_COST_ANNOTATION,
    GROUP_GATE,
    GROUP_INDEX_LABEL,
    RANK_LABEL,
    REVISION_LABEL,
    SERVICE_LABEL,
    has_api,
    is_replica,
)
from llmservice_planner.room import Amounts, requests_of
from llmservice_runtime.bounded_json import clean
from llmservice_runtime.contract import (
    FETCH_CONTAINER,
    RUNTIME_CONTAINER,
    SERVER_CONTAINER,
    TERMINATION_LIMIT,
    DrainReport,
)

from llmservice_operator.facts import normalize
from llmservice_operator.facts.normalize import controller_of, identity_of, is_deleting

Json = Mapping[str, Any]

OPERATORS_CONTAINERS = frozenset({RUNTIME_CONTAINER, FETCH_CONTAINER, SERVER_CONTAINER})
"""The operator's containers; those of the user's podTemplate come in addition."""
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_LIMIT_RANGER = "kubernetes.io/limit-ranger"
_MOST_CUT = 1_000_000
_COST = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_LONGEST = 4 * TERMINATION_LIMIT
"""Characters of a termination message that are kept: the kubelet writes fewer."""


@dataclass(frozen=True, slots=True)
class Termination:
    """The latest known end of a container."""

    reason: str
    exit_code: int
    signal: int
    message: str
    """The supervisor's JSON, or the tail of the log if the supervisor was killed."""
    finished_at: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not start."""

    reason: str
    message: str
    is_of_volume: bool = False
    """The message is about an image that is mounted as a volume, not about the container's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    namespace: str
    name: str
    uid: str
    resource_version: str = field(compare=False)
    deleting: bool
    service: str | None
    revision: str
    owner_uid: str | None
    is_replica: bool
    """It belongs to the service's workload."""
    group: str = ""
    """The index of its group; empty for a pod that is a replica by itself."""
    rank: int = 0
    """Within its group."""
    has_api: bool = True
    """It answers requests; else another pod of its group does."""
    is_held: bool = False
    """It has GROUP_GATE; other gates are among what makes it unschedulable."""
    node_selector: tuple[tuple[str, str], ...] = ()
    """Of a pod of a group."""
    queue: str
    """Kueue's queue in which it waits for quota or holds some; else empty."""
    phase: str
    scheduled: bool
    unschedulable: tuple[str, ...]
    """The scheduler's causes, sorted; empty until it reports some."""
    ready: bool
    started: bool
    address: str
    """The pod's IP; empty until it is assigned."""
    running: bool
    """The server's process runs, ready or not."""
    server_ready: bool
    unready: tuple[str, ...]
    """Containers beside the server that run and are not ready, while the server is."""
    waits_for: str
    """A container of the user's or of a mesh that has to end or start before the server; else empty."""
    container: str
    """The container of `waiting` and `terminated`: the first one that fails, the operator's before others; else the
    server."""
    waiting: Waiting | None
    terminated: Termination | None
    default_memory: str
    """The memory limit of that container, if a LimitRange set it; else empty."""
    restarts: int
    """Of all containers except the fetch container, whose restarts do not affect the server."""
    server_restarts: int
    ends: int
    """How often that container has ended."""
    reason: str
    """Pod-level reason of an ended pod: Evicted, UnexpectedAdmissionError, ..."""
    message: str
    node: str
    """Empty until it is scheduled."""
    asked: Amounts = field(compare=False)
    """Resources that it takes of its node; empty until it is scheduled. Relevant for other services."""
    is_lost: bool
    """Not ready by the cluster, though the kubelet last reported ready: its node does not report."""
    is_setting_up: bool
    """Scheduled, and no container has started: volumes are mounted, the sandbox is created, images are pulled."""
    is_initializing: bool
    """An init container runs that has to end before the server starts."""
    created_at: str
    scheduled_at: str
    running_since: str
    """Start of the server's current run."""
    unready_since: str
    """When it last became unready; before `running_since` if the current run never was ready."""
    ended_at: str
    """Of an ended pod."""
    deletion_cost: int = field(compare=False)
    """DELETION_COST_ANNOTATION; 0 if absent or not a number, as in Kubernetes."""
    cut: int
    """Streams that outlived the drain timeout and were cut, as the supervisor reported at its end."""

    @property
    def was_ready(self) -> bool:
        """Whether the server's current run was ready and no longer is."""
        return self.running and not self.ready and bool(self.running_since) and self.unready_since > self.running_since

    @classmethod
    def from_object(cls, obj: Json) -> Self:
        metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
        node = str(spec.get("nodeName") or "")
        labels = metadata.get("labels") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        scheduling = conditions.get("PodScheduled", {})
        ready = conditions.get("Ready", {})
        failing = _failing_container(status)
        server = _server(status)
        return cls(
            **identity_of(metadata),
            deleting=is_deleting(metadata),
            service=labels.get(SERVICE_LABEL),
            revision=str(labels.get(REVISION_LABEL, "")),
            owner_uid=owner.uid if (owner := controller_of(metadata)) else None,
            is_replica=is_replica(metadata, str(labels.get(SERVICE_LABEL, ""))),
            group=text_of(labels.get(GROUP_INDEX_LABEL)),
            rank=_rank(labels.get(RANK_LABEL)),
            has_api=has_api(labels),
            is_held=GROUP_GATE in _gates(spec),
            node_selector=tuple((spec.get("nodeSelector") or {}).items()) if GROUP_INDEX_LABEL in labels else (),
            queue=text_of(labels.get(_QUEUE_LABEL)),
            phase=str(status.get("phase", "")),
            scheduled=scheduling.get("status") == "True" or bool(node),
            unschedulable=_causes(scheduling, spec),
            ready=ready.get("status") == "True",
            started=bool(server.get("started")),
            address=str(status.get("podIP") or ""),
            running="running" in (server.get("state") or {}),
            server_ready=bool(server.get("ready")),
            unready=_unready(spec, status) if server.get("ready") else (),
            waits_for=_waits_for(spec, status),
            container=str(failing.get("name", "")),
            waiting=_waiting(failing, spec),
            terminated=_termination(failing),
            default_memory=_default_memory(metadata, spec, str(failing.get("name", ""))) if failing else "",
            restarts=_restarts(status),
            server_restarts=int(server.get("restartCount") or 0),
            ends=_ends(failing),
            reason=str(status.get("reason", "")),
            message=text_of(status.get("message")),
            node=node,
            asked=requests_of(spec) if node else {},
            deletion_cost=_deletion_cost(metadata),
            is_lost=_is_lost(ready, conditions.get("ContainersReady", {})),
            is_setting_up=bool(node) and _is_setting_up(status),
            is_initializing=_is_initializing(spec, status),
            created_at=str(metadata.get("creationTimestamp") or ""),
            scheduled_at=str(scheduling.get("lastTransitionTime") or ""),
            running_since=str(((server.get("state") or {}).get("running") or {}).get("startedAt") or ""),
            unready_since=str(ready.get("lastTransitionTime") or "") if ready.get("status") == "False" else "",
            ended_at=_ended_at(status, conditions),
            cut=_cut(server),
        )


def _rank(text: object) -> int:
    return int(text) if isinstance(text, str) and len(text) <= 3 and text.isascii() and text.isdecimal() else 0


def replicas(pods: Iterable[object]) -> Iterator[PodFacts]:
    """The replicas among projections of pods."""
    return (pod for pod in pods if isinstance(pod, PodFacts) and pod.is_replica)


def _deletion_cost(metadata: Json) -> int:
    """A 32-bit integer; anyone may have written the annotation."""
    text = str((metadata.get("annotations") or {}).get(DELETION_COST_ANNOTATION, ""))
    return int(text) if _COST.fullmatch(text) else 0


def _is_lost(ready: Json, containers_ready: Json) -> bool:
    """Only the node controller sets Ready to False by itself, without a reason; a readiness gate gives one."""
    is_off = ready.get("status") == "False" and not ready.get("reason")
    return is_off and containers_ready.get("status") == "True"


def _is_setting_up(status: Json) -> bool:
    if status.get("phase") != "Pending":
        return False
    return not any({"running", "terminated"} & set(container.get("state") or {}) for container in _containers(status))


def _is_initializing(spec: Json, status: Json) -> bool:
    return any(
        _is_running(c) and c.get("name") not in _sidecars(spec) for c in status.get("initContainerStatuses") or ()
    )


def _sidecars(spec: Json) -> set[str]:
    """Init containers that keep running."""
    return {str(c.get("name")) for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}


def _is_running(container: Json) -> bool:
    return "running" in (container.get("state") or {})


def _unready(spec: Json, status: Json) -> tuple[str, ...]:
    sidecars = _sidecars(spec)
    beside = [
        c
        for c in _containers(status)
        if c not in (status.get("initContainerStatuses") or ()) or c.get("name") in sidecars
    ]
    return tuple(str(c.get("name")) for c in beside if _is_running(c) and not c.get("ready"))


def _waits_for(spec: Json, status: Json) -> str:
    sidecars = _sidecars(spec)
    for container in status.get("initContainerStatuses") or ():
        name = str(container.get("name"))
        is_up = name in sidecars and container.get("started")
        if _is_running(container) and not is_up:
            return "" if name in OPERATORS_CONTAINERS else name
    return ""


def _ended_at(status: Json, conditions: Mapping[str, Json]) -> str:
    if status.get("phase") != "Failed":
        return ""
    disrupted = conditions.get("DisruptionTarget", {}).get("lastTransitionTime")
    return str(disrupted or conditions.get("Ready", {}).get("lastTransitionTime") or status.get("startTime") or "")


def _cut(server: Json) -> int:
    ended = (server.get("state") or {}).get("terminated") or {}
    report = DrainReport.from_json(text_of(ended.get("message")))
    # It becomes a metric, and a pod may report any number.
    return min(report.cut, _MOST_CUT) if report is not None else 0


def text_of(value: object) -> str:
    """Text from a container or its runtime: bounded, without control characters."""
    return clean(str(value or "")[:_LONGEST])


def _causes(scheduling: Json, spec: Json) -> tuple[str, ...]:
    if scheduling.get("status") != "False":
        return ()
    if scheduling.get("reason") == "SchedulingGated":
        return tuple(sorted(f"scheduling gate {name}" for name in _gates(spec) if name != GROUP_GATE))
    return normalize.unschedulable_causes(text_of(scheduling.get("message")))


def _gates(spec: Json) -> list[str]:
    return [text_of(gate.get("name")) for gate in spec.get("schedulingGates") or ()]


def _containers(status: Json) -> Iterator[Json]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _restarts(status: Json) -> int:
    counted = (c for c in _containers(status) if c.get("name") != FETCH_CONTAINER)
    return sum(int(c.get("restartCount") or 0) for c in counted)


def _server(status: Json) -> Json:
    return next((c for c in status.get("containerStatuses") or () if c.get("name") == SERVER_CONTAINER), {})


_STARTING = frozenset({"", "PodInitializing", "ContainerCreating"})


def _failing_container(status: Json) -> Json:
    """The first container that fails or waits for something other than its start; init containers first, containers
    that others added last."""
    for container in sorted(_containers(status), key=lambda each: each.get("name") not in OPERATORS_CONTAINERS):
        state = container.get("state") or {}
        if (state.get("waiting") or {}).get("reason", "") not in _STARTING or _ended(container):
            return container
    return _server(status)


def _ended(container: Json) -> Json:
    """The end to report: of the current run, else of the previous one, unless the container serves again."""
    state = container.get("state") or {}
    current = state.get("terminated")
    if current:
        done_its_work = current.get("exitCode") == 0 and container.get("name") != SERVER_CONTAINER
        return {} if done_its_work else current
    if container.get("ready"):
        return {}
    return (container.get("lastState") or {}).get("terminated") or {}


def _ends(container: Json) -> int:
    """Restarts, plus one for a container that has ended and was not restarted."""
    restarts, is_running = int(container.get("restartCount") or 0), "running" in (container.get("state") or {})
    return restarts + (1 if not is_running and _ended(container) else 0)


def _waiting(container: Json, spec: Json) -> Waiting | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = str(waiting.get("reason", ""))
    if reason in _STARTING:
        return None
    message = normalize.waiting(text_of(waiting.get("message")))
    return Waiting(reason, message, _is_of_volume(str(container.get("name", "")), message, spec))


def _is_of_volume(name: str, message: str, spec: Json) -> bool:
    """Whether the image in the message is a volume's, and not the container's of this name."""
    volumes = [str(volume["image"].get("reference")) for volume in spec.get("volumes") or () if volume.get("image")]
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    own = next((str(c.get("image")) for c in containers if c.get("name") == name), "")
    return f'"{own}"' not in message and any(f'"{volume}"' in message for volume in volumes)


def _default_memory(metadata: Json, spec: Json, name: str) -> str:
    """By the annotation of the admission plugin LimitRanger, as in `...: cpu, memory limit for init container NAME;
    ...`."""
    note = text_of((metadata.get("annotations") or {}).get(_LIMIT_RANGER))
    wanted = {f"limit for container {name}", f"limit for init container {name}"}
    parts = (part.strip() for part in note.partition(":")[2].split(";"))
    if not any("memory" in part.split() and any(part.endswith(f" {end}") for end in wanted) for part in _words(parts)):
        return ""
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    limits = next(((c.get("resources") or {}).get("limits") or {} for c in containers if c.get("name") == name), {})
    return str(limits.get("memory") or "")[:64]


def _words(parts: Iterable[str]) -> Iterator[str]:
    return (part.replace(",", " ") for part in parts)


def _termination(container: Json) -> Termination | None:
    ended = _ended(container)
    if not ended:
        return None
    return Termination(
        reason=str(ended.get("reason", "")),
        exit_code=int(ended.get("exitCode") or 0),
        signal=int(ended.get("signal") or 0),
        message=text_of(ended.get("message")),
        finished_at=str(ended.get("finishedAt") or ""),
    )
