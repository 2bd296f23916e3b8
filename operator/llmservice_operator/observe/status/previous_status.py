"""Which revision the parts of the stored status describe: while an edit is held, some describe the edit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmservice_operator.api.reasons import Reason

Json = Mapping[str, Any]


def revision_of(status: Json) -> str:
    """The revision that serves or is rolled out; the status is written after the children."""
    return str((status.get("rollout") or {}).get("revision") or "")


def is_plan_of_another(status: Json) -> bool:
    """The plan is of an edit that is held, and all the rest of the revision that serves."""
    reasons = (c.get("reason") for c in status.get("conditions") or () if c.get("type") == "Ready")
    return next(reasons, None) == Reason.DOES_NOT_FIT


def plan_of(revision: str, status: Json) -> Json | None:
    """The stored plan of this revision; None: there is none."""
    if revision_of(status) != revision or is_plan_of_another(status):
        return None
    plan: Json | None = status.get("plan")
    return plan
