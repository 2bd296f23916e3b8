"""Counters in a page of shared memory between the supervisor and the middleware: no system calls.

Each slot is a 64-bit integer with one writer: the supervisor writes LEVEL, the middleware (one API process) the rest.

ATTACHED    1 once the middleware is loaded
IN_FLIGHT   requests without a complete response
AWAITING    requests without the first byte of a response
KEPT_ALIVE  connections whose last response began before the drain, without `Connection: close`
REFUSED, SENT, ARRIVED, RECEIVED, BEGUN, ABORTED only grow: refused requests, response chunks, requests since the drain
began, all requests (refused ones included), requests that ended and used the model, requests whose client went away
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

LEVEL, ATTACHED, IN_FLIGHT, AWAITING, REFUSED, KEPT_ALIVE, SENT, ARRIVED, RECEIVED, BEGUN, ABORTED = range(11)
SLOTS = 11
SIZE = SLOTS * 8

# Values of LEVEL.
OPEN, CLOSING, REFUSING, STOPPING = range(4)


def create(path: str) -> SharedCounters:
    """Counters in a new file, so that a restarted container does not read its predecessor's."""
    Path(path).unlink(missing_ok=True)
    peers_file(path).unlink(missing_ok=True)
    Path(path).write_bytes(bytes(SIZE))
    return SharedCounters(path)


def peers_file(path: str) -> Path:
    """The file with the connections established when the server began to refuse new ones."""
    return Path(f"{path}.peers")


class SharedCounters:
    """The mapped file; `slots` are its integers."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        self.slots = memoryview(self._map).cast("Q")

    def close(self) -> None:
        """Unmap."""
        self.slots.release()
        self._map.close()
