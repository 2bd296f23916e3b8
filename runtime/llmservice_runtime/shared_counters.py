"""Counters in a page of shared memory between the supervisor and the middleware: no system calls.

Each slot is a 64-bit integer with one writer: the supervisor writes LEVEL, the middleware (one API process) the rest.

ATTACHED    1 once the middleware is loaded
IN_FLIGHT   requests without a complete response
AWAITING    requests without the first byte of a response
KEPT_ALIVE  connections whose last response began before the drain, without `Connection: close`
REFUSED, SENT, ARRIVED, RECEIVED, BEGUN, ABORTED only grow: refused requests, response chunks, requests since the drain
began, all requests (refused ones included), requests that ended and used the model, requests whose client went away
LAST        when the last request ended that used the model, and what it was, in one write (`pack_use`); 0: none did
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from llmservice_vllm.paths import MODEL_POSTS, MODEL_WEBSOCKET

LEVEL, ATTACHED, IN_FLIGHT, AWAITING, REFUSED, KEPT_ALIVE, SENT, ARRIVED, RECEIVED, BEGUN, ABORTED, LAST = range(12)
SLOTS = 12
SIZE = SLOTS * 8

# Values of LEVEL.
OPEN, CLOSING, REFUSING, STOPPING = range(4)

# LAST has indices into these, so that no client text is passed on; 0: any other.
_METHODS = ("OTHER", "POST", "PUT", "PATCH", "DELETE", "WEBSOCKET")
_PATHS = ("", *MODEL_POSTS, MODEL_WEBSOCKET)
_METHOD_NUMBERS = {method: number for number, method in enumerate(_METHODS)}
_PATH_NUMBERS = {path: number for number, path in enumerate(_PATHS)}


def pack_use(seconds: float, method: str, path: str) -> int:
    """A value of LAST: Unix time, method and path in one integer."""
    return max(1, int(seconds)) << 16 | _METHOD_NUMBERS.get(method, 0) << 8 | _PATH_NUMBERS.get(path, 0)


def unpack_use(slot: int) -> tuple[int, str, str] | None:
    """The inverse, with an empty path for one that is not vLLM's; None without a request."""
    seconds, method, path = slot >> 16, slot >> 8 & 0xFF, slot & 0xFF
    if not seconds or method >= len(_METHODS) or path >= len(_PATHS):
        return None
    return seconds, _METHODS[method], _PATHS[path]


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
        self.slots.release()
        self._map.close()
