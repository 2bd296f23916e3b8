"""CPU time and bytes read of the processes of a group, from /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name, which may hold any character: proc(5) counts them from 3.
_GROUP, _TIMES = 5 - 3, slice(14 - 3, 18 - 3)


@dataclass(frozen=True)
class Usage:
    """Usage of one process since its start: CPU seconds (ended children included) and bytes read.

    Bytes are the larger of rchar and read_bytes: reads of mapped files appear in the second only, reads from the page
    cache in the first only.
    """

    bytes_read: int = 0
    cpu_seconds: float = 0.0


NOTHING = Usage()


def of_group(group: int, proc: Path = Path("/proc")) -> Mapping[int, Usage]:
    """Process id -> usage for the processes of a group. Processes that ended or cannot be read are left out."""
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
    """0 where the kernel does not report it; other signs of progress count then."""
    try:
        lines = (folder / "io").read_text(encoding="ascii").splitlines()
        counts = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    except (OSError, ValueError):
        return 0
    return max(counts.get("rchar", 0), counts.get("read_bytes", 0))


def increase(before: Mapping[int, Usage], now: Mapping[int, Usage]) -> Usage:
    """Usage between two samples. New processes count from 0; ended ones are left out."""
    grown = [(before.get(pid, NOTHING), usage) for pid, usage in now.items()]
    return Usage(
        sum(max(0, usage.bytes_read - old.bytes_read) for old, usage in grown),
        sum(max(0.0, usage.cpu_seconds - old.cpu_seconds) for old, usage in grown),
    )
