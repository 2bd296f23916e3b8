"""Detects a hung engine and OOM kills of a serving server, by samples of its metrics and their times.

Hung: requests wait for the engine and none of its counters changes. An idle engine is never hung, nor is a long
prefill, because the counters include cache usage, which grows with each chunk. A server whose /metrics does not
respond counts as unchanged, unless it still sends responses or receives requests of which none waits for the engine
(then it is overloaded by clients). Gaps between samples longer than three intervals count as one interval: the
supervisor had no CPU then, and neither had the engine.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from pathlib import Path

from llmservice_vllm import metrics

from llmservice_runtime import shared_counters
from llmservice_runtime.bounded_json import Refused, opened
from llmservice_runtime.health import memory_events
from llmservice_runtime.health.memory_events import MemoryEvents
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.client import http_request
from llmservice_runtime.supervisor.dependencies import Dependencies

# Series that change while the engine works: tokens, finished requests, cache usage.
MOVING = (
    *(metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS, f"{metrics.STEP_TOKENS}_count", metrics.ENDED),
    *(metrics.PREEMPTIONS, metrics.PREFIX_QUERIES, metrics.KV_USAGE, metrics.RUNNING),
)


@dataclass(frozen=True)
class Counts:
    """The middleware's counters (see shared_counters); `awaiting` is None without the middleware."""

    in_flight: int = 0
    awaiting: int | None = None
    sent: int = 0
    """Response chunks so far: progress that is visible even when /metrics does not respond."""
    received: int = 0
    """Requests so far, refused ones included."""


@dataclass(frozen=True)
class Sample:
    """One sample. `counters` is None where /metrics did not respond."""

    busy: bool
    counters: tuple[float, ...] | None
    sent: int = 0
    received: int | None = None
    """Requests so far; None where one of them waits for the engine, or without the middleware."""


class Verdict(Enum):
    """The action to take."""

    HEALTHY = "healthy"
    UNREADY = "unready"
    RESTART = "restart"


@dataclass(frozen=True)
class Thresholds:
    """Seconds without progress until unready, and from then until a restart; 0 disables a step."""

    unready: float
    restart: float


@dataclass(frozen=True)
class Watch:
    """The last sample, and for how long a busy engine has made no progress."""

    seen_at: float
    interval: float = 5.0
    """Intended seconds between samples."""
    stalled_seconds: float = 0.0
    counters: tuple[float, ...] | None = None
    sent: int = 0
    received: int | None = None

    def moves(self, sample: Sample) -> bool:
        """Whether `sample` shows progress since the last one."""
        is_flooded = sample.counters is None and sample.received is not None and sample.received != self.received
        return is_flooded or sample.sent != self.sent or sample.counters not in (None, self.counters)

    def seen(self, sample: Sample, now: float) -> Watch:
        """The watch after a sample taken at `now` (seconds, monotonic)."""
        counters = self.counters if sample.counters is None else sample.counters
        if self.moves(sample) or not sample.busy:
            return Watch(now, self.interval, 0.0, counters, sample.sent, sample.received)
        # A sample may take as long as the interval; a longer gap means that the supervisor had no CPU.
        step = now - self.seen_at
        step = step if step <= _LONGEST_STEP * self.interval else self.interval
        return replace(self, seen_at=now, stalled_seconds=self.stalled_seconds + step, counters=counters)

    def verdict(self, thresholds: Thresholds) -> Verdict:
        """`stalled_seconds` compared with the thresholds."""
        if not thresholds.unready or self.stalled_seconds < thresholds.unready:
            return Verdict.HEALTHY
        if not thresholds.restart or self.stalled_seconds < thresholds.unready + thresholds.restart:
            return Verdict.UNREADY
        return Verdict.RESTART


_LONGEST_STEP = 3


def sample(series: Mapping[str, float] | None, counts: Counts) -> Sample:
    """A sample from vLLM's metrics (None: no response) and the middleware's counters."""
    if series is None:
        received = counts.received if counts.awaiting == 0 else None
        return Sample(busy=True, counters=None, sent=counts.sent, received=received)
    running = series.get(metrics.RUNNING, 0.0) > 0
    # An engine that hangs on the first request after an idle time never reports it as running, and a stale
    # `running` without requests in flight blocks no client.
    busy = running if counts.awaiting is None else counts.awaiting > 0 or (running and counts.in_flight > 0)
    known = tuple(series[name] for name in MOVING if name in series)
    # A hang cannot be detected without the engine's statistics (--disable-log-stats).
    return Sample(busy=busy and bool(known), counters=known, sent=counts.sent)


def innermost_calls(dump: str) -> str:
    """The innermost calls of a process's main thread, from the last dump in a file of vLLM's watchdog; empty without
    one.

    Python's faulthandler writes each thread with its innermost call first, the main thread last.
    """
    calls = (_CALL.fullmatch(line) for line in dump.rpartition("hread 0x")[2].splitlines()[1:])
    found = (f"{call[3]} ({_short(call[1])}:{call[2]})" for call in calls if call)
    return " < ".join(islice(found, _CALLS))


def _short(file: str) -> str:
    """The path without the folder of all packages."""
    return file.rpartition("-packages/")[2] or file


_CALLS = 6
_CALL = re.compile(r'  File "([^"]{1,300})", line (\d{1,7}) in (\S{1,100})')


_DUMP = "VLLM_STACK_DUMP_for_"
_MOST_DUMPS = 64
_LONGEST_DUMP = 256 << 10


class ServingWatch:
    """Health of one server while it serves."""

    def __init__(self, options: ServeOptions, dependencies: Dependencies, slots: memoryview, port: int) -> None:
        self._dependencies, self._slots, self._port = dependencies, slots, port
        self._stacks = Path(options.stacks_dir)
        self._thresholds = Thresholds(options.hang_unready_seconds, options.hang_restart_seconds)
        self._watch = Watch(dependencies.clock(), dependencies.timing.watch_seconds)
        self._memory = memory_events.read(dependencies.cgroup)

    @property
    def stalled_seconds(self) -> float:
        """Seconds without progress of a busy engine."""
        return self._watch.stalled_seconds

    @property
    def memory(self) -> MemoryEvents:
        """OOM events since the engine last made progress; it survived earlier ones."""
        return memory_events.read(self._dependencies.cgroup).since(self._memory)

    def stacks(self) -> tuple[str, ...]:
        """Where vLLM's processes are stuck, from their written stacks: `worker_0, worker_1: call < by`."""
        since, calls = time.time() - self.stalled_seconds, dict[str, list[str]]()
        with contextlib.suppress(OSError):
            for path in sorted(islice(self._stacks.glob(f"{_DUMP}*.log"), _MOST_DUMPS)):
                with contextlib.suppress(OSError, Refused), opened(path) as file:
                    found = os.fstat(file.fileno())
                    file.seek(max(0, found.st_size - _LONGEST_DUMP))
                    where = innermost_calls(file.read(_LONGEST_DUMP).decode(errors="replace"))
                    if where and found.st_mtime >= since:
                        calls.setdefault(where, []).append(path.stem.removeprefix(_DUMP).rpartition("_")[0])
        return tuple(f"{', '.join(names)}: {where}" for where, names in calls.items())

    async def evaluate(self) -> Verdict:
        """Take a sample and return the verdict."""
        before, seen = memory_events.read(self._dependencies.cgroup), await self._sample()
        if self._watch.moves(seen):
            self._memory = before
        self._watch = self._watch.seen(seen, self._dependencies.clock())
        return self._watch.verdict(self._thresholds)

    async def _sample(self) -> Sample:
        slots = self._slots
        awaiting = slots[shared_counters.AWAITING] if slots[shared_counters.ATTACHED] else None
        counts = Counts(
            slots[shared_counters.IN_FLIGHT], awaiting, slots[shared_counters.SENT], slots[shared_counters.RECEIVED]
        )
        try:
            response = await http_request(self._port, "/metrics", timeout=self._dependencies.timing.watch_seconds)
        except OSError:
            return sample(None, counts)
        return sample(metrics.totals(response.body, MOVING), counts)
