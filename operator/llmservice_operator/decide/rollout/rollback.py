"""Whether a recorded revision is to run in the place of what the spec says: it is pinned, or the spec's own failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmservice_operator.api.constants import UPDATE_REQUESTED_ANNOTATION
from llmservice_operator.api.errors import InvalidSpec, Problem
from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.revision import returned_to, spec_digest
from llmservice_operator.observe.projections.children import RevisionFacts

Json = Mapping[str, Any]

_FIELD = "spec.rollout.pinnedRevision"


@dataclass(frozen=True, slots=True)
class Rollback:
    """A recorded revision that is to run."""

    record: RevisionFacts
    service: LLMService
    """With all that needs a restart as it was when the revision was made."""
    is_whole: bool
    """The record says what it was made of; an earlier release's does not, and `service` is as the spec says."""
    failed: str | None = None
    """The revision that failed and is left for this one; None: it is pinned."""
    reason: str = ""
    """Why, after a failure."""


def rollback_for(service: LLMService, revisions: Sequence[RevisionFacts]) -> Rollback | Problem | None:
    """None: the spec decides, as it mostly does."""
    recorded = {record.label: record for record in revisions}
    rollout: Json = service.status.get("rollout") or {}
    pinned = service.spec.rollout.pinned_revision
    stable = recorded.get(str(rollout.get("stableRevision")))
    failed = rollout.get("failedRevision")
    if stable is not None and failed not in (None, stable.label) and has_failed(service):
        return _returned(service, stable, failed, _why(service.status, stable.label))
    if pinned is None:
        return None
    return _returned(service, recorded[pinned]) if pinned in recorded else _unknown(pinned, revisions)


def has_failed(service: LLMService) -> bool:
    """Whether the status remembers that what the spec asks for failed, and the spec says what to do about that."""
    rollout: Json = service.status.get("rollout") or {}
    remembered = rollout.get("failedSpec")
    return service.spec.rollout.auto_rollback and remembered is not None and remembered == digest_of(service)


def digest_of(service: LLMService) -> str:
    """By which a spec that failed is known again."""
    return spec_digest(service.spec, service.annotations.get(UPDATE_REQUESTED_ANNOTATION))


def _returned(service: LLMService, record: RevisionFacts, failed: str | None = None, reason: str = "") -> Rollback:
    made_of = (record.data().get("chosen") or {}).get("spec")
    try:
        then = replace(service, spec=returned_to(service.spec, made_of)) if made_of else service
    except InvalidSpec:
        then, made_of = service, None  # its template needs no reading
    return Rollback(record, then, is_whole=bool(made_of), failed=failed, reason=reason)


def _why(status: Json, stable: str) -> str:
    """What the status said when it failed: by now the failure itself is no longer in it."""
    rollout: Json = status.get("rollout") or {}
    if rollout.get("revision") != rollout.get("failedRevision"):
        return str(rollout.get("reason") or "")
    failure: Json = status.get("failure") or {}
    cause = f" ({failure.get('reason')}: {str(failure.get('message', '')).rstrip('.')})" if failure else ""
    return (
        f"Revision {rollout['failedRevision']} did not become ready{cause}, so revision {stable} serves again. "
        f"{Reason.ROLLED_BACK.remedy}"
    )[:_LIMIT]


_LIMIT = 4096
"""What the CRD takes."""


def _unknown(pinned: str, revisions: Sequence[RevisionFacts]) -> Problem:
    latest_first = sorted(revisions, key=lambda record: -record.revision)
    there = ", ".join(record.label for record in latest_first) or "none"
    return Problem(
        _FIELD,
        f"No revision {pinned} is recorded; there are, the latest first: {there}.",
        "Name one of them, or remove the field to go on with the spec.",
        Reason.REVISION_NOT_FOUND,
    )
