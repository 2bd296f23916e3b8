"""The conditions of an LLMService, each a pure function of what was observed and decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmservice_operator.api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_operator.api.reasons import Reason
from llmservice_operator.observe.failures.status_failure import StatusFailure
from llmservice_operator.observe.rollout.progress import Progress
from llmservice_operator.observe.status.verdict import Subject, Verdict

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Draft:
    type: ConditionType
    status: bool | ConditionStatus
    reason: Reason
    message: str


def conditions(
    subject: Subject,
    verdict: Verdict,
    progress: Progress,
    failure: StatusFailure | None,
    adapters: Sequence[Json],
    now: str,
) -> list[dict[str, Any]]:
    """All conditions in their order; a transition time moves only with its status."""
    before = {c.get("type"): c for c in subject.previous.get("conditions") or ()}
    drafts = _drafts(verdict, progress, failure, _unserved(adapters))
    return [_condition(item, subject, before.get(str(item.type)), now).to_object() for item in drafts]


def _condition(draft: _Draft, subject: Subject, before: Json | None, now: str) -> Condition:
    status = draft.status
    if isinstance(status, bool):
        status = ConditionStatus.TRUE if status else ConditionStatus.FALSE
    return Condition.after(
        before, draft.type, status, draft.reason, draft.message, generation=subject.generation, now=now
    )


def _drafts(verdict: Verdict, progress: Progress, failure: StatusFailure | None, unserved: str) -> Iterator[_Draft]:
    yield _accepted(verdict)
    if verdict.fitness is not None:
        yield _Draft(ConditionType.FITS, verdict.fitness.status, verdict.fitness.reason, verdict.fitness.message)
    yield _available(verdict, progress)
    if verdict.autoscaled is not None:
        scaled = verdict.autoscaled
        yield _Draft(ConditionType.AUTOSCALED, scaled.status, scaled.reason, scaled.message)
    ready = _ready(verdict, progress, failure)
    if ready.status:
        ready = replace(ready, message=ready.message + unserved)
    yield ready
    if ready.status or ready.reason is Reason.PAUSED:
        return
    is_stalled = _is_stalled(verdict, progress, failure)
    yield _Draft(ConditionType.STALLED if is_stalled else ConditionType.RECONCILING, True, ready.reason, ready.message)


def _unserved(adapters: Sequence[Json]) -> str:
    """The base model serves without them, so they change no condition."""
    names = [item["name"] for item in adapters if item.get("message")]
    return f" Adapters that are not served: {', '.join(names)}; status.adapters says why." if names else ""


def _accepted(verdict: Verdict) -> _Draft:
    if verdict.problems:
        message = " ".join(map(str, verdict.problems))
        return _Draft(ConditionType.ACCEPTED, False, verdict.problems[0].reason, message)
    reason = Reason.PAUSED if verdict.paused else Reason.VALID
    return _Draft(ConditionType.ACCEPTED, True, reason, reason.summary)


def _available(verdict: Verdict, progress: Progress) -> _Draft:
    if progress.answering:
        return _Draft(ConditionType.AVAILABLE, True, Reason.REPLICAS_READY, Reason.REPLICAS_READY.summary)
    reason, message = Reason.NO_REPLICA_READY, Reason.NO_REPLICA_READY.summary
    if progress.unlisted:
        reason, message = Reason.NO_ENDPOINTS, Reason.NO_ENDPOINTS.summary
    elif not progress.wanted:
        reason, message = _at_zero(verdict)
    return _Draft(ConditionType.AVAILABLE, False, reason, message)


def _at_zero(verdict: Verdict) -> tuple[Reason, str]:
    """Why no replica is to run; where requests are held, what one would do."""
    if verdict.held_seconds is None:
        return Reason.SCALED_TO_ZERO, Reason.SCALED_TO_ZERO.summary
    return Reason.IDLE, f"{Reason.IDLE.summary} It is held for up to {verdict.held_seconds} s."


def _ready(verdict: Verdict, progress: Progress, failure: StatusFailure | None) -> _Draft:
    """No replica where none is asked for is as asked: a deployment tool that waits for Ready would wait for ever."""
    reason, message = _ready_reason(verdict, progress, failure)
    return _Draft(ConditionType.READY, reason in _AS_ASKED_FOR, reason, message)


_AS_ASKED_FOR = (Reason.ROLLED_OUT, Reason.SCALED_TO_ZERO, Reason.IDLE)


def _ready_reason(verdict: Verdict, progress: Progress, failure: StatusFailure | None) -> tuple[Reason, str]:
    """Rolled out, or the first thing that stands in the way of it, from the spec down to the pods."""
    if verdict.problems:
        return verdict.problems[0].reason, str(verdict.problems[0])
    if verdict.obstacle is not None and not verdict.paused:
        return verdict.obstacle.reason, verdict.obstacle.sentence()
    if progress.is_rolled_out and not verdict.is_pending:
        return (Reason.ROLLED_OUT, Reason.ROLLED_OUT.summary) if progress.wanted else _at_zero(verdict)
    if verdict.paused:
        return Reason.PAUSED, Reason.PAUSED.summary
    if progress.is_rolled_out or (progress.is_unsettled and verdict.is_pending):
        return Reason.PROGRESSING, "Children are being brought to what the spec asks for."
    if failure is not None:
        return failure.reason, failure.sentence()
    return progress.reason, progress.message


def _is_stalled(verdict: Verdict, progress: Progress, failure: StatusFailure | None) -> bool:
    """As for the reason: what keeps the spec back comes before how an earlier revision fared."""
    if verdict.problems:
        return True
    if verdict.obstacle is not None and not verdict.paused:
        # What waits for a place is of this revision, and waits no longer than a rollout may take.
        is_late = verdict.obstacle.reason is Reason.WAITING_FOR_GPU and progress.is_overdue
        return verdict.obstacle.is_final or is_late
    # A quota stops a new pod beside the old ones: what they give up may be enough, and meanwhile they answer.
    is_passing = failure is not None and failure.reason is Reason.QUOTA_EXCEEDED and progress.answering > 0
    return progress.is_overdue or (failure is not None and failure.is_final and not is_passing)
