"""Ports for servers of tests."""

from __future__ import annotations

import os
import random
import socket

_FIRST, _EACH = 15_000, 2_000
"""Below what Linux gives outgoing connections (32768) and what Kubernetes gives NodePorts (30000): nobody takes such a
port between the choice and the server's start. Each worker of pytest-xdist has its own."""
_given: set[int] = set()


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on, and that was not given to another test of this process."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST + _EACH * (worker % 6)
    for port in random.sample(range(first, first + _EACH), _EACH):
        if port not in _given and _is_free(address, port):
            _given.add(port)
            return port
    raise OSError(f"no port from {first} to {first + _EACH - 1} of {address} is free")


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
