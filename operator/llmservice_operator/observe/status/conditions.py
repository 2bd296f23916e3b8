"""The conditions of an LLMService, each a pure function of what was observed and decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmservice_operator.api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_operator.api.reasons import Reason
from llmservice_operator.observe.failures.status_failure import Trouble
from llmservice_operator.observe.rollout.progress import Progress
from llmservice_operator.observe.status.verdict import Subject, Verdict

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Told:
    type: ConditionType
    status: bool | ConditionStatus
    reason: Reason
    message: str


def conditions(
    subject: Subject,
    verdict: Verdict,
    progress: Progress,
    trouble: Trouble | None,
    adapters: Sequence[Json],
    now: str,
) -> list[dict[str, Any]]:
    """All conditions in their order; a transition time moves only with its status."""
    before = {c.get("type"): c for c in subject.previous.get("conditions") or ()}
    told = _told(verdict, progress, trouble, _unserved(adapters))
    return [_condition(item, subject, before.get(str(item.type)), now).to_object() for item in told]


def _condition(told: _Told, subject: Subject, before: Json | None, now: str) -> Condition:
    status = told.status
    if isinstance(status, bool):
        status = ConditionStatus.TRUE if status else ConditionStatus.FALSE
    return Condition.after(before, told.type, status, told.reason, told.message, generation=subject.generation, now=now)


def _told(verdict: Verdict, progress: Progress, trouble: Trouble | None, unserved: str) -> Iterator[_Told]:
    yield _accepted(verdict)
    if verdict.fitness is not None:
        yield _Told(ConditionType.FITS, verdict.fitness.status, verdict.fitness.reason, verdict.fitness.message)
    yield _available(progress)
    ready = _ready(verdict, progress, trouble)
    if ready.status:
        ready = replace(ready, message=ready.message + unserved)
    yield ready
    if ready.status or ready.reason is Reason.PAUSED:
        return
    is_stalled = _is_stalled(verdict, progress, trouble)
    yield _Told(ConditionType.STALLED if is_stalled else ConditionType.RECONCILING, True, ready.reason, ready.message)


def _unserved(adapters: Sequence[Json]) -> str:
    """The base model serves without them, so they change no condition."""
    names = [item["name"] for item in adapters if item.get("message")]
    return f" Adapters that are not served: {', '.join(names)}; status.adapters says why." if names else ""


def _accepted(verdict: Verdict) -> _Told:
    if verdict.problems:
        message = " ".join(map(str, verdict.problems))
        return _Told(ConditionType.ACCEPTED, False, verdict.problems[0].reason, message)
    reason = Reason.PAUSED if verdict.paused else Reason.VALID
    return _Told(ConditionType.ACCEPTED, True, reason, reason.summary)


def _available(progress: Progress) -> _Told:
    if progress.answering:
        return _Told(ConditionType.AVAILABLE, True, Reason.REPLICAS_READY, Reason.REPLICAS_READY.summary)
    reason = Reason.NO_REPLICA_READY if progress.wanted else Reason.SCALED_TO_ZERO
    if progress.unlisted:
        reason = Reason.NO_ENDPOINTS
    return _Told(ConditionType.AVAILABLE, False, reason, reason.summary)


def _ready(verdict: Verdict, progress: Progress, trouble: Trouble | None) -> _Told:
    """No replica where none is asked for is as asked: a deployment tool that waits for Ready would wait for ever."""
    reason, message = _standing(verdict, progress, trouble)
    return _Told(ConditionType.READY, reason in (Reason.ROLLED_OUT, Reason.SCALED_TO_ZERO), reason, message)


def _standing(verdict: Verdict, progress: Progress, trouble: Trouble | None) -> tuple[Reason, str]:
    """Rolled out, or the first thing that stands in the way of it, from the spec down to the pods."""
    if verdict.problems:
        return verdict.problems[0].reason, str(verdict.problems[0])
    if verdict.obstacle is not None and not verdict.paused:
        return verdict.obstacle.reason, verdict.obstacle.sentence()
    if progress.is_rolled_out and not verdict.is_pending:
        reason = Reason.ROLLED_OUT if progress.wanted else Reason.SCALED_TO_ZERO
        return reason, reason.summary
    if verdict.paused:
        return Reason.PAUSED, Reason.PAUSED.summary
    if progress.is_rolled_out or (progress.is_unsettled and verdict.is_pending):
        return Reason.PROGRESSING, "Children are being brought to what the spec asks for."
    if trouble is not None:
        return trouble.reason, trouble.sentence()
    return progress.reason, progress.message


def _is_stalled(verdict: Verdict, progress: Progress, trouble: Trouble | None) -> bool:
    """As for the reason: what keeps the spec back comes before how an earlier revision fared."""
    if verdict.problems:
        return True
    if verdict.obstacle is not None and not verdict.paused:
        # What waits for a place is of this revision, and waits no longer than a rollout may take.
        is_late = verdict.obstacle.reason is Reason.WAITING_FOR_GPU and progress.is_overdue
        return verdict.obstacle.is_final or is_late
    # A quota stops a new pod beside the old ones: what they give up may be enough, and meanwhile they answer.
    is_passing = trouble is not None and trouble.reason is Reason.QUOTA_EXCEEDED and progress.answering > 0
    return progress.is_overdue or (trouble is not None and trouble.is_final and not is_passing)
