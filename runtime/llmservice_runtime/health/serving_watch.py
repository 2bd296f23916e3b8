"""Samples a serving server's metrics and OOM events and evaluates its health."""

from __future__ import annotations

from llmservice_runtime.drain import shared_counters
from llmservice_runtime.health import hang, memory_events
from llmservice_runtime.health.memory_events import MemoryEvents
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.dependencies import Dependencies
from llmservice_runtime.supervisor.loopback import http_request


class ServingWatch:
    """Health of one server while it serves."""

    def __init__(self, options: ServeOptions, dependencies: Dependencies, slots: memoryview, port: int) -> None:
        self._dependencies, self._slots, self._port = dependencies, slots, port
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
