"""One work queue: each key once, one worker a key, by priority; within a priority tenants take turns, so that who
changes hundreds of objects all the time delays nobody else. Failures back off exponentially, with jitter.

`Schedule` is the plain data structure on a given clock; `WorkQueue` lets tasks wait for it.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Priority(enum.IntEnum):
    """What comes first where more waits than workers can do at once."""

    EDITED = 0
    """Its spec was changed."""
    SERVES = 1
    """It answers requests, and its children changed: its status must follow soon."""
    NEW = 2
    """It has no children yet; scheduler and kubelets can begin once it has."""
    REST = 3
    """A step of a rollout, or a planned visit."""


TURN_OF_THE_LAST = 8
"""One key in so many is taken from the last priority that has any, so that none starves."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays after failures: base, doubled each time up to cap, of which a random half is taken off."""

    base: float = 0.5
    cap: float = 60.0

    def delay(self, failures: int, rng: Callable[[], float]) -> float:
        """Seconds until the next try after so many failures in a row."""
        full = min(self.cap, self.base * 2.0 ** min(failures - 1, 30))
        return full * (0.5 + rng() / 2)


class _Waiting(NamedTuple):
    priority: Priority
    since: float


class _Line(Generic[K]):
    """The keys of one priority: one of each tenant in turn, and of one tenant in the order in which they came."""

    def __init__(self) -> None:
        self._by_tenant: OrderedDict[Hashable, deque[K]] = OrderedDict()
        """The first is the next one whose turn it is; none is empty."""

    def append(self, tenant: Hashable, key: K) -> None:
        """Whoever had none comes after all that have."""
        self._by_tenant.setdefault(tenant, deque()).append(key)

    def drop_while(self, is_over: Callable[[K], bool]) -> None:
        """Keys at the beginning."""
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
        """The first; its tenant's next one comes after those of all others."""
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
    """What to work on now and what later. Pure: time comes in as an argument."""

    def __init__(self, tenant: Callable[[K], Hashable] = _one_tenant) -> None:
        self._tenant = tenant
        self._ready: dict[K, _Waiting] = {}
        self._lines: dict[Priority, _Line[K]] = {priority: _Line() for priority in Priority}
        """A key that was taken, or stands in a better line since, is skipped."""
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K, Priority]] = []
        self._sequence = 0
        self._working: dict[K, float] = {}
        self._again: dict[K, Priority] = {}
        self._taken = 0
        self._taken_at = float("-inf")

    def add(self, key: K, now: float, priority: Priority = Priority.REST) -> None:
        """Have it worked on as soon as possible; a key in work is worked on once more afterwards."""
        if key in self._working:
            self._again[key] = min(priority, self._again.get(key, priority))
            return
        waiting = self._ready.get(key)
        if waiting is not None and waiting.priority <= priority:
            return
        self._due.pop(key, None)
        self._lines[priority].append(self._tenant(key), key)
        self._ready[key] = _Waiting(priority, now if waiting is None else waiting.since)

    def add_at(self, key: K, due: float, priority: Priority = Priority.REST) -> None:
        """Have it worked on at a time, unless it is already to be sooner."""
        if key in self._ready or self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, key, priority))

    def take(self, now: float) -> K | None:
        """The next key; it counts as in work until `done`."""
        self.promote(now)
        key = self._first()
        if key is None:
            return None
        del self._ready[key]
        # A visit that was planned for later is covered by this one, which plans its own.
        self._due.pop(key, None)
        self._working[key] = self._taken_at = now
        self._taken += 1
        return key

    def done(self, key: K, now: float) -> None:
        """The work on a key ended, well or not."""
        del self._working[key]
        priority = self._again.pop(key, None)
        if priority is not None:
            self.add(key, now, priority)

    def next_due(self) -> float | None:
        """When the next delayed key becomes ready."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    @property
    def depth(self) -> int:
        """Keys that wait for a worker now."""
        return len(self._ready)

    @property
    def delayed(self) -> int:
        """Keys that wait for their time."""
        return len(self._due)

    @property
    def in_work(self) -> Collection[K]:
        """Keys that a worker has."""
        return self._working.keys()

    def untouched(self, now: float) -> float:
        """For how long keys have waited and no worker took any: a long queue that moves is no standstill."""
        oldest = min((waiting.since for waiting in self._ready.values()), default=now)
        return now - max(oldest, self._taken_at)

    def longest_work(self, now: float) -> float:
        """How long the oldest key in work has been there."""
        return now - min(self._working.values(), default=now)

    def waits(self, priority: Priority) -> bool:
        """Whether any key of this priority waits for a worker."""
        line = self._lines[priority]
        line.drop_while(lambda key: not self._is_in_line(key, priority))
        return bool(line)

    def _is_in_line(self, key: K, priority: Priority) -> bool:
        return key in self._ready and self._ready[key].priority is priority

    def _first(self) -> K | None:
        is_turn_of_the_last = self._taken % TURN_OF_THE_LAST == TURN_OF_THE_LAST - 1
        for priority in reversed(Priority) if is_turn_of_the_last else Priority:
            if self.waits(priority):
                return self._lines[priority].pop()
        return None

    def promote(self, now: float) -> None:
        """Keys whose time has come wait for a worker."""
        while (due := self.next_due()) is not None and due <= now:
            _, _, key, priority = heapq.heappop(self._heap)
            del self._due[key]
            self.add(key, now, priority)

    def _drop_stale(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)


class WorkQueue(Generic[K]):
    """The schedule on a clock, for tasks to wait on."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: Callable[[], float] = random.random,
        backoff: Backoff | None = None,
        tenant: Callable[[K], Hashable] = _one_tenant,
    ) -> None:
        """`tenant`: whose a key is; within a priority they take turns."""
        self._clock = clock
        self._rng = rng
        self._backoff = backoff or Backoff()
        self._schedule: Schedule[K] = Schedule(tenant)
        self._failures: dict[K, int] = {}
        self._offers = asyncio.Semaphore(0)
        """One for each key that waits: each wakes one worker, and the others sleep on."""
        self._offered = 0
        self._idle = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = float("inf")

    def add(self, key: K, priority: Priority = Priority.REST) -> None:
        """Something about it changed. A key that keeps failing is not tried more often than its first delay."""
        now = self._clock()
        if key in self._failures:
            self._schedule.add_at(key, now + self._backoff.base)
        else:
            self._schedule.add(key, now, priority)
        self._offer()

    def add_soon(self, key: K, seconds: float, priority: Priority = Priority.REST) -> None:
        """Something about it changed that more of the same may follow, or has led to: once a while is enough."""
        self.add_after(key, max(seconds, self._backoff.base) if key in self._failures else seconds, priority)

    def add_after(self, key: K, seconds: float, priority: Priority = Priority.REST) -> None:
        """Have it worked on after so many seconds, unless that is planned sooner anyway."""
        self._schedule.add_at(key, self._clock() + seconds, priority)
        self._offer()

    def succeeded(self, key: K) -> None:
        """Its next failure is a first one again."""
        self._failures.pop(key, None)

    def failed(self, key: K) -> float:
        """Plan the next try; returns the delay."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.delay(failures, self._rng)
        self.add_after(key, delay)
        return delay

    def done(self, key: K) -> None:
        """To be called once for each key that `get` handed out."""
        self._schedule.done(key, self._clock())
        self._offer()

    async def get(self) -> K:
        """The next key, as soon as there is one."""
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
        """Wake as many workers as there are keys for, and have the alarm ring when the next one is due."""
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
        """Whether any key of this priority waits for a worker."""
        return self._schedule.waits(priority)

    @property
    def depth(self) -> int:
        """Keys that wait for a worker now."""
        return self._schedule.depth

    @property
    def delayed(self) -> int:
        """Keys that wait for their time."""
        return self._schedule.delayed

    @property
    def in_work(self) -> Collection[K]:
        """Keys that a worker has."""
        return self._schedule.in_work

    def stalled(self, *, patience: float = 60.0, longest_work: float = 300.0) -> str | None:
        """Why this queue must be taken for stuck, or None."""
        now = self._clock()
        if (waited := self._schedule.untouched(now)) > patience:
            return f"no worker has taken a key for {waited:.0f} s, and {self.depth} wait"
        if (worked := self._schedule.longest_work(now)) > longest_work:
            return f"a worker has been busy with one key for {worked:.0f} s"
        return None
