"""The condition Degraded: something is wrong beside all else that the status says, and the rest goes on.

A part of the operator's work on a service raises exceptions, or what runs lacks protection that the spec asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmservice_operator.api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.timestamps import rfc3339
from llmservice_operator.decide.decision import Decision, Event
from llmservice_operator.decide.inputs import Inputs
from llmservice_operator.decide.rollout.selection import Selection

Json = Mapping[str, Any]


def with_degraded(decision: Decision, inputs: Inputs) -> Decision:
    """The decision, with the condition Degraded as long as there is a reason for it."""
    found, parent = _found(inputs), inputs.parent
    stored = parent.get("status") or {}
    conditions = stored.get("conditions") or ()
    before = next((c for c in conditions if c.get("type") == ConditionType.DEGRADED), None)
    if found is None and before is None:
        return decision
    status = dict(decision.status if decision.status is not None else stored)
    rest = [c for c in status.get("conditions") or () if c.get("type") != ConditionType.DEGRADED]
    if found is not None:
        (reason, message), generation = found, int(parent["metadata"].get("generation") or 0)
        now = rfc3339(inputs.now)
        degraded = Condition.after(
            before, ConditionType.DEGRADED, ConditionStatus.TRUE, reason, message, generation=generation, now=now
        )
        rest.append(degraded.to_object())
    if rest == list(conditions) and {**status, "conditions": conditions} == {**stored, "conditions": conditions}:
        return replace(decision, status=None, events=())
    events = decision.events
    if found is not None and before is None:
        events = (*events, Event("Warning", found[0], rest[-1]["message"]))
    return replace(decision, status={**status, "conditions": rest}, events=events)


def _found(inputs: Inputs) -> tuple[Reason, str] | None:
    """Reason and message; errors of the operator come first, since they may hide the rest."""
    if evidence := inputs.internal_errors:
        reason = Reason.INTERNAL_ERROR
        return reason, f"{reason.summary} {evidence}. {reason.remedy}"
    selection = inputs.selection if inputs.service is not None else None
    back = selection.rollback if isinstance(selection, Selection) else None
    if back is None or not back.lacks or back.is_protected:
        return None
    names = ", ".join(f"spec.{field}" for field in back.lacks)
    reason = Reason.REVISION_UNPROTECTED
    return reason, f"Revision {back.record.label} runs without {names} of the spec. {reason.remedy}"
