"""status.rollout: what runs, what ran before, what failed and what waits. It is also the memory of a rollback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.status import MOST_GATED
from llmservice_operator.observe.failures.status_failure import StatusFailure
from llmservice_operator.observe.rollout.progress import Progress

Json = Mapping[str, Any]

_OF_OTHERS = frozenset(
    {Reason.QUOTA_EXCEEDED, Reason.IMAGE_PULL_FAILED, Reason.REGISTRY_UNAVAILABLE, Reason.NODE_DISK_FULL}
    | {Reason.POD_SANDBOX_FAILED, Reason.DRIVER_UNAVAILABLE, Reason.INJECTED_CONTAINER_FAILED}
)
"""A quota is short until an old pod is gone, a registry may answer soon, another node may have room and a driver, and
what others add to the pods is in those of every revision."""

_LIMIT = 4096
"""What the CRD takes."""


@dataclass(frozen=True, slots=True)
class Rolling:
    """What was decided about how a revision takes the place of the one before."""

    strategy: str = ""
    reason: str = ""
    """Why this strategy, as long as it matters."""
    gap: str = ""
    """What becomes of requests while no replica answers; empty: what was said of this rollout stands."""
    kept: str = ""
    """What of today's spec a rollback kept, for as long as it runs."""
    pinned: bool = False
    """spec.rollout.pinnedRevision names the revision, or the one that it was made of."""
    failed: str | None = None
    """The revision that an automatic rollback left; the status is then about the one in its place."""
    spec: str | None = None
    """Hash of the spec, to know it again should it fail; None: nobody asked for a rollback."""
    update_pending: bool = False
    update_waiting: str = ""
    """Why an update that was asked for has not begun."""
    update_blocked: str = ""
    """Why this release would not make the revision that runs."""


def rollout_of(
    rolling: Rolling,
    revision: str,
    moment: Progress,
    failure: StatusFailure | None,
    *,
    is_pending: bool,
    previous: Json,
) -> dict[str, Any]:
    """The value of status.rollout. `is_pending`: a child is not what it should be, so nothing counts as rolled out."""
    status: dict[str, Any] = {"strategy": rolling.strategy, "revision": revision}
    is_rolled_out = moment.is_rolled_out and not is_pending and moment.wanted > 0
    stable = revision if is_rolled_out else previous.get("stableRevision")
    is_new = stable != revision
    is_failing = is_new and not moment.is_rolled_out and (moment.is_overdue or _is_its_own(failure))
    # One that ran before and comes back is not new, and yet it may be about to leave a gap.
    reason = rolling.reason if is_new or rolling.failed or not moment.is_rolled_out else ""
    if rolling.kept and rolling.kept not in reason:  # what a rollback says of itself is read from here again
        reason = f"{reason} {rolling.kept}".strip()
    if reason:
        status["reason"] = reason[:_LIMIT]
    said = previous.get("gap") if previous.get("revision") == revision and not moment.answering else None
    if gap := rolling.gap or said:
        status["gap"] = gap
    if stable:
        status["stableRevision"] = stable
    if rolling.pinned:
        status["pinned"] = True
    if rolling.failed or is_failing:
        status["failedRevision"] = rolling.failed or revision
        if rolling.spec is not None and stable:
            status["failedSpec"] = rolling.spec
    if rolling.update_pending:
        status["updatePending"] = True
    if rolling.update_waiting:
        status["updateWaiting"] = rolling.update_waiting
    if moment.gates:
        kept = [*moment.gates.items()][:MOST_GATED]
        status["gatedPods"] = sorted(f"{uid} {until}".strip() for uid, until in kept)
    if rolling.update_blocked:
        status["updateBlocked"] = rolling.update_blocked[:_LIMIT]
    return status


def _is_its_own(failure: StatusFailure | None) -> bool:
    """Whether the revision has failed, and not only found no way yet: what is about others has until the deadline."""
    return failure is not None and failure.is_final and failure.reason not in _OF_OTHERS


def stored_rolling(previous: Json) -> Rolling:
    """From status.rollout as stored: an edit that is held or refused changes no rollout."""
    return Rolling(
        strategy=str(previous.get("strategy") or ""),
        reason=str(previous.get("reason") or ""),
        pinned=bool(previous.get("pinned")),
        failed=previous.get("failedRevision") if "failedSpec" in previous else None,
        spec=previous.get("failedSpec"),
        update_pending=bool(previous.get("updatePending")),
    )
