"""How long tests wait for what must come: the limit ends a hang, and says nothing about speed.

It is the limit of a fast machine with nothing beside it, as many times as long as a fixed computation takes here when
the run starts.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable

ALONE = 120.0
"""Seconds for a condition, on a fast machine with nothing beside it."""
_USUAL = 0.04
"""Seconds of the computation there."""
_MOST = 5.0


def _slowness() -> float:
    """The best of three, since it is the machine that counts and not a moment."""
    took = []
    for _ in range(3):
        began = time.perf_counter()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)
        took.append(time.perf_counter() - began)
    return min(_MOST, max(1.0, min(took) / _USUAL))


SLOWNESS = _slowness()
PATIENCE = ALONE * SLOWNESS
KUBECTL_TIMEOUT = f"--timeout={PATIENCE:.0f}s"
"""Of a `kubectl delete`, `wait` or `rollout status`, and of Helm's `--wait`."""


def at_latest(bar: float) -> float:
    """What a test allows a figure with a bar of so many seconds: three times that, on a slow machine as many times as
    long. More is a fault that only the next look mends, and not a busy machine."""
    return 3 * bar * SLOWNESS


def at_most(usual: float) -> float:
    """The limit of a wait that usually takes less than so many seconds."""
    return max(ALONE, usual) * SLOWNESS


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for a condition that no event announces: of a file, of another process, or after a time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.002)
