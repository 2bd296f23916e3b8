"""Projections of inspection pods, whose termination messages contain the facts of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from llmservice_api.constants import INSPECTS_LABEL, SERVICE_LABEL
from llmservice_runtime.contract import INSPECT_CONTAINER
from llmservice_runtime.inspection.inspected import Inspection

from llmservice_operator.facts.normalize import identity_of
from llmservice_operator.facts.pods import PodFacts, text_of
from llmservice_operator.facts.scheduling import are_gates

Json = Mapping[str, Any]


class InspectionState(StrEnum):
    WAITING = "Waiting"
    """Not started; `message` has the cause if known."""
    RUNNING = "Running"
    DONE = "Done"
    """`inspection` has the facts, or a classified reason."""
    FAILED = "Failed"
    """Ended without a result; `message` says how."""
    GONE = "Gone"
    """Being deleted without a result: the Job's deadline passed, or the pod was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionFacts:
    """The pod of an inspection, which is not one of the service's pods."""

    namespace: str
    name: str
    uid: str
    resource_version: str = field(compare=False)
    deleting: bool
    service: str | None
    """The LLMService whose model is inspected."""
    owner_uid: str | None
    """Of its Job."""
    state: InspectionState
    since: str
    """When the state began, as the API server writes times."""
    message: str
    inspection: Inspection | None

    @classmethod
    def from_object(cls, obj: Json) -> Self:
        pod, metadata = PodFacts.from_object(obj), obj["metadata"]
        state, since, message, found = _state_of(pod, _container(obj), str(metadata.get("creationTimestamp") or ""))
        return cls(
            **identity_of(metadata),
            deleting=pod.deleting,
            service=(metadata.get("labels") or {}).get(INSPECTS_LABEL),
            owner_uid=pod.owner_uid,
            state=state,
            since=since,
            message=message,
            inspection=found,
        )


def pod_from_object(obj: Json, known: object = None) -> PodFacts | InspectionFacts:
    """A replica, or a pod that inspects a model."""
    labels = obj["metadata"].get("labels") or {}
    is_servers = SERVICE_LABEL in labels or INSPECTS_LABEL not in labels
    return PodFacts.from_object(obj) if is_servers else InspectionFacts.from_object(obj)


def _container(obj: Json) -> Json:
    """The state of the inspection's own container; service meshes may add others."""
    statuses = (obj.get("status") or {}).get("containerStatuses") or ()
    return next((c.get("state") or {} for c in statuses if c.get("name") == INSPECT_CONTAINER), {})


def _state_of(pod: PodFacts, container: Json, created: str) -> tuple[InspectionState, str, str, Inspection | None]:
    ended, running = container.get("terminated"), container.get("running")
    if ended:
        text = text_of(ended.get("message"))
        found, finished = Inspection.from_json(text), str(ended.get("finishedAt") or created)
        if found is not None:
            return InspectionState.DONE, finished, "", found
        return InspectionState.FAILED, finished, _end(ended, text), None
    if pod.deleting:
        return InspectionState.GONE, created, pod.message, None
    if pod.phase == "Failed":
        return InspectionState.FAILED, created, f"{pod.reason or 'Failed'}: {pod.message}".rstrip(": "), None
    if running:
        return InspectionState.RUNNING, str(running.get("startedAt") or created), "", None
    return InspectionState.WAITING, created, _waits_for(pod), None


def _end(ended: Json, text: str) -> str:
    """How it ended, with the last line of its log, which has the reason of a traceback."""
    how = f"{ended.get('reason') or 'Error'}, exit code {ended.get('exitCode')}"
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    return f"{how}: {last[:300]}" if last else how


def _waits_for(pod: PodFacts) -> str:
    if pod.waiting is not None:
        return f"{pod.waiting.reason}: {pod.waiting.message}".rstrip(": ")
    if are_gates(pod.unschedulable):
        return f"it waits for {' and '.join(pod.unschedulable)}"
    if pod.unschedulable:
        return f"no node takes it: {'; '.join(pod.unschedulable)}"
    return "" if pod.scheduled else "no node has been found yet"
