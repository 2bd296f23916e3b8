"""Decides whether a start past its budget makes progress, by samples of its processes' usage and their times.

A slow start is not a failed one. Past its budget it continues while there are new lines in the log or files are read.
CPU time counts as progress too, because compilation writes nothing, but only for `silent_seconds`: processes that wait
for each other may spin.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
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


def usage_of_group(group: int, proc: Path = Path("/proc")) -> Mapping[int, Usage]:
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
    """0 where the kernel does not report it; other progress counts then."""
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


# Lines that waiting processes repeat, and the elapsed time in progress bars.
_WAITING = re.compile(r"Waiting for \d+ (?:local|remote)|No available shared memory broadcast block")
_PASSING_TIME = re.compile(r"\[\d[\d:]*<[^\]]*\]")
_REMEMBERED = 1000


@dataclass(frozen=True)
class StallLimits:
    """How much activity counts as progress, and how long a start may lack it. Seconds and bytes."""

    stall_seconds: float = 300.0
    """Longest time without any progress."""
    silent_seconds: float = 1800.0
    """Longest time with CPU time as the only progress."""
    bytes_read: int = 8 * 2**20
    cpu_seconds: float = 30.0
    """Sum over all processes; a process that only waits takes less than a tenth of a CPU."""


class Verdict(Enum):
    """Assessment of a start."""

    IN_TIME = "in time"
    SLOW = "slow"
    STOPPED = "stopped"
    """Past the budget, without progress."""
    TOO_LONG = "too long"
    """With progress, but at the startup probe's limit."""


@dataclass(frozen=True)
class StartWatch:
    """Times of the last progress (seconds, monotonic) and the last usage."""

    active_at: float
    """Last progress of any kind."""
    output_at: float
    """Last new log line or read of `bytes_read` bytes."""
    seen: Mapping[int, Usage]
    pending: Usage = NOTHING
    """Usage since the last progress of its kind."""

    @classmethod
    def begin(cls, now: float) -> StartWatch:
        return cls(now, now, {})

    def after_line(self, now: float) -> StartWatch:
        """The watch after a new log line or a completed step."""
        return replace(self, active_at=now, output_at=now)

    def after_usage(self, usage: Mapping[int, Usage], now: float, limits: StallLimits) -> StartWatch:
        """The watch after a sample of the processes' usage."""
        grown = increase(self.seen, usage)
        read, computed = self.pending.bytes_read + grown.bytes_read, self.pending.cpu_seconds + grown.cpu_seconds
        active_at, output_at = self.active_at, self.output_at
        if read >= limits.bytes_read:
            active_at = output_at = now
            read = 0
        if computed >= limits.cpu_seconds:
            if now - output_at < limits.silent_seconds:
                active_at = now
            computed = 0.0
        return StartWatch(active_at, output_at, usage, Usage(read, computed))

    def verdict(self, *, remaining: float, ceiling: float, now: float, limits: StallLimits) -> Verdict:
        """The verdict. `remaining`: seconds left of the budget; `ceiling`: seconds until the startup probe's limit."""
        if ceiling <= 0:
            return Verdict.TOO_LONG
        if remaining > 0:
            return Verdict.IN_TIME
        return Verdict.STOPPED if now - self.active_at >= limits.stall_seconds else Verdict.SLOW


class LineFilter:
    """Distinguishes new log lines from those that a waiting process repeats."""

    def __init__(self) -> None:
        self._seen: deque[int] = deque(maxlen=_REMEMBERED)

    def is_new(self, text: str) -> bool:
        """Whether the line (without its prefix) is new; remembers the last 1,000."""
        words = _PASSING_TIME.sub("", text).strip()
        if not words or _WAITING.search(words) or (digest := hash(words)) in self._seen:
            return False
        self._seen.append(digest)
        return True
