"""Reports of supervisors: which pods are polled, and what the status shows.

A pod that does not answer changes no condition, and its earlier report stays in the status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmservice_runtime.contract import STATE_PORT, AdapterState, Phase, State

from llmservice_operator.facts.pods import PodFacts

Json = Mapping[str, Any]

_TEXT_LIMIT = 1024
"""The CRD's limit: a longer text would have the whole status refused."""
_UNREAD = (
    f"No pod has reported its measurements yet. The operator asks a ready pod on its port {STATE_PORT}; where it gets "
    "no answer, let a NetworkPolicy admit it."
)
_STARTING = frozenset({Phase.PREFLIGHT, Phase.FETCHING, Phase.LOADING, Phase.SMOKE})


@dataclass(frozen=True, slots=True)
class Report:
    """The last answer of one run of a pod's server."""

    uid: str
    restarts: int
    state: State | None
    """None: several attempts failed."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A pod to poll until a later decision does not list it."""

    pod: str
    uid: str
    restarts: int
    address: str
    is_starting: bool
    """Its state changes; otherwise one answer, or a change of its adapters, is enough."""


Reports = Mapping[str, Report]
"""By pod name."""


def asks(
    pods: Sequence[PodFacts], reports: Reports, revision: str, previous: Json, adapters_digest: str | None
) -> tuple[Ask, ...]:
    """The pods to poll now. `adapters_digest` None: LoRA is off."""
    # With a start cache the measurements of starts differ.
    is_measured = not {"reason", "startCache"} & (_previous_measured(previous, revision) or {"reason": ""}).keys()
    return tuple(
        Ask(pod.name, pod.uid, pod.restarts, pod.address, not pod.started or pod.was_ready)
        for pod in _current(pods, revision)
        if pod.running and pod.address and _is_worth_asking(pod, report_of(pod, reports), is_measured, adapters_digest)
    )


def _is_worth_asking(pod: PodFacts, report: Report | None, is_measured: bool, adapters_digest: str | None) -> bool:
    if not pod.started or pod.was_ready:
        return True
    if report is None or report.state is None:
        # It started before this process, or did not answer: poll it until it does, unless the status has its report.
        # The poller's pauses grow: on a busy node a pod may not answer during its whole start.
        return not is_measured or adapters_digest is not None
    if not report.state.started or report.state.hung:
        return True  # both change
    is_settled = report.state.adapters_hash == adapters_digest and all(a.loaded for a in report.state.adapters)
    return adapters_digest is not None and not is_settled


def progress_of(pods: Sequence[PodFacts], reports: Reports, revision: str, previous: Json) -> dict[str, Any] | None:
    """status.progress: of the pod that it was about before while that starts, else of the first by name."""
    starting = {pod.name: state for pod, state in _states(pods, reports, revision) if _is_starting(pod, state)}
    if not starting:
        return None
    before = (previous.get("progress") or {}).get("pod")
    name = before if before in starting else min(starting)
    state = starting[name]
    transfer = state.transfer if state.phase is Phase.FETCHING else None
    found: dict[str, Any] = {"pod": name, "phase": str(state.phase), "message": state.progress[:_TEXT_LIMIT]}
    if transfer is not None:
        found |= {
            "artifact": transfer.artifact[:_TEXT_LIMIT],
            "step": str(transfer.step),
            "percent": transfer.percent,
            "bytesPerSecond": None if transfer.bytes_per_second is None else round(transfer.bytes_per_second),
            "etaSeconds": transfer.eta_seconds,
        }
    return {key: value for key, value in found.items() if value not in (None, "")}


def starting_state(pods: Sequence[PodFacts], reports: Reports, revision: str, progress: Json | None) -> State | None:
    name = progress["pod"] if progress is not None else None
    return next((state for pod, state in _states(pods, reports, revision) if pod.name == name), None)


def measured_of(pods: Sequence[PodFacts], reports: Reports, revision: str, previous: Json) -> dict[str, Any] | None:
    """Measurements of vLLM at its start: of the first pod by name, since all have the same template."""
    for _, state in _states(pods, reports, revision):
        if state.started:
            return state.measured.to_document()
    known = _previous_measured(previous, revision)
    if (known is None or "reason" in known) and any(pod.ready for pod in _current(pods, revision)):
        # Written with the status of a ready pod: a missing answer needs no write of its own.
        return {"reason": _UNREAD}
    return None if known is None else dict(known)


def adapters_of(
    names: Sequence[str], digest: str, pods: Sequence[PodFacts], reports: Reports, revision: str, previous: Json
) -> list[dict[str, Any]]:
    """Each adapter of the spec: loaded by every replica, or the message of one that failed."""
    states = [state for _, state in _states(pods, reports, revision) if state.started]
    known = {item.get("name"): item for item in previous.get("adapters") or ()}
    if not states:
        return [dict(known.get(name) or {"name": name, "loaded": False}) for name in names]
    return [_adapter(name, [_adapter_state(name, digest, state) for state in states]) for name in names]


def _adapter(name: str, states: Sequence[AdapterState]) -> dict[str, Any]:
    message = next((state.message for state in states if state.message), "")[:_TEXT_LIMIT]
    is_loaded = all(state.loaded for state in states)
    return {"name": name, "loaded": is_loaded} | ({"message": message} if message else {})


def _adapter_state(name: str, digest: str, state: State) -> AdapterState:
    """A failure with an earlier list says nothing about this one."""
    known = next((adapter for adapter in state.adapters if adapter.name == name), None)
    if known is None or (state.adapters_hash != digest and not known.loaded):
        return AdapterState(name, loaded=False)
    return known


def _states(pods: Sequence[PodFacts], reports: Reports, revision: str) -> Iterator[tuple[PodFacts, State]]:
    for pod in _current(pods, revision):
        report = report_of(pod, reports)
        if report is not None and report.state is not None:
            yield pod, report.state


def _current(pods: Sequence[PodFacts], revision: str) -> Iterator[PodFacts]:
    gone = ("Failed", "Succeeded")
    yield from (pod for pod in pods if pod.revision == revision and not pod.deleting and pod.phase not in gone)


def report_of(pod: PodFacts, reports: Reports) -> Report | None:
    report = reports.get(pod.name)
    return report if report is not None and (report.uid, report.restarts) == (pod.uid, pod.restarts) else None


def _is_starting(pod: PodFacts, state: State) -> bool:
    return pod.running and not pod.ready and not state.started and state.phase in _STARTING


def _previous_measured(previous: Json, revision: str) -> Json | None:
    is_same = (previous.get("rollout") or {}).get("revision") == revision
    return previous.get("measured") if is_same else None
