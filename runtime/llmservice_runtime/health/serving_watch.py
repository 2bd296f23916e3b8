"""The watch over a server that serves: what is looked at, and what the kernel did to it since it last moved."""

from __future__ import annotations

from llmservice_runtime.drain import shared_counters
from llmservice_runtime.health import hang, memory_events
from llmservice_runtime.health.memory_events import MemoryEvents
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.dependencies import Surroundings
from llmservice_runtime.supervisor.loopback import ask


class ServingWatch:
    """One server's."""

    def __init__(self, options: ServeOptions, around: Surroundings, slots: memoryview, port: int) -> None:
        self._around, self._slots, self._port = around, slots, port
        self._thresholds = hang.Thresholds(options.hang_unready_seconds, options.hang_restart_seconds)
        self._watch = hang.Watch(around.clock(), around.pace.watch_seconds)
        self._memory = memory_events.read(around.cgroup)

    @property
    def still(self) -> float:
        """Seconds without movement."""
        return self._watch.still

    @property
    def memory(self) -> MemoryEvents:
        """What was killed since the engine last moved: what it outlived did not end it."""
        return memory_events.read(self._around.cgroup).since(self._memory)

    async def look(self) -> hang.Verdict:
        """Ask the server, and say what is to be thought of it."""
        before, seen = memory_events.read(self._around.cgroup), await self._sample()
        if self._watch.moves(seen):
            self._memory = before
        self._watch = self._watch.seen(seen, self._around.clock())
        return self._watch.verdict(self._thresholds)

    async def _sample(self) -> hang.Sample:
        slots = self._slots
        awaiting = slots[shared_counters.AWAITING] if slots[shared_counters.ATTACHED] else None
        counts = hang.Counts(
            slots[shared_counters.IN_FLIGHT], awaiting, slots[shared_counters.SENT], slots[shared_counters.CALLED]
        )
        try:
            answer = await ask(self._port, "/metrics", timeout=self._around.pace.watch_seconds)
        except OSError:
            return hang.sample(None, counts)
        return hang.sample(hang.parse_metrics(answer.body), counts)
