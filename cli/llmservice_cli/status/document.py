"""The answer of `llmservice status -o json`, versioned: names are only ever added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from llmservice_api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_api.reasons import Reason

from llmservice_cli.api import Json
from llmservice_cli.services import NO_VALUE, conditions_of, is_outdated

from .snapshot import Figures, Pod, Snapshot

# What was planned beside what vLLM measured. Pure: figures of status.plan and status.measured.


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure; None where there is none."""

    name: str
    measured_as: str
    """Its name in status.measured."""
    planned: float | None
    measured: float | None

    @property
    def difference(self) -> str:
        """Of what was planned, in percent."""
        if self.planned is None or self.measured is None or not self.planned:
            return NO_VALUE
        return f"{100 * (self.measured / self.planned - 1):+.1f} %"


_Plan = Callable[[Json], Any]
_ROWS: tuple[tuple[str, str, _Plan], ...] = (
    ("weights, GiB of a GPU", "modelMemoryGiB", lambda plan: (plan.get("perGPU") or {}).get("weightsGiB")),
    ("KV cache, GiB of a GPU", "kvCacheMemoryGiB", lambda plan: (plan.get("perGPU") or {}).get("kvCacheGiB")),
    ("KV cache tokens", "kvCacheTokens", lambda plan: plan.get("kvCacheTokens")),
    ("max concurrency", "maxConcurrency", lambda plan: plan.get("maxConcurrency")),
    ("longest request, tokens", "maxModelLen", lambda plan: plan.get("requestedMaxModelLen")),
)


def compared(status: Json) -> Iterator[Compared]:
    """Nothing where nothing was planned."""
    plan, measured = status.get("plan") or {}, status.get("measured") or {}
    if not plan.get("kvCacheTokens"):
        return
    for name, measured_as, planned in _ROWS:
        row = Compared(name, measured_as, _number(planned(plan)), _number(measured.get(measured_as)))
        if row.planned is not None or row.measured is not None:
            yield row


def shown(value: float | None) -> str:
    """With its digits in groups; a fraction only where it says something."""
    if value is None:
        return NO_VALUE
    return f"{value:,.0f}" if value == int(value) and value >= 100 else f"{value:,.2f}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


VERSION = 1
UNKNOWN_REASON = "This version of llmservice does not know the reason: see docs/reference/reasons.md of the operator's."
# Of these, False is the good state; of all others, True is.
PASSING = frozenset({ConditionType.RECONCILING, ConditionType.STALLED, ConditionType.DEGRADED})


def document(services: Iterable[Json], snapshots: Iterable[Snapshot], now: datetime) -> dict[str, Any]:
    """`snapshots` have pods with live figures, what is held, and Events; `services` were only listed."""
    listed = [_service(service) for service in services]
    whole = [{**_service(each.service), **_held(each), **_pods(each), **_events(each)} for each in snapshots]
    return {"version": VERSION, "readAt": now.isoformat(timespec="seconds"), "services": [*whole, *listed]}


def needs_attention(condition: Condition) -> bool:
    """Whether it says that something is not, or not yet, as it should be."""
    good = ConditionStatus.FALSE if condition.type in PASSING else ConditionStatus.TRUE
    return condition.status != good


def remedies(service: Json) -> Mapping[str, str]:
    """What to do about each reason that needs attention, each once."""
    found = [condition.reason for condition in conditions_of(service) if needs_attention(condition)]
    return {reason: _remedy(reason) for reason in dict.fromkeys(found)}


def remedies_beside_failure(service: Json) -> Mapping[str, str]:
    """What a reader has to do besides what the failure, which has a remedy of its own, asks for.

    Nothing about Available, whose cause Ready has; and of a plan that is missing only where nothing failed.
    """
    failed = ((service.get("status") or {}).get("failure") or {}).get("reason")

    def follows(condition: Condition) -> bool:
        is_unplanned = condition.type == ConditionType.FITS and condition.status == ConditionStatus.UNKNOWN
        return condition.type == ConditionType.AVAILABLE or (failed is not None and is_unplanned)

    told = {condition.reason for condition in conditions_of(service) if not follows(condition)} - {failed}
    return {reason: remedy for reason, remedy in remedies(service).items() if reason in told}


def _remedy(reason: str) -> str:
    return Reason(reason).remedy if reason in set(Reason) else UNKNOWN_REASON


def _service(service: Json) -> dict[str, Any]:
    metadata = service["metadata"]
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "generation": metadata.get("generation"),
        "statusIsOutdated": is_outdated(service),
        "modelUri": service["spec"]["model"]["uri"],
        "status": service.get("status") or {},
        "remedies": dict(remedies(service)),
    }


def _held(snapshot: Snapshot) -> dict[str, Any]:
    if isinstance(snapshot.held, str):
        return {"heldUnread": snapshot.held}
    if snapshot.held is None:
        return {}
    last = snapshot.held.last
    at = None if last is None else datetime.fromtimestamp(last.at, UTC).isoformat(timespec="seconds")
    use = {} if last is None else {"lastUse": {"at": at, "method": last.method, "path": last.path}}
    return {"held": snapshot.held.to_object(), **use}


def _pods(snapshot: Snapshot) -> dict[str, Any]:
    if isinstance(snapshot.pods, str):
        return {"podsUnread": snapshot.pods}
    pods = [{**_pod(pod), "phase": str(snapshot.phase(pod))} for pod in snapshot.pods]
    return {"pods": pods, "podsByPhase": {str(phase): count for phase, count in snapshot.phases.items()}}


def _events(snapshot: Snapshot) -> dict[str, Any]:
    if isinstance(snapshot.events, str):
        return {"eventsUnread": snapshot.events}
    return {"events": [event.to_object() for event in snapshot.events]}


def _pod(pod: Pod) -> dict[str, Any]:
    found = {
        "name": pod.facts.name,
        "ready": pod.facts.ready,
        "state": pod.state,
        "revision": pod.facts.revision,
        "restarts": pod.facts.restarts,
    }
    if isinstance(pod.figures, Figures):
        return {**found, "live": pod.figures.to_object()}
    return {**found, "liveUnread": pod.figures}
