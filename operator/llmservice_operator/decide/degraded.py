"""The condition Degraded: a part of the operator's work on a service raises exceptions, and the rest goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from llmservice_operator.api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_operator.api.reasons import REASONS, Reason
from llmservice_operator.decide.decision import Decision, Event
from llmservice_operator.decide.inputs import Inputs
from llmservice_operator.observe.status.status import timestamp

Json = Mapping[str, Any]

_MESSAGE_LIMIT = 2048


def with_degraded(decision: Decision, inputs: Inputs) -> Decision:
    """The decision, with the condition Degraded as long as there is evidence of errors."""
    evidence, parent = inputs.internal_errors, inputs.parent
    stored = parent.get("status") or {}
    conditions = stored.get("conditions") or ()
    before = next((c for c in conditions if c.get("type") == ConditionType.DEGRADED), None)
    if not evidence and before is None:
        return decision
    status = dict(decision.status if decision.status is not None else stored)
    rest = [c for c in status.get("conditions") or () if c.get("type") != ConditionType.DEGRADED]
    if evidence:
        doc, generation = REASONS[Reason.INTERNAL_ERROR], int(parent["metadata"].get("generation") or 0)
        message, reason = f"{doc.summary} {evidence}. {doc.remedy}", Reason.INTERNAL_ERROR
        degraded = condition_since(
            ConditionType.DEGRADED, ConditionStatus.TRUE, reason, message, generation, before, inputs.now
        )
        rest.append(degraded)
    if rest == list(conditions) and {**status, "conditions": conditions} == {**stored, "conditions": conditions}:
        return replace(decision, status=None, events=())
    events = decision.events
    if evidence and before is None:
        events = (*events, Event("Warning", Reason.INTERNAL_ERROR, rest[-1]["message"]))
    return replace(decision, status={**status, "conditions": rest}, events=events)


def condition_since(
    type_: ConditionType,
    status: ConditionStatus,
    reason: Reason,
    message: str,
    generation: int,
    before: Json | None,
    now: datetime,
) -> dict[str, Any]:
    """A condition as JSON; the time of its last transition is that of `before` while its status stays."""
    is_as_before = before is not None and before.get("status") == status
    since = str(before["lastTransitionTime"]) if is_as_before and before is not None else timestamp(now)
    return Condition(type_, status, reason, message[:_MESSAGE_LIMIT], generation, since).to_object()
