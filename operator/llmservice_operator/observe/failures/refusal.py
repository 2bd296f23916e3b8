"""Failures before any pod: a name that another owner has, and a child that the API server refuses.

An invalid spec is no failure: nothing was tried, the condition Accepted shows it, and it should cause no alert.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmservice_operator.api.reasons import Reason
from llmservice_operator.observe.failures.status_failure import NO_POD, StatusFailure, since_of, status_failure
from llmservice_operator.observe.status.verdict import Verdict

Json = Mapping[str, Any]

_REFUSED = frozenset(
    {Reason.QUOTA_EXCEEDED, Reason.LIMIT_RANGE_EXCEEDED, Reason.ADMISSION_REFUSED, Reason.ADMISSION_UNAVAILABLE}
    | {Reason.API_SERVER_FAILING}
)
_LIMIT_RANGE = re.compile(
    r"\b(?:minimum|maximum) [^ ]+ usage per (?:Container|Pod|PersistentVolumeClaim) is "
    r"|\bmax limit to request ratio per |must be less than or equal to [^ ]+ limit of "
)
"""What the admission plugin LimitRanger says. It names no LimitRange, and nothing at all where a default of one is
below a request: then the API server finds the two to contradict each other."""

_NOBODY_ANSWERS = "failed calling webhook"
"""A webhook that answers no, says `admission webhook ... denied the request`."""


def reason_of(message: str) -> Reason:
    """Of the words, as `normalize.replica_failure` leaves them, by which a child or a pod was refused."""
    if message.startswith("quota ") and " is used up: " in message:
        return Reason.QUOTA_EXCEEDED
    if _LIMIT_RANGE.search(message):
        return Reason.LIMIT_RANGE_EXCEEDED
    return Reason.ADMISSION_UNAVAILABLE if _NOBODY_ANSWERS in message else Reason.ADMISSION_REFUSED


def refusal_of(verdict: Verdict, previous: Json | None, now: str) -> StatusFailure | None:
    """The failure for which children were refused; None: none was. `previous`: status.failure as stored."""
    conflicts = [problem for problem in verdict.problems if problem.reason is Reason.NAME_CONFLICT]
    known = previous if is_refusal(previous) else None
    if conflicts:
        message, evidence = (" ".join(p.message for p in conflicts), tuple(p.evidence for p in conflicts))
        since = since_of(Reason.NAME_CONFLICT, known, now)
        return status_failure(Reason.NAME_CONFLICT, message, since=since, evidence=evidence)
    obstacle = verdict.obstacle
    if verdict.problems or verdict.paused or obstacle is None or obstacle.reason not in _REFUSED:
        return None
    since = since_of(obstacle.reason, known, now)
    return StatusFailure(obstacle.reason, obstacle.message, obstacle.remedy, since=since, evidence=obstacle.evidence)


def is_refusal(failure: Json | None) -> bool:
    """Whether this failure is one of those here. A quota refuses pods too, and by the same reason."""
    reason, message = (failure or {}).get("reason"), str((failure or {}).get("message", ""))
    return reason == Reason.NAME_CONFLICT or (reason in _REFUSED and not message.startswith(NO_POD))
