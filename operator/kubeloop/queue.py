"""Work queue with priorities: each key is queued at most once and has at most one worker. Within a priority, tenants
alternate, so that a tenant with many changes does not delay the others. Failures back off exponentially, with jitter.

`Schedule` is the data structure, without a clock; `WorkQueue` lets tasks wait for it.

A `Bucket` limits the Events, status writes and reconciles of one service, whatever its pods report.

Ordinary services stay within the burst, so that their changes are reported at once. A pod that alternates between
reports uses the burst up and then gets one token at a time. The figures for Events are those of client-go's
EventCorrelator (tools/record).
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Priority(enum.IntEnum):
    """Order in which keys are worked on."""

    EDITED = 0
    """The spec was changed."""
    SERVES = 1
    """It serves requests, and a child changed: the status must follow soon."""
    NEW = 2
    """It has no children yet: scheduler and kubelets wait for them."""
    REST = 3
    """A rollout step or a scheduled reconcile."""


LOWEST_PRIORITY_TURN = 8
"""One key in so many is taken from the lowest priority with keys, which prevents starvation."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays after failures in seconds: base, doubled up to cap, of which a random half is subtracted."""

    base: float = 0.5
    cap: float = 60.0

    def delay(self, failures: int, rng: Callable[[], float]) -> float:
        """Seconds until the next attempt after `failures` failures in a row."""
        full = min(self.cap, self.base * 2.0 ** min(failures - 1, 30))
        return full * (0.5 + rng() / 2)


class _Waiting(NamedTuple):
    priority: Priority
    since: float


class _TenantQueue(Generic[K]):
    """The keys of one priority, round-robin over tenants, and first in, first out within one."""

    def __init__(self) -> None:
        self._by_tenant: OrderedDict[Hashable, deque[K]] = OrderedDict()
        """In order of their next key; no queue is empty."""

    def append(self, tenant: Hashable, key: K) -> None:
        """Queue a key; a new tenant is the last."""
        self._by_tenant.setdefault(tenant, deque()).append(key)

    def drop_while(self, is_over: Callable[[K], bool]) -> None:
        """Remove leading keys for which `is_over`."""
        while self._by_tenant:
            tenant, keys = next(iter(self._by_tenant.items()))
            while keys and is_over(keys[0]):
                keys.popleft()
            if keys:
                return
            del self._by_tenant[tenant]

    def __bool__(self) -> bool:
        return bool(self._by_tenant)

    def pop(self) -> K:
        """The next key; its tenant becomes the last."""
        tenant, keys = next(iter(self._by_tenant.items()))
        key = keys.popleft()
        if keys:
            self._by_tenant.move_to_end(tenant)
        else:
            del self._by_tenant[tenant]
        return key


def _one_tenant(_: Hashable) -> Hashable:
    return None


class Schedule(Generic[K]):
    """Which key to work on now, and which later. Pure: times are arguments, in seconds."""

    def __init__(self, tenant: Callable[[K], Hashable] = _one_tenant) -> None:
        self._tenant = tenant
        self._ready: dict[K, _Waiting] = {}
        self._waiting_by_priority: dict[Priority, _TenantQueue[K]] = {priority: _TenantQueue() for priority in Priority}
        """May contain keys that were taken or have a better priority since; they are skipped."""
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K, Priority]] = []
        self._sequence = 0
        self._working: dict[K, float] = {}
        self._again: dict[K, Priority] = {}
        self._taken = 0
        self._taken_at = float("-inf")

    def add(self, key: K, now: float, priority: Priority = Priority.REST) -> None:
        """Queue a key for now; one in work is queued again afterwards."""
        if key in self._working:
            self._again[key] = min(priority, self._again.get(key, priority))
            return
        waiting = self._ready.get(key)
        if waiting is not None and waiting.priority <= priority:
            return
        self._due.pop(key, None)
        self._waiting_by_priority[priority].append(self._tenant(key), key)
        self._ready[key] = _Waiting(priority, now if waiting is None else waiting.since)

    def add_at(self, key: K, due: float, priority: Priority = Priority.REST) -> None:
        """Queue a key for a time, unless it is due earlier."""
        if key in self._ready or self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, key, priority))

    def take(self, now: float) -> K | None:
        """The next key, or None; it is in work until `done`."""
        self.promote(now)
        key = self._first()
        if key is None:
            return None
        del self._ready[key]
        # This reconcile replaces one that is scheduled for later, and schedules its own.
        self._due.pop(key, None)
        self._working[key] = self._taken_at = now
        self._taken += 1
        return key

    def done(self, key: K, now: float) -> None:
        """End the work on a key, successful or not."""
        del self._working[key]
        priority = self._again.pop(key, None)
        if priority is not None:
            self.add(key, now, priority)

    def next_due(self) -> float | None:
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    @property
    def depth(self) -> int:
        """Keys that are ready for a worker."""
        return len(self._ready)

    @property
    def delayed(self) -> int:
        """Keys that are not due yet."""
        return len(self._due)

    @property
    def in_work(self) -> Collection[K]:
        """Keys that a worker has."""
        return self._working.keys()

    def seconds_since_take(self, now: float) -> float:
        """Seconds since a worker last took a key, or since keys began to wait: a long queue that moves is not stuck."""
        oldest = min((waiting.since for waiting in self._ready.values()), default=now)
        return now - max(oldest, self._taken_at)

    def longest_work(self, now: float) -> float:
        """Seconds that the oldest key has been in work."""
        return now - min(self._working.values(), default=now)

    def waits(self, priority: Priority) -> bool:
        """Whether a key of this priority is ready for a worker."""
        line = self._waiting_by_priority[priority]
        line.drop_while(lambda key: not self._is_in_line(key, priority))
        return bool(line)

    def _is_in_line(self, key: K, priority: Priority) -> bool:
        return key in self._ready and self._ready[key].priority is priority

    def _first(self) -> K | None:
        is_lowest_priority_turn = self._taken % LOWEST_PRIORITY_TURN == LOWEST_PRIORITY_TURN - 1
        for priority in reversed(Priority) if is_lowest_priority_turn else Priority:
            if self.waits(priority):
                return self._waiting_by_priority[priority].pop()
        return None

    def promote(self, now: float) -> None:
        """Move the keys that are due to the ready ones."""
        while (due := self.next_due()) is not None and due <= now:
            _, _, key, priority = heapq.heappop(self._heap)
            del self._due[key]
            self.add(key, now, priority)

    def _drop_stale(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)


class WorkQueue(Generic[K]):
    """A Schedule on a clock, with workers that wait for keys."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: Callable[[], float] = random.random,
        backoff: Backoff | None = None,
        tenant: Callable[[K], Hashable] = _one_tenant,
    ) -> None:
        """`tenant` maps a key to its tenant; tenants alternate within a priority."""
        self._clock = clock
        self._rng = rng
        self._backoff = backoff or Backoff()
        self._schedule: Schedule[K] = Schedule(tenant)
        self._failures: dict[K, int] = {}
        self._offers = asyncio.Semaphore(0)
        """One per key that is ready: each wakes one worker."""
        self._offered = 0
        self._idle = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = float("inf")

    def add(self, key: K, priority: Priority = Priority.REST) -> None:
        """Queue a changed key. A failing key is not tried more often than its first delay."""
        now = self._clock()
        if key in self._failures:
            self._schedule.add_at(key, now + self._backoff.base)
        else:
            self._schedule.add(key, now, priority)
        self._offer()

    def add_soon(self, key: K, seconds: float, priority: Priority = Priority.REST) -> None:
        """Queue a changed key after `seconds`, to combine changes that are expected to follow."""
        self.add_after(key, max(seconds, self._backoff.base) if key in self._failures else seconds, priority)

    def add_after(self, key: K, seconds: float, priority: Priority = Priority.REST) -> None:
        """Queue a key after `seconds`, unless it is due earlier."""
        self._schedule.add_at(key, self._clock() + seconds, priority)
        self._offer()

    def succeeded(self, key: K) -> None:
        """Reset the back-off of a key."""
        self._failures.pop(key, None)

    def failed(self, key: K) -> float:
        """Schedule a retry; returns its delay in seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.delay(failures, self._rng)
        self.add_after(key, delay)
        return delay

    def done(self, key: K) -> None:
        """End the work on a key; call it once per key from `get`."""
        self._schedule.done(key, self._clock())
        self._offer()

    async def get(self) -> K:
        self._idle += 1
        try:
            while True:
                self._offer()
                await self._offers.acquire()
                self._offered -= 1
                key = self._schedule.take(self._clock())
                if key is not None:
                    return key
        finally:
            self._idle -= 1

    def _offer(self) -> None:
        """Wake one worker per ready key, and set the timer for the next due key."""
        now = self._clock()
        self._schedule.promote(now)
        while self._offered < self._schedule.depth:
            self._offered += 1
            self._offers.release()
        due = self._schedule.next_due()
        if self._idle and due is not None and due < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = due
            self._alarm = asyncio.get_running_loop().call_later(max(0.0, due - now), self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, float("inf")
        self._offer()

    def waits(self, priority: Priority) -> bool:
        """Whether a key of this priority is ready for a worker."""
        return self._schedule.waits(priority)

    @property
    def depth(self) -> int:
        return self._schedule.depth

    @property
    def delayed(self) -> int:
        return self._schedule.delayed

    @property
    def in_work(self) -> Collection[K]:
        return self._schedule.in_work

    def stalled(self, *, patience: float = 60.0, longest_work: float = 300.0) -> str | None:
        """Why the queue counts as stuck, or None; limits in seconds."""
        now = self._clock()
        if (waited := self._schedule.seconds_since_take(now)) > patience:
            return f"no worker has taken a key for {waited:.0f} s, and {self.depth} wait"
        if (worked := self._schedule.longest_work(now)) > longest_work:
            return f"a worker has been busy with one key for {worked:.0f} s"
        return None


EVENT_BURST, EVENT_SECONDS = 25, 300.0
"""Events of one service: so many in a row, then one every so many seconds. Further Events are dropped and counted."""
WRITE_BURST, WRITE_SECONDS = 30, 10.0
"""Status writes that do not follow an edit, likewise. Further writes are postponed: the next status contains
everything."""
EDIT_WRITES = 10
"""Tokens for status writes after an edit, so that its effects are reported at once."""
STEP_BURST, STEP_SECONDS = 40, 15.0
"""Steps of a service's pods that are reported at once. Further steps are combined into one."""


@dataclass(slots=True)
class Bucket:
    """Starts with `burst` tokens and gains one every `seconds`."""

    burst: int
    seconds: float
    _tokens: float = field(init=False)
    _at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._tokens = float(self.burst)

    def take(self, now: float) -> bool:
        """Take a token, if there is one; returns whether there was."""
        if self.wait(now) > 0:
            return False
        self._tokens -= 1
        return True

    def wait(self, now: float) -> float:
        """Seconds until there is a token."""
        if self._at is not None:
            self._tokens = min(float(self.burst), self._tokens + (now - self._at) / self.seconds)
        self._at = now
        return max(0.0, (1 - self._tokens) * self.seconds)

    def give(self, tokens: int) -> None:
        """Raise the number of tokens to at least `tokens`."""
        self._tokens = max(self._tokens, float(tokens))


event_bucket = partial(Bucket, EVENT_BURST, EVENT_SECONDS)
write_bucket = partial(Bucket, WRITE_BURST, WRITE_SECONDS)
step_bucket = partial(Bucket, STEP_BURST, STEP_SECONDS)
