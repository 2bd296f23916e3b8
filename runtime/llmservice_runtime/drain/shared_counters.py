"""A page of shared memory between the supervisor and the middleware: plain loads and stores, no system calls.

Each slot has one writer: the supervisor writes LEVEL, the middleware (one API process) writes the rest. IN_FLIGHT are
requests without a whole answer, AWAITING those without a first byte of one. REFUSED (requests), SENT (pieces of
answers), ARRIVED (requests since the drain began) and CALLED (all requests, those that were turned away too) only grow.
UNTOLD are connections whose last answer began before the drain and so did not say that they end.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

LEVEL, ATTACHED, IN_FLIGHT, AWAITING, REFUSED, UNTOLD, SENT, ARRIVED, CALLED = range(9)
SLOTS = 9
SIZE = SLOTS * 8

# Values of LEVEL.
OPEN, CLOSING, REFUSING, STOPPING = range(4)


def create(path: str) -> Board:
    """A fresh board in a new file, so that a restarted container never meets its predecessor's."""
    Path(path).unlink(missing_ok=True)
    peers_file(path).unlink(missing_ok=True)
    Path(path).write_bytes(bytes(SIZE))
    return Board(path)


def peers_file(path: str) -> Path:
    """Beside a board: the connections that were there when newcomers began to be refused."""
    return Path(f"{path}.peers")


class Board:
    """The slots of a board's file, mapped."""

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
