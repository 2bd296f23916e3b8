"""One work queue: each key once, one worker a key, failures later and later, with jitter.

`Schedule` is the plain data structure on a given clock; `WorkQueue` lets tasks wait for it.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays after failures: base, doubled each time up to cap, of which a random half is taken off."""

    base: float = 0.5
    cap: float = 60.0

    def delay(self, failures: int, rng: Callable[[], float]) -> float:
        """Seconds until the next try after so many failures in a row."""
        full = min(self.cap, self.base * 2.0 ** min(failures - 1, 30))
        return full * (0.5 + rng() / 2)


class Schedule(Generic[K]):
    """What to work on now and what later. Pure: time comes in as an argument."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._ready_since: dict[K, float] = {}
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0
        self._working: dict[K, float] = {}
        self._again: set[K] = set()

    def add(self, key: K, now: float) -> None:
        """Have it worked on as soon as possible; a key in work is worked on once more afterwards."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._ready_since:
            self._due.pop(key, None)
            self._ready.append(key)
            self._ready_since[key] = now

    def add_at(self, key: K, due: float) -> None:
        """Have it worked on at a time, unless it is already to be sooner."""
        if key in self._ready_since or self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, key))

    def take(self, now: float) -> K | None:
        """The next key; it counts as in work until `done`."""
        self._promote(now)
        if not self._ready:
            return None
        key = self._ready.popleft()
        del self._ready_since[key]
        # A visit that was planned for later is covered by this one, which plans its own.
        self._due.pop(key, None)
        self._working[key] = now
        return key

    def done(self, key: K, now: float) -> None:
        """The work on a key ended, well or not."""
        del self._working[key]
        if key in self._again:
            self._again.discard(key)
            self.add(key, now)

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
    def working(self) -> int:
        """Keys in work."""
        return len(self._working)

    @property
    def in_work(self) -> Collection[K]:
        """Which those are."""
        return self._working.keys()

    def longest_wait(self, now: float) -> float:
        """How long the oldest ready key has waited for a worker."""
        return now - min(self._ready_since.values(), default=now)

    def longest_work(self, now: float) -> float:
        """How long the oldest key in work has been there."""
        return now - min(self._working.values(), default=now)

    def _promote(self, now: float) -> None:
        while (due := self.next_due()) is not None and due <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._due[key]
            self.add(key, now)

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
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._backoff = backoff or Backoff()
        self._schedule: Schedule[K] = Schedule()
        self._failures: dict[K, int] = {}
        self._changed = asyncio.Event()
        self.retries = 0

    def add(self, key: K) -> None:
        """Something about it changed. A key that keeps failing is not tried more often than its first delay."""
        now = self._clock()
        if key in self._failures:
            self._schedule.add_at(key, now + self._backoff.base)
        else:
            self._schedule.add(key, now)
        self._changed.set()

    def add_soon(self, key: K, seconds: float) -> None:
        """Something about it changed that more of the same may follow, or has led to: once a while is enough."""
        self.add_after(key, max(seconds, self._backoff.base) if key in self._failures else seconds)

    def add_all(self, keys: Iterable[K]) -> None:
        """All of them."""
        for key in keys:
            self.add(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Look at it again later, unless it is looked at sooner anyway."""
        self._schedule.add_at(key, self._clock() + seconds)
        self._changed.set()

    def succeeded(self, key: K) -> None:
        """Its next failure is a first one again."""
        self._failures.pop(key, None)

    def failed(self, key: K) -> float:
        """Plan the next try; returns the delay."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.delay(failures, self._rng)
        self.retries += 1
        self.add_after(key, delay)
        return delay

    def done(self, key: K) -> None:
        """To be called once for each key that `get` handed out."""
        self._schedule.done(key, self._clock())
        self._changed.set()

    async def get(self) -> K:
        """The next key, as soon as there is one."""
        while True:
            key = self._schedule.take(self._clock())
            if key is not None:
                return key
            self._changed.clear()
            due = self._schedule.next_due()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - self._clock())):
                    await self._changed.wait()
            except TimeoutError:
                continue

    @property
    def depth(self) -> int:
        """Keys that wait for a worker now."""
        return self._schedule.depth

    @property
    def delayed(self) -> int:
        """Keys that wait for their time."""
        return self._schedule.delayed

    @property
    def working(self) -> int:
        """Keys in work."""
        return self._schedule.working

    @property
    def in_work(self) -> Collection[K]:
        """Which those are."""
        return self._schedule.in_work

    def stalled(self, *, patience: float = 60.0, longest_work: float = 300.0) -> str | None:
        """Why this queue must be taken for stuck, or None."""
        now = self._clock()
        if (waited := self._schedule.longest_wait(now)) > patience:
            return f"a key has waited {waited:.0f} s for a worker"
        if (worked := self._schedule.longest_work(now)) > longest_work:
            return f"a worker has been busy with one key for {worked:.0f} s"
        return None
