"""Token buckets that limit the Events, status writes and reconciles of one service, whatever its pods report.

Ordinary services stay within the burst, so that their changes are reported at once. A pod that alternates between
reports uses the burst up and then gets one token at a time. The figures for Events are those of client-go's
EventCorrelator (tools/record).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

EVENT_BURST, EVENT_SECONDS = 25, 300.0
"""Events of one service: so many in a row, then one every so many seconds. Further Events are dropped and counted."""
WRITE_BURST, WRITE_SECONDS = 30, 10.0
"""Status writes that do not follow an edit, likewise. Further writes are postponed: the next status contains
everything."""
EDIT_WRITES = 10
"""Tokens for status writes after an edit, so that its effects are reported at once."""
STEP_BURST, STEP_SECONDS = 40, 15.0
"""Steps of a service's pods that are reported at once. Further steps are combined into one."""


@dataclass(slots=True)
class Bucket:
    """Starts with `burst` tokens and gains one every `seconds`."""

    burst: int
    seconds: float
    _tokens: float = field(init=False)
    _at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._tokens = float(self.burst)

    def take(self, now: float) -> bool:
        """Take a token, if there is one; returns whether there was."""
        if self.wait(now) > 0:
            return False
        self._tokens -= 1
        return True

    def wait(self, now: float) -> float:
        """Seconds until there is a token."""
        if self._at is not None:
            self._tokens = min(float(self.burst), self._tokens + (now - self._at) / self.seconds)
        self._at = now
        return max(0.0, (1 - self._tokens) * self.seconds)

    def give(self, tokens: int) -> None:
        """Raise the number of tokens to at least `tokens`."""
        self._tokens = max(self._tokens, float(tokens))


event_bucket = partial(Bucket, EVENT_BURST, EVENT_SECONDS)
write_bucket = partial(Bucket, WRITE_BURST, WRITE_SECONDS)
step_bucket = partial(Bucket, STEP_BURST, STEP_SECONDS)
