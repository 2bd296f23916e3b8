"""What the processes of a group have read and computed, as /proc counts it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat behind the name, which may hold anything: proc(5) counts from 3 there.
_GROUP, _TIMES = 5 - 3, slice(14 - 3, 18 - 3)


@dataclass(frozen=True)
class Usage:
    """What one process has used since it began. Seconds of CPU with those of its ended children; bytes read.

    Bytes are the larger of what it asked for and what came from storage: a mapped file is read without being asked for,
    and what the page cache holds never comes from storage.
    """

    bytes_read: int = 0
    cpu_seconds: float = 0.0


NOTHING = Usage()


def of_group(group: int, proc: Path = Path("/proc")) -> Mapping[int, Usage]:
    """By process. A process that ends meanwhile is left out; so is one that may not be looked at."""
    found = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal() and (usage := _usage(folder, group)) is not None:
            found[int(folder.name)] = usage
    return found


def _usage(folder: Path, group: int) -> Usage | None:
    try:
        fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        if int(fields[_GROUP]) != group:
            return None
        return Usage(_bytes_read(folder), sum(map(int, fields[_TIMES])) / _TICKS)
    except (OSError, IndexError, ValueError):
        return None


def _bytes_read(folder: Path) -> int:
    """0 where the kernel does not say: the other signs of life count then."""
    try:
        lines = (folder / "io").read_text(encoding="ascii").splitlines()
        counts = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    except (OSError, ValueError):
        return 0
    return max(counts.get("rchar", 0), counts.get("read_bytes", 0))


def increase(before: Mapping[int, Usage], now: Mapping[int, Usage]) -> Usage:
    """What was used between two looks. A process that is new counts from 0, one that ended no more."""
    grown = [(before.get(pid, NOTHING), usage) for pid, usage in now.items()]
    return Usage(
        sum(max(0, usage.bytes_read - old.bytes_read) for old, usage in grown),
        sum(max(0.0, usage.cpu_seconds - old.cpu_seconds) for old, usage in grown),
    )
