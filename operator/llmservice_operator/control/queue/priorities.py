"""Which services are looked at first, where many wait: read off what their status says of them."""

from __future__ import annotations

from llmservice_operator.api.conditions import ConditionType
from llmservice_operator.control.queue.work_queue import Rank
from llmservice_operator.control.watch.kinds import ParentFacts


def of_itself(parent: ParentFacts | None) -> Rank:
    """Of an LLMService that changed, or that is found at a start.

    The same for both: what was edited while nobody looked is served before the thousands that are well.
    """
    if parent is None or parent.deleting:
        return Rank.REST
    if is_untold(parent):
        return Rank.NEW
    return Rank.REST if parent.obj["status"]["observedGeneration"] == parent.content["generation"] else Rank.EDITED


def of_children(parent: ParentFacts | None) -> Rank:
    """Of a service to whose children something happened."""
    if parent is None or parent.deleting:
        return Rank.REST
    conditions = parent.obj["status"].get("conditions") or ()
    serves = any((c.get("type"), c.get("status")) == (ConditionType.AVAILABLE, "True") for c in conditions)
    return Rank.SERVES if serves else Rank.REST


def is_untold(parent: ParentFacts) -> bool:
    """Whether no status was ever written: it has no observedGeneration then, or the CRD's default, -1."""
    return bool(parent.obj["status"].get("observedGeneration", -1) < 0)
