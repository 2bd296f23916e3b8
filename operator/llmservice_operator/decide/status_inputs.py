"""What a status needs that no watch tells: Events of pods in doubt, and who holds the GPUs that are missing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from llmservice_operator.api.reasons import Reason
from llmservice_operator.decide.decision import EventsOf, Lack, RoomFor, soonest
from llmservice_operator.observe.failures import scheduling
from llmservice_operator.observe.failures.pod_events import Doubt, doubt
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.status.verdict import Verdict

Json = Mapping[str, Any]

REFRESH_SECONDS = 60.0
"""So long what was told of free GPUs stands; figures that moved with every pod would be written all the time."""


def lack_of(observed: Observed, verdict: Verdict, status: Json, now: datetime) -> Lack | None:
    """What to find out before this status is told."""
    names = _doubt(observed, verdict, now).pods
    if names and observed.pod_events is None:
        return EventsOf(names)
    wanted = scheduling.wanted_of(verdict.effective)
    if observed.room is None and (_is_short(status) or _is_ambiguous(status)):
        return RoomFor(wanted.resource if wanted is not None else None, REFRESH_SECONDS, is_only_told=True)
    return None


def again(observed: Observed, verdict: Verdict, status: Json, now: datetime) -> float | None:
    """Seconds until the same question may have another answer though nothing that is watched changed."""
    refresh = REFRESH_SECONDS if _reason(status) in scheduling.REASONS else None
    return soonest(refresh, _doubt(observed, verdict, now).again)


def _is_short(status: Json) -> bool:
    return _reason(status) == Reason.INSUFFICIENT_GPUS


def _is_ambiguous(status: Json) -> bool:
    told = status.get("failure") or {}
    return told.get("reason") in scheduling.REASONS and scheduling.must_ask(told.get("evidence") or ())


def _doubt(observed: Observed, verdict: Verdict, now: datetime) -> Doubt:
    return doubt(observed.pods, observed.reports, verdict.revision, now)


def _reason(status: Json) -> object:
    return (status.get("failure") or {}).get("reason")
