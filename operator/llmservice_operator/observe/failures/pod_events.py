"""Failures that only the kubelet's Events show: volumes that cannot be mounted, sandboxes that are not created, blocked
probes.

Events are listed on demand: of pods without a container some seconds after they were scheduled, and of pods that run
and are not ready without a cause in their supervisor's report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Self

from llmservice_api.reasons import Reason
from llmservice_runtime.bounded_json import clean
from llmservice_runtime.contract import SERVER_CONTAINER, Phase

from llmservice_operator.facts import normalize
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.observe.failures.pod_failure import StatusFailure, is_of_full_disk, sentence_of, status_failure
from llmservice_operator.observe.observed import Reports, report_of
from llmservice_operator.observe.progress import lacks_pods
from llmservice_operator.workload.port import Replica, WorkloadFacts

Json = Mapping[str, Any]

SET_UP_SECONDS = 3.0
"""Seconds in which a pod whose images are present has its first container."""
START_SECONDS = 15.0
"""Seconds after which the Events of a running server are read, if its startup probe has not succeeded."""
SHORTEST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
MOST_PODS = 3
"""Of one service at a time: their failures are alike."""
_PROBE_SPAN = timedelta(seconds=15)
"""Longest time between a failed probe and the pod's becoming unready."""

_SET = "StatefulSet/"
"""Before the name of an object that is no pod."""
_PAST_SET_UP = frozenset({"Pulling", "Pulled", "Created", "Started"})
_MOUNT = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_SANDBOX = ("FailedCreatePodSandBox", "NetworkNotReady", "FailedPrepareDynamicResources")
_NO_RUNTIME = "no runtime for "
_NO_HANDLER = (
    "The node's container runtime lacks the handler of the pod's RuntimeClass: correct "
    "spec.podTemplate.spec.runtimeClassName, or configure the handler on the node (for NVIDIA, its container toolkit)."
)
_NOT_YET = "no relationship found between node"
"""The API server does not know yet that the pod is on that node; the kubelet retries some seconds later."""
_NOT_SYNCED = " cache: timed out waiting for the condition"
"""A kubelet on a busy node waits a second for a Secret or ConfigMap, and retries with growing pauses."""
_OFTEN = 4
"""Occurrences of such a message, after some fifteen seconds."""
_FAILED = "probe failed: "
_NO_ANSWER = re.compile(
    r"i/o timeout|deadline exceeded|Client\.Timeout|connection refused|no route to host|network is unreachable"
    r"|host is down|connection reset|\bEOF\b"
)
_PARTS = frozenset({"", f"spec.containers{{{SERVER_CONTAINER}}}"})
"""The pod and the server container; others have probes of their own, on other ports."""
_REFUSED = "connection refused"
_LONGEST = 4096
"""Characters of a message. The API server stores messages of any length from anyone who may write Events."""


@dataclass(frozen=True, slots=True)
class PodEvent:
    reason: str
    message: str
    last: str
    """When it was last seen; empty if invalid, since anyone may write Events."""
    part: str = ""
    """The pod's part, as `spec.containers{server}`; empty: the whole pod, or unknown."""
    count: int = 1
    """How often it was seen."""

    @property
    def is_early(self) -> bool:
        """Whether it is expected to pass."""
        return _NOT_YET in self.message or (_NOT_SYNCED in self.message and self.count < _OFTEN)

    @classmethod
    def from_object(cls, obj: Json) -> Self:
        """Project an Event of the old or the new API."""
        series = obj.get("series") or {}
        seen = obj.get("lastTimestamp") or series.get("lastObservedTime") or obj.get("eventTime") or ""
        message = clean(str(obj.get("message") or "")[:_LONGEST]).strip()
        about = obj.get("involvedObject") or obj.get("regarding") or {}
        part = str(about.get("fieldPath") or "")[:_LONGEST]
        count = obj.get("count") or series.get("count")
        return cls(
            str(obj.get("reason") or "")[:_LONGEST],
            message,
            str(seen) if _is_time(str(seen)) else "",
            part,
            count if isinstance(count, int) else 1,
        )


@dataclass(frozen=True, slots=True)
class PodEvents:
    """Events by pod name; pods whose Events were not read are absent."""

    by_pod: Mapping[str, tuple[PodEvent, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, listed: Mapping[str, Iterable[Json]] | None) -> Self:
        """From the API server's list; None: it may not be listed."""
        found = {name: tuple(map(PodEvent.from_object, events)) for name, events in (listed or {}).items()}
        return cls(MappingProxyType(found))


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Pods whose Events are needed now, and when to ask again."""

    pods: tuple[str, ...] = ()
    again: float | None = None
    """Seconds."""


def event_query(
    pods: Sequence[PodFacts],
    reports: Reports,
    revision: str,
    now: datetime,
    workload: WorkloadFacts | None = None,
    replicas: Sequence[Replica] = (),
) -> EventQuery:
    """Pods of the desired revision whose state does not explain why they are not ready; and of a workload that does not
    report refused pods itself, the sets that lack some."""
    names: list[str] = []
    pauses: list[float] = []
    if workload is not None and lacks_pods(workload, replicas, revision):
        since = _after(workload.changed_at, SET_UP_SECONDS)
        age = (now - since).total_seconds() if since is not None else 0.0
        if age >= 0:
            names += _sets(workload, replicas)
        pauses.append(-age if age < 0 else min(LONGEST_PAUSE, max(SHORTEST_PAUSE, age / 2)))
    for pod in pods:
        if pod.revision != revision or pod.deleting or pod.ready or pod.phase == "Failed":
            continue
        since = _unexplained_since(pod, reports)
        if since is None:
            continue
        age = (now - since).total_seconds()
        if age >= 0:
            names.append(pod.name)
        pauses.append(-age if age < 0 else min(LONGEST_PAUSE, max(SHORTEST_PAUSE, age / 2)))
    return EventQuery(tuple(sorted(names)[:MOST_PODS]), min(pauses, default=None))


def _sets(workload: WorkloadFacts, replicas: Sequence[Replica]) -> list[str]:
    """The StatefulSets of leaders, and of workers of replicas that have not all of theirs."""
    few = (each.first.group for each in replicas if len(each.pods) < workload.nodes and each.first.group)
    return [f"{_SET}{workload.name}", *(f"{_SET}{workload.name}-{group}" for group in few)]


def refused_pods(workload: WorkloadFacts | None, events: PodEvents | None) -> WorkloadFacts | None:
    """The workload, with why the latest pod of its sets could not be made since its last change."""
    if workload is None or events is None or workload.replica_failure is not None or not workload.changed_at:
        return workload
    seen = (event for name, events in events.by_pod.items() if name.startswith(_SET) for event in events)
    found = [e for e in seen if e.reason == "FailedCreate" and e.last and _at(e.last) >= _at(workload.changed_at)]
    latest = max(found, key=lambda event: event.last, default=None)
    return workload if latest is None else replace(workload, replica_failure=normalize.replica_failure(latest.message))


def _unexplained_since(pod: PodFacts, reports: Reports) -> datetime | None:
    """Since when its Events are needed, possibly in the future; None: its state explains everything."""
    if pod.is_setting_up and pod.waiting is None:
        return _after(pod.scheduled_at, SET_UP_SECONDS)
    if not pod.running or pod.is_lost:
        return None
    if pod.started:
        return _after(pod.unready_since, 0.0) if pod.was_ready else None
    report = report_of(pod, reports)
    is_up = report is not None and (report.state is None or report.state.ready)
    return _after(pod.running_since, START_SECONDS) if is_up else None


def of_events(pod: PodFacts, events: PodEvents | None, reports: Reports) -> StatusFailure | None:
    """The failure in a pod's Events; None without one, or if they were not read."""
    seen = events.by_pod.get(pod.name, ()) if events is not None else ()
    if pod.is_setting_up:
        return _of_set_up(pod, seen)
    return _of_probes(pod, seen, reports) if pod.running and not pod.is_lost else None


def _of_set_up(pod: PodFacts, seen: Sequence[PodEvent]) -> StatusFailure | None:
    past = max((event.last for event in seen if event.reason in _PAST_SET_UP), default="")
    for reason, kinds in ((Reason.VOLUME_UNAVAILABLE, _MOUNT), (Reason.POD_SANDBOX_FAILED, _SANDBOX)):
        found = [e for e in seen if e.reason in kinds and e.last > past and not e.is_early]
        if found:
            # Beside the volume's own error there is one that only lists unmounted volumes.
            chosen = min(found, key=lambda event: ("nable to attach or mount" in event.message, event.message))
            evidence = tuple(_lines(found))
            if is_of_full_disk(chosen.message):
                reason = Reason.NODE_DISK_FULL
            shown = status_failure(
                reason, f"{chosen.reason}: {sentence_of(chosen.message)}", pod=pod.name, evidence=evidence
            )
            return replace(shown, remedy=_NO_HANDLER) if _NO_RUNTIME in chosen.message else shown
    return None


def _of_probes(pod: PodFacts, seen: Sequence[PodEvent], reports: Reports) -> StatusFailure | None:
    """Failure of blocked probes. A status code comes from the supervisor itself, as does its report to the operator.

    Without an Event the supervisor shows that probes are missing: the kubelet writes 25 Events of a pod and then one in
    five minutes (EventSourceObjectSpamFilter of client-go), and a start uses one a second.
    """
    report = report_of(pod, reports)
    state = report.state if report is not None else None
    if state is not None and (not state.ready or state.phase in (Phase.DRAINING, Phase.FAILED)):
        return None
    since = _after(pod.unready_since if pod.was_ready else pod.running_since, 0.0)
    recent = [
        e
        for e in seen
        if e.reason == "Unhealthy"
        and e.part in _PARTS
        and e.last
        and since is not None
        and _at(e.last) >= since - _PROBE_SPAN
    ]
    latest = max(recent, key=lambda event: event.last, default=None)
    if latest is None and state is not None and state.unprobed:
        return _blocked(pod, "The server is ready, and no probe has reached it for some seconds.")
    if latest is None or _FAILED not in latest.message or not _NO_ANSWER.search(latest.message):
        return None
    if state is None and _REFUSED in latest.message:
        return None  # nobody listens there, and nothing else shows that the server is up
    return _blocked(pod, latest.message)


def _blocked(pod: PodFacts, evidence: str) -> StatusFailure:
    message = f"The server of pod {pod.name} runs, and the kubelet's probes of its port 8081 get no answer."
    return status_failure(Reason.PROBE_BLOCKED, message, pod=pod.name, evidence=(evidence,))


def _lines(events: Sequence[PodEvent]) -> Iterator[str]:
    yield from sorted({f"{event.reason}: {event.message}" for event in events})[:5]


def _after(stamp: str, seconds: float) -> datetime | None:
    return _at(stamp) + timedelta(seconds=seconds) if stamp else None


def _is_time(stamp: str) -> bool:
    try:
        return _at(stamp).tzinfo is not None
    except ValueError:
        return False


def _at(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)
