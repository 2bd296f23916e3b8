"""When to reconcile again: what several parts of a decision have in common."""

from __future__ import annotations

REFRESH_SECONDS = 60.0
"""Between two readings of free GPUs for a message: figures that moved with every pod would be written all the time."""
QUOTAS_SECONDS = 180.0
"""Between two readings of the quotas that end before maxReplicas: nobody but the condition waits for them."""


def soonest(*times: float | None) -> float | None:
    """The earliest of those that are set."""
    return min((time for time in times if time is not None), default=None)
