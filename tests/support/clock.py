"""A clock that shows the time of day and never jumps: what waits by it waits no longer than it is to."""

from __future__ import annotations

import time

_OFFSET = time.time() - time.monotonic()


def now() -> float:
    """Seconds of the epoch, as this process's start saw them; they go on evenly when the machine's clock is set."""
    return _OFFSET + time.monotonic()
