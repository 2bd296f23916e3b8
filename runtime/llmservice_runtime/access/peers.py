"""Lists the connections to a port of the pod, from /proc/net."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path

from llmservice_runtime import atomic_file
from llmservice_runtime.drain.shared_counters import peers_file

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


def record(counters_file: str, peers: frozenset[Peer]) -> None:
    """Write the peers for the middleware, atomically; it reads them on its first refusal."""
    atomic_file.write_json(peers_file(counters_file), sorted(peers))
