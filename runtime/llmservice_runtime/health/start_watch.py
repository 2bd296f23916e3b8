"""Whether a start that takes long still moves: a pure function of what was seen and when.

Slow is not failed. Past its budget a start goes on for as long as it shows signs of life: a line in the log that says
something new, or files being read. Time on a CPU is one too, since compilation is silent; but only for a while, since
an engine that waits for ever for another may do so at full speed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from llmservice_runtime.health.activity import NOTHING, Usage, increase

# What waiting processes write again and again, and what a bar that does not grow says of the time that passes.
_WAITING = re.compile(r"Waiting for \d+ (?:local|remote)|No available shared memory broadcast block")
_PASSING_TIME = re.compile(r"\[\d[\d:]*<[^\]]*\]")
_REMEMBERED = 1000


@dataclass(frozen=True)
class Patience:
    """What counts as a sign of life, and how long a start may be without one. Seconds and bytes."""

    stall_seconds: float = 300.0
    """Without any sign of life."""
    silent_seconds: float = 1800.0
    """With no other sign than time on a CPU."""
    bytes_read: int = 8 * 2**20
    cpu_seconds: float = 30.0
    """In all its processes together; one that only waits takes less than a tenth of a CPU."""


class Verdict(Enum):
    """Where a start stands."""

    IN_TIME = "in time"
    SLOW = "slow"
    STOPPED = "stopped"
    """Past the budget, and nothing moves."""
    TOO_LONG = "too long"
    """It moves, but the startup probe would end it now."""


@dataclass(frozen=True)
class StartWatch:
    """What was last seen to move, and when."""

    moved_at: float
    """Any sign of life."""
    told_at: float
    """A line, or bytes that were read: more than time on a CPU."""
    seen: Mapping[int, Usage]
    pending: Usage = NOTHING
    """Since the last sign of life of this kind; a trickle adds up."""

    @classmethod
    def begin(cls, now: float) -> StartWatch:
        """A start that begins."""
        return cls(now, now, {})

    def heard(self, now: float) -> StartWatch:
        """After a line that says something new."""
        return replace(self, moved_at=now, told_at=now)

    def looked(self, usage: Mapping[int, Usage], now: float, patience: Patience) -> StartWatch:
        """After a look at what the processes have used."""
        grown = increase(self.seen, usage)
        read, computed = self.pending.bytes_read + grown.bytes_read, self.pending.cpu_seconds + grown.cpu_seconds
        moved_at, told_at = self.moved_at, self.told_at
        if read >= patience.bytes_read:
            moved_at = told_at = now
            read = 0
        if computed >= patience.cpu_seconds:
            if now - told_at < patience.silent_seconds:
                moved_at = now
            computed = 0.0
        return StartWatch(moved_at, told_at, usage, Usage(read, computed))

    def verdict(self, *, left: float, ceiling: float, now: float, patience: Patience) -> Verdict:
        """`left`: seconds of the budget; `ceiling`: seconds until the startup probe gives up."""
        if ceiling <= 0:
            return Verdict.TOO_LONG
        if left > 0:
            return Verdict.IN_TIME
        return Verdict.STOPPED if now - self.moved_at >= patience.stall_seconds else Verdict.SLOW


class News:
    """Tells lines that say something new from those that a waiting process repeats."""

    def __init__(self) -> None:
        self._said: deque[int] = deque(maxlen=_REMEMBERED)

    def is_new(self, text: str) -> bool:
        """Of a line's text, without its prefix."""
        words = _PASSING_TIME.sub("", text).strip()
        if not words or _WAITING.search(words) or (told := hash(words)) in self._said:
            return False
        self._said.append(told)
        return True
