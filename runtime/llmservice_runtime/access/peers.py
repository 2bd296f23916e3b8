"""Who is connected to a port, as the kernel has it: of the pod, whose network is its own."""

from __future__ import annotations

import ipaddress
import json
import sys
from pathlib import Path

from llmservice_runtime.drain.shared_counters import peers_file

_ESTABLISHED = "01"
Peer = tuple[str, int]


def established(port: int, net: Path = Path("/proc/net")) -> frozenset[Peer]:
    """Remote ends, those among them that vLLM has not accepted yet; IPv4 addresses always as such."""
    return frozenset(peer for name in ("tcp", "tcp6") for peer in _of_table(net / name, port))


def _of_table(path: Path, port: int) -> list[Peer]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()[1:]
    except OSError:  # no such family here
        return []
    fields = [line.split(maxsplit=4) for line in lines]
    return [_peer(row[2]) for row in fields if row[3] == _ESTABLISHED and int(row[1].rpartition(":")[2], 16) == port]


def _peer(text: str) -> Peer:
    """`0100007F:1F90`: words of 32 bit in the order of the machine's bytes."""
    host, _, port = text.partition(":")
    words = [int(host[place : place + 8], 16) for place in range(0, len(host), 8)]
    raw = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    address = ipaddress.ip_address(raw)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), int(port, 16)


def record(board: str, peers: frozenset[Peer]) -> None:
    """For the middleware, at once whole: it reads it when it first has to refuse."""
    path = peers_file(board)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(sorted(peers)), encoding="utf-8")
    draft.replace(path)
