"""Steps of a drain: sets the middleware's level and waits for its counters. docs/draining.md has the order and the
reasons.

The counters are shared memory without notification, so they are polled.
"""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections.abc import Callable
from pathlib import Path

from llmservice_runtime import atomic_file, shared_counters
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.dependencies import Timing

_ESTABLISHED = "01"
Peer = tuple[str, int]


def established(port: int, net: Path = Path("/proc/net")) -> frozenset[Peer]:
    """Remote addresses of established connections, those that vLLM has not accepted yet included.

    IPv4-mapped IPv6 addresses are given as IPv4.
    """
    return frozenset(peer for name in ("tcp", "tcp6") for peer in _of_table(net / name, port))


def _of_table(path: Path, port: int) -> list[Peer]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()[1:]
    except OSError:  # address family not available
        return []
    fields = [line.split(maxsplit=4) for line in lines]
    return [_peer(row[2]) for row in fields if row[3] == _ESTABLISHED and int(row[1].rpartition(":")[2], 16) == port]


def _peer(text: str) -> Peer:
    """Parse `0100007F:1F90`: 32-bit words in the machine's byte order, and the port."""
    host, _, port = text.partition(":")
    words = [int(host[place : place + 8], 16) for place in range(0, len(host), 8)]
    raw = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    address = ipaddress.ip_address(raw)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), int(port, 16)


def record_peers(counters_file: str, peers: frozenset[Peer]) -> None:
    """Write the peers for the middleware, atomically; it reads them on its first refusal."""
    atomic_file.write_json(shared_counters.peers_file(counters_file), sorted(peers))


class Drain:
    """The drain of one server. `slots` are the shared counters, `port` is vLLM's."""

    def __init__(
        self, slots: memoryview, options: ServeOptions, port: int, timing: Timing, clock: Callable[[], float]
    ) -> None:
        self._slots, self._options, self._port, self._timing, self._clock = slots, options, port, timing, clock
        self._deadline: float | None = None

    def close_connections(self) -> None:
        """Add `Connection: close` to every response from now on."""
        self._slots[shared_counters.LEVEL] = max(shared_counters.CLOSING, self._slots[shared_counters.LEVEL])

    def refuse_newcomers(self) -> None:
        """Refuse new connections. Established ones without a `Connection: close` so far are served once more."""
        try:
            record_peers(self._options.drain_file, established(self._port))
        except OSError:  # the disk may be full: serve everyone rather than refuse known clients
            return
        self._slots[shared_counters.LEVEL] = shared_counters.REFUSING

    async def until_nobody_comes(self) -> None:
        """Wait until no requests arrive: the propagation time, then until `lull_seconds` pass without a request.

        While the API server or the endpoint controller is down, the Service continues to send requests here, which
        are served. At most half of the drain time is used, so that the rest remains for requests in flight.
        """
        began = self._clock()
        usual = began + self._options.propagation_seconds
        self._deadline = usual + self._options.drain_seconds
        arrived, quiet_since = self._slots[shared_counters.ARRIVED], began
        while self._clock() < usual + self._options.drain_seconds / 2:
            if self._slots[shared_counters.ARRIVED] != arrived:
                arrived, quiet_since = self._slots[shared_counters.ARRIVED], self._clock()
            if self._clock() >= max(usual, quiet_since + self._timing.lull_seconds):
                return
            await asyncio.sleep(self._timing.in_flight_seconds)

    async def until_idle(self) -> None:
        """Wait for requests in flight, and for follow-ups on connections without a `Connection: close` yet.

        All steps of the drain share one deadline: the pod's grace period has room for one timeout.
        """
        if self._deadline is None:
            self._deadline = self._clock() + self._options.drain_seconds
        seen, quiet_since = None, self._clock()
        while self._clock() < self._deadline:
            now = (self._slots[shared_counters.IN_FLIGHT], self._slots[shared_counters.KEPT_ALIVE])
            if now != seen:
                seen, quiet_since = now, self._clock()
            if not now[0] and (self._clock() - quiet_since >= self._timing.linger_seconds or not self._is_awaited()):
                return
            await asyncio.sleep(self._timing.in_flight_seconds)

    def _is_awaited(self) -> bool:
        """Whether a client may still send a request on a kept-alive connection and be served."""
        if (
            self._slots[shared_counters.LEVEL] == shared_counters.STOPPING
            or not self._slots[shared_counters.KEPT_ALIVE]
        ):
            return False
        try:
            return bool(established(self._port))
        except OSError:  # connections cannot be listed: assume that there are some
            return True

    async def refuse_all(self) -> None:
        """Refuse all requests, because vLLM is about to stop and would abort them; wait for those already accepted."""
        self._slots[shared_counters.LEVEL] = shared_counters.STOPPING
        await asyncio.sleep(self._timing.in_flight_seconds)
        await self.until_idle()

    @property
    def seconds_left(self) -> float:
        """Until the deadline."""
        return self._options.drain_seconds if self._deadline is None else max(0.0, self._deadline - self._clock())

    @property
    def in_flight(self) -> int:
        return self._slots[shared_counters.IN_FLIGHT]
