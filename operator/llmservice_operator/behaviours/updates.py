"""Requested updates (llmservice.dev/update-requested): text for the status, and state of the update.

A new template may break every service that gets it. So updates run a few at a time, and a failed one holds back the
others until its spec or its annotation changes. `service/updates.py` counts those that run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmservice_operator.decision import Update
from llmservice_operator.facts.children import RevisionFacts
from llmservice_operator.inputs import UpdatePermission
from llmservice_operator.revisions.match import DesiredRevision
from llmservice_operator.revisions.selection import is_by_request

Json = Mapping[str, Any]

_NAMED = 8
RECHECK_SECONDS = 60.0
"""Seconds after which a waiting service is reconciled again without an event."""


def why_waiting(permission: UpdatePermission) -> str:
    """Why the update waits. Running updates are not named: the status would change with each of them."""
    if permission.failed or permission.failed_in_other_namespaces:
        return (
            f"The update of {_failed(permission)} failed, and the same may happen here. Edit or roll back what failed, "
            "or take its annotation llmservice.dev/update-requested away, and the next one begins."
        )
    return f"Other services are being updated, {permission.limit} at a time; this one's turn comes."


def _failed(permission: UpdatePermission) -> str:
    """Failed updates of the namespace by name, and the number of others."""
    failed, more = permission.failed, len(permission.failed) - _NAMED
    named = [", ".join(failed[:_NAMED]) + (f" and {more} more" if more > 0 else "")] if failed else []
    if count := permission.failed_in_other_namespaces:
        named.append("one service of another namespace" if count == 1 else f"{count} services of other namespaces")
    return " and of ".join(named)


def update_of(
    desired: DesiredRevision, revisions: Sequence[RevisionFacts], rollout: Json, *, waits: bool, replicas: int
) -> Update | None:
    """The state of the update for the status that is about to be written; None: none was requested, or it is done.

    A service without replicas is never rolled out and breaks nothing: it holds back no other.
    """
    if waits:
        return Update.WAITS
    if replicas == 0:
        return None
    failed = next((record for record in revisions if record.label == rollout.get("failedRevision")), None)
    if failed is not None and failed.key == desired.key and is_by_request(failed):
        return Update.FAILED
    is_done = rollout.get("stableRevision") == desired.label
    is_asked_for = desired.label != desired.key and desired.chosen.update_requested is not None
    return None if is_done or not is_asked_for else Update.RUNNING
