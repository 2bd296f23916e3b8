"""The condition Degraded: a part of the operator's work on a service raises exceptions, and the rest goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmservice_operator.api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.timestamps import rfc3339
from llmservice_operator.decide.decision import Decision, Event
from llmservice_operator.decide.inputs import Inputs

Json = Mapping[str, Any]


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
        reason, generation = Reason.INTERNAL_ERROR, int(parent["metadata"].get("generation") or 0)
        message, now = f"{reason.summary} {evidence}. {reason.remedy}", rfc3339(inputs.now)
        degraded = Condition.after(
            before, ConditionType.DEGRADED, ConditionStatus.TRUE, reason, message, generation=generation, now=now
        )
        rest.append(degraded.to_object())
    if rest == list(conditions) and {**status, "conditions": conditions} == {**stored, "conditions": conditions}:
        return replace(decision, status=None, events=())
    events = decision.events
    if evidence and before is None:
        events = (*events, Event("Warning", Reason.INTERNAL_ERROR, rest[-1]["message"]))
    return replace(decision, status={**status, "conditions": rest}, events=events)
