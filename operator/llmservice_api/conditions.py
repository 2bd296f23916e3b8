"""metav1.Condition as a value, and the order of conditions in the status."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_LONGEST_MESSAGE = 2048
"""Characters; the CRD allows 32,768."""


class ConditionType(StrEnum):
    """The conditions of an LLMService. Reconciling and Stalled are present only while true, never both.

    Autoscaled is present while the spec asks for autoscaling, RoutingReady while it asks for routing or a
    Gateway. Degraded is
    present only while true, with any of the others.
    """

    ACCEPTED = "Accepted"
    FITS = "Fits"
    AVAILABLE = "Available"
    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    AUTOSCALED = "Autoscaled"
    ROUTING_READY = "RoutingReady"
    DEGRADED = "Degraded"


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. Its reason is a Reason, or another text from a newer operator."""

    type: str
    status: str
    reason: str
    message: str
    observed_generation: int
    last_transition_time: str

    @classmethod
    def after(
        cls,
        before: Mapping[str, Any] | None,
        type_: ConditionType,
        status: ConditionStatus,
        reason: str,
        message: str,
        *,
        generation: int,
        now: str,
    ) -> "Condition":
        """The condition that follows the stored one, `before`. The transition time changes only with the status."""
        is_as_before = before is not None and before.get("status") == status
        since = str(before["lastTransitionTime"]) if is_as_before and before is not None else now
        return cls(type_, status, reason, message[:_LONGEST_MESSAGE], generation, since)

    @classmethod
    def from_object(cls, obj: Mapping[str, Any]) -> "Condition":
        return cls(
            type=str(obj.get("type", "")),
            status=str(obj.get("status", ConditionStatus.UNKNOWN)),
            reason=str(obj.get("reason", "")),
            message=str(obj.get("message", "")),
            observed_generation=int(obj.get("observedGeneration", 0)),
            last_transition_time=str(obj.get("lastTransitionTime", "")),
        )

    def to_object(self) -> dict[str, Any]:
        return {
            "type": str(self.type),
            "status": str(self.status),
            "reason": str(self.reason),
            "message": self.message,
            "observedGeneration": self.observed_generation,
            "lastTransitionTime": self.last_transition_time,
        }
