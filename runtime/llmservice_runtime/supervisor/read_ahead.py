"""Reads a model's weights into the page cache while vLLM is imported, so that it then loads them from memory.

Files are read in the order of their names, which is the order of shards, several blocks at a time: network volumes
serve requests in parallel. It stops at the memory budget, since pages that are read too early are evicted.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from llmservice_runtime.bounded_json import Refused, opened

THREADS = 4
BLOCK_BYTES = 4 << 20
SHARE = 0.7
"""Share of the available memory for weights; the rest is for vLLM's processes."""
MAX_FILES = 1000
# With other formats vLLM reads differently, or reads no files.
LOAD_FORMATS = frozenset({"auto", "hf", "safetensors", "mistral"})


@contextlib.contextmanager
def reading_ahead(model: str, load_format: str, cgroup: Path) -> Iterator[None]:
    """Read the weights of a folder until the end of the block."""
    reader = ReadAhead(Path(model), budget(cgroup)) if load_format in LOAD_FORMATS else None
    if reader is None:
        yield
        return
    reader.start()
    try:
        yield
    finally:
        reader.stop()


class ReadAhead:
    """Reads at most `budget` bytes of a folder's weights, in threads of its own."""

    def __init__(self, folder: Path, budget: int) -> None:
        self._blocks = _blocks(folder, budget)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._bytes = 0
        self._threads = [threading.Thread(target=self._read, daemon=True) for _ in range(THREADS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the current blocks, without waiting for them: a network volume may hang."""
        self._stopped.set()

    def join(self) -> int:
        """Wait until everything is read; returns the bytes."""
        for thread in self._threads:
            thread.join()
        return self._bytes

    def _read(self) -> None:
        buffer = bytearray(BLOCK_BYTES)
        while not self._stopped.is_set():
            with self._lock:
                block = next(self._blocks, None)
            if block is None:
                return
            path, offset = block
            # vLLM reports unreadable files with the cause.
            try:
                with opened(path) as file:
                    count = os.preadv(file.fileno(), [buffer], offset)
            except (OSError, Refused):
                continue
            with self._lock:
                self._bytes += count


def _blocks(folder: Path, budget: int) -> Iterator[tuple[Path, int]]:
    """File and offset of each block, in order."""
    for path in _files(folder):
        try:
            size = path.stat().st_size
        except OSError:
            continue
        for offset in range(0, size, BLOCK_BYTES):
            if budget <= 0:
                return
            budget -= min(BLOCK_BYTES, size - offset)
            yield path, offset


def _files(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".safetensors")]
    except OSError:
        return []
    return [folder / name for name in sorted(names)[:MAX_FILES]]


def budget(cgroup: Path, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes of memory for weights: a share of the node's available memory within the container's limit."""
    free = [_available(meminfo)]
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is not None and used is not None:
        free.append(limit - used)
    return int(max(0, min(free)) * SHARE)


def _available(meminfo: Path) -> int:
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        return int(rows["MemAvailable"].split()[0]) << 10
    except (OSError, ValueError, KeyError):
        return 0


def _number(path: Path) -> int | None:
    """The number in a file; None without a file or limit."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
