"""Failures of a rollout that none of its pods shows: ready pods that get no request, and a deadline that passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmservice_operator.api.reasons import Reason
from llmservice_operator.observe.failures.status_failure import StatusFailure, since_of, status_failure
from llmservice_operator.observe.rollout.progress import Progress

Json = Mapping[str, Any]

_NAMED_PODS = 3


def rollout_failure(
    progress: Progress, previous: Json | None, now: str, *, overdue: str, is_applied: bool
) -> StatusFailure | None:
    """The rollout's failure, where pods have none. `previous`: the one that the status has for the desired revision.

    `overdue`: what the Deployment's controller says of the deadline, empty where it says nothing. `is_applied`: all
    children are as they should be, the Service among them.
    """
    if progress.is_overdue:
        seen = (*([f"Deployment: {overdue}"] if overdue else []), progress.message)
        reason, message = Reason.PROGRESS_DEADLINE_EXCEEDED, _overdue(progress)
        return status_failure(reason, message, since=since_of(reason, previous, now), evidence=seen)
    if is_applied and progress.is_unsettled and progress.unlisted:
        seen = tuple(f"Pod {name}: Ready, in no EndpointSlice of the Service" for name in progress.unlisted)
        reason, message = Reason.NO_ENDPOINTS, _unlisted(progress.unlisted)
        return status_failure(reason, message, since=since_of(reason, previous, now), evidence=seen)
    return None


def _overdue(progress: Progress) -> str:
    """The phase of the rollout, and whether anything serves meanwhile."""
    serves = "What served before goes on." if progress.answering else "Nothing serves."
    return f"{Reason.PROGRESS_DEADLINE_EXCEEDED.summary} {progress.message} {serves}"


def _unlisted(pods: tuple[str, ...]) -> str:
    named = ", ".join(pods[:_NAMED_PODS]) + (", ..." if len(pods) > _NAMED_PODS else "")
    return f"Ready, but not among the Service's endpoints, so that no request reaches them: {named}."
