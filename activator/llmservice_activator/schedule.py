"""The bounds of replicas in force at a time: spec.scaling.autoscaling with its schedule. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from llmservice_operator.api.autoscaling import Autoscaling, ScheduledBounds

from llmservice_activator.demand import Bounds

REMEMBERED = 4096
"""Entries whose state in a minute is kept; equal ones of several services are one."""


class InvalidSchedule(Exception):
    """An entry cannot be evaluated; the message says which and why."""


def bounds(autoscaling: Autoscaling, now: datetime) -> Bounds:
    """Those of the first entry whose time it is, else minReplicas and maxReplicas; InvalidSchedule. `now` has a zone.

    Where an entry's lower bound is above its upper one, the upper one holds.
    """
    minute = now.replace(second=0, microsecond=0)
    every = [_of(autoscaling, entry) for entry in autoscaling.schedule]
    most_ever = max([autoscaling.max_replicas, *(most for _, most in every)])
    fewest, most = autoscaling.min_replicas, autoscaling.max_replicas
    for entry, found in zip(autoscaling.schedule, every, strict=True):
        if _is_in_force(entry.start, entry.end, entry.time_zone, minute):
            fewest, most = found
            break
    return Bounds(min(fewest, most), most, most_ever)


def check(autoscaling: Autoscaling, now: datetime) -> None:
    """InvalidSchedule where an entry can never be evaluated."""
    for entry in autoscaling.schedule:
        _is_in_force(entry.start, entry.end, entry.time_zone, now.replace(second=0, microsecond=0))


def _of(autoscaling: Autoscaling, entry: ScheduledBounds) -> tuple[int, int]:
    fewest = autoscaling.min_replicas if entry.min_replicas is None else entry.min_replicas
    most = autoscaling.max_replicas if entry.max_replicas is None else entry.max_replicas
    return fewest, most


@functools.lru_cache(maxsize=REMEMBERED)
def _is_in_force(start: str, end: str, zone: str, minute: datetime) -> bool:
    """Whether it began at or before this minute, and has not ended since."""
    try:
        local = minute.astimezone(ZoneInfo(zone))
    except (ValueError, KeyError, OSError) as error:
        raise InvalidSchedule(f"timeZone {zone!r} is not in the time zone database") from error
    began, ended = (_last(cron, local) for cron in (start, end))
    return began is not None and (ended is None or began > ended)


def _last(cron: str, local: datetime) -> datetime | None:
    """The last time at or before `local`; None: not within 50 years."""
    try:
        # The simulation begins before the time that it is given, and skips that one.
        times: Iterator[datetime] = CronSim(cron, local + timedelta(minutes=1), reverse=True)
    except CronSimError as error:
        raise InvalidSchedule(f"{cron!r} is not a schedule in cron's five fields: {error}") from error
    return next(times, None)
