"""Whether a condition is met, cannot be met, or may yet be: one LLMService as the API server has it, judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from llmservice_operator.api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_operator.api.reasons import Reason

from llmservice_cli.api import Json
from llmservice_cli.services import conditions_of, is_outdated
from llmservice_cli.text import duration

AWAITED = (ConditionType.READY, ConditionType.AVAILABLE, ConditionType.ACCEPTED)


class Outcome(Enum):
    """What is known of the condition."""

    MET = "met"
    IMPOSSIBLE = "impossible"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Assessment:
    """What one version of the object says about the condition."""

    outcome: Outcome
    reason: str
    message: str = ""
    remedy: str = ""
    phase: str = ""
    """Of a pod that starts; empty where none does."""
    percent: int | None = None
    """How much of the phase is done, where that is known."""
    left: float | None = None
    """Seconds that the rest of it will take."""

    def __str__(self) -> str:
        share = "" if self.percent is None else f"{self.percent} %"
        left = "" if self.left is None else f"about {duration(self.left)} left"
        details = ", ".join(filter(None, (self.phase, share, left)))
        where = f"{self.reason} ({details})" if details else self.reason
        return f"{where}: {self.message}" if self.message else where


def assess(service: Json | None, wanted: ConditionType, *, was_there: bool) -> Assessment:
    """Only what the operator says of the current generation counts; `service` is None where there is none."""
    if service is None:
        if was_there:
            return Assessment(Outcome.IMPOSSIBLE, "Deleted", "It was deleted.", "Apply it again.")
        return Assessment(Outcome.OPEN, "NotFound", "There is no such LLMService yet.")
    if service["metadata"].get("deletionTimestamp") is not None:
        return Assessment(Outcome.IMPOSSIBLE, "Deleting", "It is being deleted.", "Apply it again when it is gone.")
    if is_outdated(service):
        return Assessment(Outcome.OPEN, "NotObserved", "The operator has not reconciled the latest change yet.")
    found = {condition.type: condition for condition in conditions_of(service)}
    condition = found.get(wanted)
    if condition is not None and condition.status == ConditionStatus.TRUE and _is_of_now(condition, service):
        return Assessment(Outcome.MET, condition.reason, condition.message)
    return _unmet(service, found, condition)


def _is_of_now(condition: Condition, service: Json) -> bool:
    """Where evaluating an edit failed, the conditions that were not evaluated stay those of the generation before."""
    return condition.observed_generation >= int(service["metadata"].get("generation", 0))


def _unmet(service: Json, found: Mapping[str, Condition], condition: Condition | None) -> Assessment:
    stalled, ready = found.get(ConditionType.STALLED), found.get(ConditionType.READY)
    if stalled is not None and stalled.status == ConditionStatus.TRUE:
        return _impossible(service, stalled)
    if ready is not None and ready.reason == Reason.PAUSED:
        return _impossible(service, ready)
    if condition is not None and condition.reason in (Reason.SCALED_TO_ZERO, Reason.IDLE):
        return _impossible(service, condition)
    shown = found.get(ConditionType.RECONCILING) or ready or condition
    if shown is None:
        return Assessment(Outcome.OPEN, "NotObserved", "The operator has not written its conditions yet.")
    progress = (service.get("status") or {}).get("progress") or {}
    percent, left = progress.get("percent"), progress.get("etaSeconds")
    phase = str(progress.get("phase") or "")
    return Assessment(Outcome.OPEN, shown.reason, shown.message, phase=phase, percent=percent, left=left)


def _impossible(service: Json, why: Condition) -> Assessment:
    """With the remedy of the failure itself, where one is recorded; else that of the reason."""
    failure = (service.get("status") or {}).get("failure") or {}
    remedy = str(failure.get("remedy") or "") if failure.get("reason") == why.reason else ""
    if not remedy and why.reason in set(Reason):
        remedy = Reason(why.reason).remedy
    return Assessment(Outcome.IMPOSSIBLE, why.reason, why.message, "" if remedy in why.message else remedy)
