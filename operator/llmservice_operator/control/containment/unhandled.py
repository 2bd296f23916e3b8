"""The status of a service on which the operator failed: conditions that are made without computing anything anew.

Where the reconcile itself failed, what it would say is not known: Ready is Unknown and Stalled is True, and everything
else stays as it was last known, with the generation that it is about. Where only a part failed, the rest of the status
is current, and Degraded is True beside it (`decide.degraded`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from llmservice_operator.api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.service import Key
from llmservice_operator.api.timestamps import rfc3339
from llmservice_operator.control.containment.internal_errors import Part
from llmservice_operator.control.context import Context
from llmservice_operator.control.status_writer import write_event, write_status
from llmservice_operator.control.watch.kinds import PARENT
from llmservice_operator.decide.decision import Event
from llmservice_operator.process.log import ObjectLogger

Json = Mapping[str, Any]

_OURS = frozenset(ConditionType)


async def report_unhandled(reason: Reason, evidence: str, key: Key, ctx: Context, log: ObjectLogger) -> None:
    """Write the conditions and one Event, unless the stored status has them already: then the metrics show those."""
    parent = ctx.cache.get(PARENT, *key)
    if parent is None or parent.deleting:
        return
    message = f"{reason.summary} {evidence} {reason.remedy}"
    status = stalled_status(parent.obj["status"], parent.content["generation"] or 0, reason, message, ctx.now())
    if status is None:
        with ctx.errors.contained(Part.BOOKKEEPING, key, "metrics"):
            ctx.metrics.set_status(key, parent.obj["status"])
    else:
        await write_status(status, parent, ctx, ctx.memory(key, parent.uid))
        await write_event(Event("Warning", reason, message), parent, ctx, log)


def stalled_status(stored: Json, generation: int, reason: Reason, message: str, now: datetime) -> dict[str, Any] | None:
    """The stored status with Ready Unknown and Stalled True; None where it says so of this generation already.

    The message is not compared: two errors in turn would write each other's for ever.
    """
    before = {c.get("type"): c for c in stored.get("conditions") or ()}
    if all(
        (found.get("status"), found.get("reason"), found.get("observedGeneration")) == (status, reason, generation)
        for found, status in ((before.get("Ready") or {}, "Unknown"), (before.get("Stalled") or {}, "True"))
    ):
        return None

    def made(type_: ConditionType, status: ConditionStatus) -> dict[str, Any]:
        since = before.get(type_)
        made = Condition.after(since, type_, status, reason, message, generation=generation, now=rfc3339(now))
        return made.to_object()

    kept = [c for type_, c in before.items() if type_ in _OURS - {"Ready", "Reconciling", "Stalled"}]
    conditions = [
        *kept,
        made(ConditionType.READY, ConditionStatus.UNKNOWN),
        made(ConditionType.STALLED, ConditionStatus.TRUE),
    ]
    return {**stored, "observedGeneration": generation, "conditions": conditions}
