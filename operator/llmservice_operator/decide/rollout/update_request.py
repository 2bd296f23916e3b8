"""Updates that were asked for (llmservice.dev/update-requested): which services wait, and what the status says of it.

The same new template may break every service that gets it. They get it a few at a time, therefore, and a failed update
holds back the others until its spec or its annotation changes. `control.updates` counts who has a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmservice_operator.api.service import LLMService
from llmservice_operator.decide.decision import Update
from llmservice_operator.decide.rollout.revision import DesiredRevision, RevisionMatch
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.projections.children import RevisionFacts

Json = Mapping[str, Any]

_NAMED = 8
RECHECK_SECONDS = 60.0
"""Seconds after which a waiting service is reconciled again without any event."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Whether an update that was asked for may begin: the operator lets a few services at a time."""

    is_granted: bool
    limit: int = 1
    failed: tuple[str, ...] = ()
    """Names of the namespace's own services whose update failed: until that is seen to, no other one begins."""
    failed_elsewhere: int = 0
    """How many of other namespaces did: their names are not this namespace's to know."""


def waits_on(
    service: LLMService, observed: Observed, match: RevisionMatch, revisions: Sequence[RevisionFacts]
) -> RevisionFacts | None:
    """The revision that runs on until it is this service's turn; None: the next template was not only asked for."""
    live = observed.deployment
    if live is None or live.spec_replicas == 0 or service.spec.paused:
        return None
    running = next((r for r in revisions if (r.label, r.key) == (live.revision, match.key)), None)
    if running is None or match.latest is None:
        return None
    is_begun = not match.is_update and (match.latest.label == running.label or not is_by_request(match.latest))
    return None if is_begun else running


def why_waiting(turn: Turn) -> str:
    """The same words while others take their turns: a text that named them would be written for each of those."""
    if turn.failed or turn.failed_elsewhere:
        return (
            f"The update of {_failed(turn)} failed, and the same may happen here. Edit or roll back what failed, or "
            "take its annotation llmservice.dev/update-requested away, and the next one begins."
        )
    return f"Other services are being updated, {turn.limit} at a time; this one's turn comes."


def _failed(turn: Turn) -> str:
    """Those of the namespace by name, and how many there are elsewhere."""
    more = len(turn.failed) - _NAMED
    named = [", ".join(turn.failed[:_NAMED]) + (f" and {more} more" if more > 0 else "")] if turn.failed else []
    if count := turn.failed_elsewhere:
        named.append("one service of another namespace" if count == 1 else f"{count} services of other namespaces")
    return " and of ".join(named)


def update_of(
    desired: DesiredRevision, revisions: Sequence[RevisionFacts], rollout: Json, *, waits: bool, replicas: int
) -> Update | None:
    """By the status that is about to be written; None: no update was asked for, or it is done.

    One without replicas breaks nothing, and is never rolled out: it holds back no other service.
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
    return None if is_done or not is_asked_for else Update.UNDER_WAY


def is_by_request(record: RevisionFacts) -> bool:
    """Whether the revision was made because an update was asked for: the first one of a key is called by the key."""
    return record.label != record.key and record.update_requested is not None
