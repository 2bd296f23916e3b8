"""The drain's own part: what the middleware is told, and when vLLM may be. docs/draining.md has the order and why.

The counts are shared memory, which cannot be awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llmservice_runtime.access import peers
from llmservice_runtime.drain import shared_counters
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.dependencies import Pace


class Drain:
    """One server's."""

    def __init__(
        self, slots: memoryview, options: ServeOptions, port: int, pace: Pace, clock: Callable[[], float]
    ) -> None:
        self._slots, self._options, self._port, self._pace, self._clock = slots, options, port, pace, clock
        self._deadline: float | None = None

    def close_connections(self) -> None:
        """From now on every answer says that its connection ends."""
        self._slots[shared_counters.LEVEL] = max(shared_counters.CLOSING, self._slots[shared_counters.LEVEL])

    def refuse_newcomers(self) -> None:
        """Whoever connects from now on. Those who are connected and were not told yet are served once more."""
        try:
            peers.record(self._options.drain_file, peers.established(self._port))
        except OSError:  # a full disk is why pods are drained, too: who cannot be told from newcomers is served
            return
        self._slots[shared_counters.LEVEL] = shared_counters.REFUSING

    async def until_nobody_comes(self) -> None:
        """The time in which proxies hear of the endpoint's end, and as much more as they evidently need.

        While the API server or the endpoint controller is away, the Service goes on sending clients here. They are
        served and told to come back; but half of the time that a drain may take is left for what is in flight.
        """
        began = self._clock()
        usual = began + self._options.propagation_seconds
        self._deadline = usual + self._options.drain_seconds
        arrived, quiet_since = self._slots[shared_counters.ARRIVED], began
        while self._clock() < usual + self._options.drain_seconds / 2:
            if self._slots[shared_counters.ARRIVED] != arrived:
                arrived, quiet_since = self._slots[shared_counters.ARRIVED], self._clock()
            if self._clock() >= max(usual, quiet_since + self._pace.lull_seconds):
                return
            await asyncio.sleep(self._pace.in_flight_seconds)

    async def until_idle(self) -> None:
        """Wait for the requests in flight, and for what follows them on connections that were not told to end.

        At most as long as a drain may take, all its steps together: the pod's grace period has room for one timeout.
        """
        if self._deadline is None:
            self._deadline = self._clock() + self._options.drain_seconds
        seen, quiet_since = None, self._clock()
        while self._clock() < self._deadline:
            now = (self._slots[shared_counters.IN_FLIGHT], self._slots[shared_counters.UNTOLD])
            if now != seen:
                seen, quiet_since = now, self._clock()
            if not now[0] and (self._clock() - quiet_since >= self._pace.linger_seconds or not self._is_awaited()):
                return
            await asyncio.sleep(self._pace.in_flight_seconds)

    def _is_awaited(self) -> bool:
        """Whether a client may still send something on a connection that it takes for good, and be served."""
        if self._slots[shared_counters.LEVEL] == shared_counters.STOPPING or not self._slots[shared_counters.UNTOLD]:
            return False
        try:
            return bool(peers.established(self._port))
        except OSError:  # who is connected cannot be seen: as if somebody were
            return True

    async def refuse_all(self) -> None:
        """vLLM is about to be told, and would abort what comes now; what slipped in before this is waited for."""
        self._slots[shared_counters.LEVEL] = shared_counters.STOPPING
        await asyncio.sleep(self._pace.in_flight_seconds)
        await self.until_idle()

    @property
    def in_flight(self) -> int:
        """Requests without a whole answer."""
        return self._slots[shared_counters.IN_FLIGHT]
