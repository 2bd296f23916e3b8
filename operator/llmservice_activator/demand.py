"""Replicas for a load, with the reason, and the bounds that spec.scaling.autoscaling and its schedule set at a time.
Pure.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim
from llmservice_api.lifecycle import Autoscaling, ScheduledBounds, ever_comes, is_cron

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


def check_schedule(autoscaling: Autoscaling, now: datetime) -> None:
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


TOLERANCE_TENTHS = 1
"""The HPA's default tolerance in tenths: within 10% of the existing replicas it changes nothing."""
THOUSANDTH = 0.001
"""The resolution of a metric."""


@dataclass(frozen=True, slots=True)
class ReplicaBounds:
    """The bounds in force, and the overall maximum, which the HPA enforces itself."""

    min_replicas: int
    max_replicas: int
    overall_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Replicas and requests of one service."""

    replicas: int
    """spec.scaling.replicas."""
    existing: int
    """status.replicas: existing pods, with which the HPA compares its metric; 0: unknown."""
    ready: int
    starting: int
    """Pods that are scheduled and have not been ready yet."""
    in_flight: int
    """Requests without a complete response, over the pods that answered."""
    unread: int
    """Ready pods that did not answer."""
    concurrency: int | None
    """Target of concurrent requests per replica; None: unknown."""
    held: int = 0
    """Requests that the activators hold, over those that answered."""
    unanswered_activators: int = 0
    """Activators that did not answer."""
    uncounted_pods: int = 0
    """Ready pods that do not count started requests."""


@dataclass(frozen=True, slots=True)
class Desired:
    """Desired replicas, with the metric for the HPA."""

    replicas: int
    """Within the bounds in force."""
    metric: float
    """The value from which the HPA computes `replicas`; it rounds up."""
    demand: int | None
    """Replicas for the requests in flight and held alone; None: unknown."""
    reason: str


def desired(load: Load, bounds: ReplicaBounds, idle: str | None = None) -> Desired:
    """The replicas for this load: at least one, unless `idle` says why none is needed.

    Starting replicas count as capacity. Nothing is removed while a pod starts, while a ready pod does not answer, or
    while none is ready, except by the bounds.
    """
    demand = None if load.concurrency is None else -(-(load.in_flight + load.held) // load.concurrency)
    found, reason = _by_demand(load, demand)
    if idle is not None:
        found, reason = 0, idle
    elif bounds.min_replicas == 0:
        found = max(found, 1)
    replicas = max(bounds.min_replicas, min(found, bounds.max_replicas))
    if replicas != found:
        limit = f"minReplicas {bounds.min_replicas}" if replicas > found else f"maxReplicas {bounds.max_replicas}"
        reason = f"{reason}; {limit} in force"
    return Desired(replicas, _metric(replicas, load, bounds), demand, reason)


def _by_demand(load: Load, demand: int | None) -> tuple[int, str]:
    if demand is None:
        return load.replicas, "how many requests a replica holds is not known"
    pending = max(0, load.replicas - load.ready)
    found = demand if demand <= load.replicas else max(demand - pending, load.replicas)
    held = f" and {load.held} held" if load.held else ""
    reason = f"{load.in_flight} requests in flight{held}, {load.concurrency} for each"
    if found < demand:
        reason += f"; not ready yet: {pending}"
    if load.unread:
        reason += f"; ready without an answer: {load.unread}"
    if load.unanswered_activators:
        reason += f"; activators without an answer: {load.unanswered_activators}"
    if load.starting:
        reason += f"; starting: {load.starting}"
    # Without a ready replica no requests can be counted: clients are refused.
    is_known = load.ready > 0 and load.unread == 0 and load.unanswered_activators == 0
    return (found if is_known and not load.starting else max(found, load.replicas)), reason


def _metric(replicas: int, load: Load, bounds: ReplicaBounds) -> float:
    """`replicas`, moved out of the HPA's tolerance where other replicas exist than are desired.

    While metric / status.replicas is within 0.9 and 1.1, the HPA sets status.replicas (k8s.io/kubernetes,
    pkg/controller/podautoscaler/replica_calculator.go: isWithin): at 10 replicas it ignores a metric of 11, and 11 pods
    during a rollout of 10 become 11 replicas. The HPA applies maxReplicas itself; bounds of a schedule are applied
    here. From 20 pods on, one replica fewer cannot be expressed.
    """
    existing = load.existing or load.replicas
    if replicas < existing:
        lowered = existing * (10 - TOLERANCE_TENTHS) / 10 - THOUSANDTH
        return lowered if replicas - 1 < lowered < replicas else replicas
    if replicas <= max(load.replicas, existing):
        return replicas
    raised = max(replicas, existing + existing * TOLERANCE_TENTHS // 10 + 1)
    return raised if bounds.max_replicas == bounds.overall_max else min(raised, bounds.max_replicas)
