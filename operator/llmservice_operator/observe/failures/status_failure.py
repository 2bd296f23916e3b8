"""A failure as a value, written to and read from status.failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from llmservice_api.reasons import Reason
from llmservice_runtime.failures.reasons import Ends

Json = Mapping[str, Any]

LINE_LIMIT = 1024
_TEXT_LIMIT = 2048
_LINES_LIMIT = 32
"""Limits of the CRD, which would otherwise refuse the whole status."""
ENDS_BY_TIME = frozenset(str(reason) for reason in Reason if reason.row.ends is Ends.BY_TIME)
NO_POD = "No pod can be made"
"""Start of the message of a workload's failure, which has the same reasons as the refusal of a child."""
_PATIENCE = 3
"""Restarts after which a failure that might pass counts as final."""
LASTS_AFTER = 600.0
"""Seconds after which it counts as final where nothing restarts."""


@dataclass(frozen=True, slots=True)
class StatusFailure:
    reason: Reason
    message: str
    remedy: str
    since: str = ""
    pod: str | None = None
    evidence: tuple[str, ...] = ()
    restarts: int = 0
    lasted: float = field(default=0.0, compare=False)
    """Seconds since it began."""

    @property
    def is_final(self) -> bool:
        """Whether it lasts until somebody changes something."""
        ends = self.reason.row.ends
        if ends is Ends.BY_TIME and self.lasted >= LASTS_AFTER:
            return True
        return ends is Ends.BY_CHANGE or (ends in (Ends.BY_RESTART, Ends.BY_TIME) and self.restarts >= _PATIENCE)

    def sentence(self) -> str:
        """What happened and what to do, in one line."""
        end = "" if self.message.rstrip().endswith((".", "!", "?")) else "."
        return f"{self.message.rstrip()}{end} {self.remedy}".strip()

    def to_object(self) -> dict[str, Any]:
        message, remedy = self.message[:_TEXT_LIMIT], self.remedy[:_TEXT_LIMIT]
        obj: dict[str, Any] = {"reason": str(self.reason), "message": message, "remedy": remedy}
        if self.pod is not None:
            obj["pod"] = self.pod
        obj["since"] = self.since
        if self.evidence:
            obj["evidence"] = [line[:LINE_LIMIT] for line in self.evidence[:_LINES_LIMIT]]
        return obj

    @classmethod
    def from_object(cls, obj: Json) -> StatusFailure | None:
        """From status.failure; None where the reason is another version's, or the time is invalid."""
        try:
            reason = Reason(str(obj.get("reason", "")))
            datetime.fromisoformat(str(obj.get("since", "")))
        except ValueError:
            return None
        return cls(
            reason=reason,
            message=str(obj.get("message", "")),
            remedy=str(obj.get("remedy", "")),
            since=str(obj.get("since", "")),
            pod=obj.get("pod"),
            evidence=tuple(obj.get("evidence") or ()),
        )


def since_of(reason: Reason, previous: Json | None, now: str) -> str:
    """The start of `previous` if it has the same reason, else `now`."""
    is_same = previous is not None and previous.get("reason") == reason
    return str(previous.get("since") or now) if is_same and previous is not None else now


def status_failure(reason: Reason, message: str, **more: Any) -> StatusFailure:
    """A failure with the reason's own remedy."""
    return StatusFailure(reason, message, reason.remedy, **more)
