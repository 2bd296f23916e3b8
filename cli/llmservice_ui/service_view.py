"""What the page of one service shows, from what was read of it. Pure.

The status is read by `llmservice status`'s own functions; what that has no value for is read here, bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmservice_api.conditions import Condition
from llmservice_cli.api import Json
from llmservice_cli.revisions import Revision, roles_of
from llmservice_cli.services import conditions_of, is_outdated
from llmservice_cli.status.document import Compared, compared, needs_attention, remedies_beside_failure
from llmservice_cli.status.screen import SEVERE, group_lines, measured_lines, progress_lines, rollout_lines
from llmservice_cli.status.snapshot import Event, Snapshot
from llmservice_runtime.bounded_json import Reader, Refused

from .fleet import FleetRow, row_of

MOST_PODS = 50
MOST_REVISIONS = 10
MOST_LINES = 64
BAR = 1000
"""Width of the bar of memory, in its own units."""


@dataclass(frozen=True, slots=True)
class Stated:
    """A condition, and how much it asks for."""

    condition: Condition
    severity: str
    """`good`, `warning` or `bad`, as `llmservice status` colours it."""
    repeats: bool
    """An earlier one has the same message."""


@dataclass(frozen=True, slots=True)
class Failure:
    """status.failure."""

    reason: str
    message: str
    remedy: str
    pod: str
    since: str
    evidence: Sequence[str]
    """Lines of vLLM's own log."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of one GPU's memory, at its place in the bar."""

    kind: str
    label: str
    gib: float
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change with which it would fit."""

    change: str
    verdict: str
    patch: str


@dataclass(frozen=True, slots=True)
class Plan:
    """status.plan."""

    verdict: str
    reason: str
    gpu: str
    memory_gib: float | None
    segments: Sequence[Segment]
    end: float | None
    """Where in the bar the GPU's memory ends, where the parts are more than it has."""
    remedies: Sequence[Remedy]


@dataclass(frozen=True, slots=True)
class PodRow:
    """One pod."""

    name: str
    phase: str
    state: str
    is_ready: bool
    restarts: int
    revision: str
    node: str


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """One recorded revision."""

    number: int
    label: str
    created: str
    roles: str
    change: str


@dataclass(frozen=True, slots=True)
class ServiceView:
    """All of it."""

    row: FleetRow
    facts: Mapping[str, str]
    is_outdated: bool
    is_paused: bool
    conditions: Sequence[Stated]
    remedies: Mapping[str, str]
    """What to do, by reason; not for the failure's, which has its own."""
    failure: Failure | None
    progress: Sequence[str]
    rollout: Sequence[str]
    groups: Sequence[str]
    """Replicas over several nodes: a table in lines."""
    plan: Plan | None
    compared: Sequence[Compared]
    measured: Sequence[str]
    phases: Mapping[str, int]
    pods: Sequence[PodRow] | str
    """Or why they are not known."""
    pods_left_out: int
    events: tuple[Event, ...] | str
    revisions: Sequence[RevisionRow] | str
    unread: Sequence[str]
    """Parts of the status that are not as they should be."""


def view(snapshot: Snapshot, revisions: Sequence[Revision] | str) -> ServiceView:
    """From one read."""
    service = snapshot.service
    status: Json = service.get("status") or {}
    unread: list[str] = []
    failure = _part(_failure, status.get("failure"), "status.failure", unread)
    pods = snapshot.pods
    return ServiceView(
        row=row_of(service),
        facts=_facts(service, status),
        is_outdated=is_outdated(service),
        is_paused=bool(service["spec"].get("paused")),
        conditions=_conditions(service),
        remedies=remedies_beside_failure(service),
        failure=failure,
        progress=list(progress_lines(status.get("progress"))),
        rollout=list(rollout_lines(service)),
        groups=list(group_lines(status.get("groups"))),
        plan=_part(_plan, status.get("plan"), "status.plan", unread),
        compared=list(compared(status)),
        measured=list(measured_lines(status)) if status.get("measured") else [],
        phases={str(phase): count for phase, count in snapshot.phases.items()},
        pods=pods if isinstance(pods, str) else list(_pods(snapshot)),
        pods_left_out=0 if isinstance(pods, str) else max(0, len(pods) - MOST_PODS),
        events=snapshot.events,
        revisions=revisions if isinstance(revisions, str) else list(_revisions(revisions, service)),
        unread=unread,
    )


def _part(read: Any, value: Any, what: str, unread: list[str]) -> Any:
    """A part of the status, None where it is absent; one that is refused is named in `unread`."""
    if value is None:
        return None
    try:
        return read(Reader(value, what))
    except Refused as refused:
        unread.append(str(refused))
        return None


def _facts(service: Json, status: Json) -> Mapping[str, str]:
    endpoint, rollout = status.get("endpoint") or {}, status.get("rollout") or {}
    names = ", ".join(map(str, endpoint.get("modelNames") or ()))
    found = {
        "Model": service["spec"]["model"]["uri"],
        "Endpoint": endpoint.get("url"),
        "Served as": names,
        "Replicas": f"{status.get('ready', '-')} ready, {status.get('updatedReplicas', 0)} of this revision, "
        f"{status.get('availableReplicas', 0)} available",
        "GPUs": status.get("gpus"),
        "Revision": rollout.get("revision"),
        "Strategy": rollout.get("strategy"),
    }
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


def _conditions(service: Json) -> Sequence[Stated]:
    seen: set[str] = set()
    found = []
    for condition in conditions_of(service):
        found.append(Stated(condition, _severity(condition), condition.message in seen))
        seen.add(condition.message)
    return found


def _severity(condition: Condition) -> str:
    if not needs_attention(condition):
        return "good"
    return "bad" if condition.type in SEVERE else "warning"


def _failure(read: Reader) -> Failure:
    return Failure(
        read.text("reason", 128, ""),
        read.text("message", default=""),
        read.text("remedy", default=""),
        read.text("pod", 253, ""),
        read.text("since", 64, ""),
        read.texts("evidence", MOST_LINES, 1024),
    )


_SEGMENTS = (
    ("weights", "weights", "weightsGiB"),
    ("non-torch", "libraries and communication", "nonTorchGiB"),
    ("activation", "activation peak", "activationGiB"),
    ("graphs", "CUDA graphs", "graphGiB"),
    ("kv", "KV cache", "kvCacheGiB"),
)


def _plan(read: Reader) -> Plan:
    memory, parts = None, []
    if read.has("perGPU"):
        gpu = read.within("perGPU")
        memory = gpu.number("memoryGiB") if gpu.has("memoryGiB") else None
        parts = [(kind, label, gpu.number(key, -1e6, 1e6)) for kind, label, key in _SEGMENTS if gpu.has(key)]
    needed = sum(max(0.0, gib) for _, _, gib in parts)
    return Plan(
        read.text("verdict", 64, ""),
        read.text("reason", default=""),
        read.text("gpu", 128, ""),
        memory,
        segments(parts, memory) if memory and parts else (),
        round(BAR * memory / needed, 2) if memory and needed > memory else None,
        [_remedy(Reader(item, "status.plan.remedies")) for item in read.items("remedies", 8)],
    )


def segments(parts: Sequence[tuple[str, str, float]], memory: float) -> Sequence[Segment]:
    """Side by side in a bar of BAR units; what is left of the memory is the last one. Parts that are more than the
    memory fill the bar."""
    whole = max(memory, sum(max(0.0, gib) for _, _, gib in parts))
    rest = memory - sum(max(0.0, gib) for _, _, gib in parts)
    found, at = [], 0.0
    for kind, label, gib in (*parts, ("rest", "left to others", rest)):
        if gib > 0:
            width = BAR * gib / whole
            found.append(Segment(kind, label, gib, round(at, 2), round(width, 2)))
            at += width
    return found


def _remedy(read: Reader) -> Remedy:
    return Remedy(read.text("change", default=""), read.text("verdict", 64, ""), read.text("patch", default=""))


def _pods(snapshot: Snapshot) -> Iterator[PodRow]:
    assert not isinstance(snapshot.pods, str)
    for pod in sorted(snapshot.pods, key=lambda pod: (pod.facts.ready, pod.facts.name))[:MOST_PODS]:
        facts = pod.facts
        yield PodRow(
            facts.name,
            str(snapshot.phase(pod)),
            pod.state,
            facts.ready,
            facts.restarts,
            facts.revision,
            facts.node,
        )


def _revisions(revisions: Sequence[Revision], service: Json) -> Iterator[RevisionRow]:
    for place, each in enumerate(revisions[:MOST_REVISIONS]):
        is_oldest = place + 1 == len(revisions)
        change = "the oldest that is recorded" if is_oldest else each.changes_from(revisions[place + 1])
        yield RevisionRow(each.number, each.label, each.created, roles_of(each.label, service), change)
