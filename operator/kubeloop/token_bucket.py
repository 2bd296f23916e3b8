"""Token buckets: how often a service may cause Events, status writes and reconciles, whatever its pods report.

Ordinary services stay within the burst, so that their changes are reported at once. A pod whose reports alternate all
the time uses the burst up, and from then on gets one at a time. As in client-go's EventCorrelator (tools/record), of
which the figures for Events are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

EVENT_BURST, EVENT_SECONDS = 25, 300.0
"""Events about one service: so many in a row, then one in so many seconds. Others are dropped and counted."""
WRITE_BURST, WRITE_SECONDS = 30, 10.0
"""Status writes that no edit of the spec calls for, likewise. Others are put off: the status says all of it later."""
EDIT_WRITES = 10
"""Writes that an edit gives back: what follows from it is reported at once."""
STEP_BURST, STEP_SECONDS = 40, 15.0
"""Steps of a service's pods that are passed on at once. Others are passed on together, when the time is over."""


@dataclass(slots=True)
class Bucket:
    """Tokens: as many as `burst`, and one more every `seconds`."""

    burst: int
    seconds: float
    _tokens: float = field(init=False)
    _at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._tokens = float(self.burst)

    def take(self, now: float) -> bool:
        """Whether there was one; it is gone then."""
        if self.wait(now) > 0:
            return False
        self._tokens -= 1
        return True

    def wait(self, now: float) -> float:
        """Seconds until there is one."""
        if self._at is not None:
            self._tokens = min(float(self.burst), self._tokens + (now - self._at) / self.seconds)
        self._at = now
        return max(0.0, (1 - self._tokens) * self.seconds)

    def give(self, tokens: int) -> None:
        """At least so many from now on."""
        self._tokens = max(self._tokens, float(tokens))


event_bucket = partial(Bucket, EVENT_BURST, EVENT_SECONDS)
write_bucket = partial(Bucket, WRITE_BURST, WRITE_SECONDS)
step_bucket = partial(Bucket, STEP_BURST, STEP_SECONDS)
