"""The priority of a service in the work queue, from its stored status."""

from __future__ import annotations

from llmservice_operator.api.conditions import ConditionType
from llmservice_operator.control.queue.work_queue import Priority
from llmservice_operator.control.watch.kinds import ParentFacts


def of_itself(parent: ParentFacts | None) -> Priority:
    """Of an LLMService that changed, or that is found at a start.

    The same for both: what was edited while nobody looked is served before the thousands that are well.
    """
    if parent is None or parent.deleting:
        return Priority.REST
    if has_no_status(parent):
        return Priority.NEW
    return (
        Priority.REST if parent.obj["status"]["observedGeneration"] == parent.content["generation"] else Priority.EDITED
    )


def of_children(parent: ParentFacts | None) -> Priority:
    """Of a service to whose children something happened."""
    if parent is None or parent.deleting:
        return Priority.REST
    conditions = parent.obj["status"].get("conditions") or ()
    serves = any((c.get("type"), c.get("status")) == (ConditionType.AVAILABLE, "True") for c in conditions)
    return Priority.SERVES if serves else Priority.REST


def has_no_status(parent: ParentFacts) -> bool:
    """Whether no status was ever written: it has no observedGeneration then, or the CRD's default, -1."""
    return bool(parent.obj["status"].get("observedGeneration", -1) < 0)
