"""The answer of `llmservice status -o json`, versioned: names are only ever added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from llmservice_operator.api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_operator.api.reasons import Reason

from llmservice_cli.api import Json
from llmservice_cli.services import conditions_of, is_outdated

from .figures import Figures
from .snapshot import Pod, Snapshot

VERSION = 1
UNKNOWN_REASON = "This version of llmservice does not know the reason: see docs/reference/reasons.md of the operator's."
# Of these, False is the good state; of all others, True is.
PASSING = frozenset({ConditionType.RECONCILING, ConditionType.STALLED, ConditionType.DEGRADED})


def document(services: Iterable[Json], snapshots: Iterable[Snapshot], now: datetime) -> dict[str, Any]:
    """`snapshots` have pods with live figures, and what is held; `services` were only listed."""
    listed = [_service(service) for service in services]
    whole = [{**_service(each.service), **_held(each), **_pods(each)} for each in snapshots]
    return {"version": VERSION, "readAt": now.isoformat(timespec="seconds"), "services": [*whole, *listed]}


def needs_attention(condition: Condition) -> bool:
    """Whether it says that something is not, or not yet, as it should be."""
    good = ConditionStatus.FALSE if condition.type in PASSING else ConditionStatus.TRUE
    return condition.status != good


def remedies(service: Json) -> Mapping[str, str]:
    """What to do about each reason that needs attention, each once."""
    found = [condition.reason for condition in conditions_of(service) if needs_attention(condition)]
    return {reason: _remedy(reason) for reason in dict.fromkeys(found)}


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
    return {} if snapshot.held is None else {"held": snapshot.held.to_object()}


def _pods(snapshot: Snapshot) -> dict[str, Any]:
    if isinstance(snapshot.pods, str):
        return {"podsUnread": snapshot.pods}
    return {"pods": [_pod(pod) for pod in snapshot.pods]}


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
