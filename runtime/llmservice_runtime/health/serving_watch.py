"""Samples a serving server's metrics and OOM events and evaluates its health."""

from __future__ import annotations

import contextlib
import os
import time
from itertools import islice
from pathlib import Path

from llmservice_runtime.bounded_json import Refused, opened
from llmservice_runtime.drain import shared_counters
from llmservice_runtime.health import hang, memory_events
from llmservice_runtime.health.memory_events import MemoryEvents
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.dependencies import Dependencies
from llmservice_runtime.supervisor.loopback import http_request

_DUMP = "VLLM_STACK_DUMP_for_"
_MOST_DUMPS = 64
_LONGEST_DUMP = 256 << 10


class ServingWatch:
    """Health of one server while it serves."""

    def __init__(self, options: ServeOptions, dependencies: Dependencies, slots: memoryview, port: int) -> None:
        self._dependencies, self._slots, self._port = dependencies, slots, port
        self._stacks = Path(options.stacks_dir)
        self._thresholds = hang.Thresholds(options.hang_unready_seconds, options.hang_restart_seconds)
        self._watch = hang.Watch(dependencies.clock(), dependencies.timing.watch_seconds)
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
        """Where vLLM's processes are stuck, by the stacks that they wrote since: `worker_0, worker_1: call < by`."""
        since, calls = time.time() - self.stalled_seconds, dict[str, list[str]]()
        with contextlib.suppress(OSError):
            for path in sorted(islice(self._stacks.glob(f"{_DUMP}*.log"), _MOST_DUMPS)):
                with contextlib.suppress(OSError, Refused), opened(path) as file:
                    found = os.fstat(file.fileno())
                    file.seek(max(0, found.st_size - _LONGEST_DUMP))
                    where = hang.where(file.read(_LONGEST_DUMP).decode(errors="replace"))
                    if where and found.st_mtime >= since:
                        calls.setdefault(where, []).append(path.stem.removeprefix(_DUMP).rpartition("_")[0])
        return tuple(f"{', '.join(names)}: {where}" for where, names in calls.items())

    async def evaluate(self) -> hang.Verdict:
        """Take a sample; the verdict."""
        before, seen = memory_events.read(self._dependencies.cgroup), await self._sample()
        if self._watch.moves(seen):
            self._memory = before
        self._watch = self._watch.seen(seen, self._dependencies.clock())
        return self._watch.verdict(self._thresholds)

    async def _sample(self) -> hang.Sample:
        slots = self._slots
        awaiting = slots[shared_counters.AWAITING] if slots[shared_counters.ATTACHED] else None
        counts = hang.Counts(
            slots[shared_counters.IN_FLIGHT], awaiting, slots[shared_counters.SENT], slots[shared_counters.RECEIVED]
        )
        try:
            response = await http_request(self._port, "/metrics", timeout=self._dependencies.timing.watch_seconds)
        except OSError:
            return hang.sample(None, counts)
        return hang.sample(hang.parse_metrics(response.body), counts)
