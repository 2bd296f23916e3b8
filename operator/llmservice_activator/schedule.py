"""The bounds of replicas in force at a time, from spec.scaling.autoscaling and its schedule. Pure."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim
from llmservice_api.autoscaling import Autoscaling, ScheduledBounds
from llmservice_api.schedule import ever_comes, is_cron

from llmservice_activator.demand import ReplicaBounds

MAX_CACHED = 4096
"""Cron expressions whose last and next times are cached; equal expressions of several services share one."""
_EARLIEST, _LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class InvalidSchedule(Exception):
    """An entry cannot be evaluated; the message names the entry and the cause."""


def bounds(autoscaling: Autoscaling, now: datetime) -> ReplicaBounds:
    """The bounds of the first entry in force, else minReplicas and maxReplicas. `now` has a time zone; InvalidSchedule.

    Where an entry's lower bound exceeds its upper one, the upper one applies.
    """
    minute = now.replace(second=0, microsecond=0)
    every = [_of(autoscaling, entry) for entry in autoscaling.schedule]
    overall_max = max([autoscaling.max_replicas, *(most for _, most in every)])
    min_replicas, most = autoscaling.min_replicas, autoscaling.max_replicas
    for entry, found in zip(autoscaling.schedule, every, strict=True):
        if _is_in_force(entry.start, entry.end, entry.time_zone, minute):
            min_replicas, most = found
            break
    return ReplicaBounds(min(min_replicas, most), most, overall_max)


def check(autoscaling: Autoscaling, now: datetime) -> None:
    """InvalidSchedule where an entry can never be evaluated."""
    for entry in autoscaling.schedule:
        _is_in_force(entry.start, entry.end, entry.time_zone, now.replace(second=0, microsecond=0))


def _of(autoscaling: Autoscaling, entry: ScheduledBounds) -> tuple[int, int]:
    min_replicas = autoscaling.min_replicas if entry.min_replicas is None else entry.min_replicas
    most = autoscaling.max_replicas if entry.max_replicas is None else entry.max_replicas
    return min_replicas, most


def _is_in_force(start: str, end: str, zone: str, minute: datetime) -> bool:
    """Whether it started at or before this minute, and has not ended since.

    Local time: a start that the change to summer time skips counts from the first minute after it.
    """
    try:
        local = minute.astimezone(_zone(zone)).replace(tzinfo=UTC)
    except (ValueError, KeyError, OSError) as error:
        raise InvalidSchedule(f"timeZone {zone!r} is not in the time zone database") from error
    began, ended = (_times(cron, zone).last(local) for cron in (start, end))
    return began is not None and (ended is None or began > ended)


_zone = functools.lru_cache(maxsize=1024)(ZoneInfo)


class Times:
    """The last time of a cron expression, cached until its next one; InvalidSchedule where there is none."""

    def __init__(self, cron: str) -> None:
        if not is_cron(cron):
            raise InvalidSchedule(f"{cron!r} is not a schedule in cron's five fields")
        if not ever_comes(cron):
            raise InvalidSchedule(f"{cron!r} is a time that never comes")
        self._cron = cron
        self._last: datetime | None = None
        self._known = (_LATEST, _EARLIEST)

    def last(self, local: datetime) -> datetime | None:
        """The last time at or before `local`, local time written as UTC; None: not within 50 years."""
        since, until = self._known
        if not since <= local < until:
            # The simulation starts before the given time, and skips it.
            self._last = next(CronSim(self._cron, local + timedelta(minutes=1), reverse=True), None)
            self._known = self._last or local, next(CronSim(self._cron, local), _LATEST)
        return self._last


@functools.lru_cache(maxsize=MAX_CACHED)
def _times(cron: str, zone: str) -> Times:
    """Cached by zone, since local times differ."""
    return Times(cron)
