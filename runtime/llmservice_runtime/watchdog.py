"""Ends this process when its event loop stands still: what a liveness probe would do, without a port to flood.

faulthandler's thread needs neither the loop nor Python's lock. It writes where everything stood, and ends the process
with 1, which in a container ends all of them.
"""

from __future__ import annotations

import asyncio
import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager

_TURNS = 6
"""So often within the time the loop has to come round."""


@contextmanager
def watching(loop: asyncio.AbstractEventLoop, seconds: float) -> Iterator[None]:
    """Meanwhile the loop may stand still for at most so many seconds."""
    handle: asyncio.TimerHandle | None = None

    def turn() -> None:
        nonlocal handle
        faulthandler.dump_traceback_later(seconds, exit=True)
        handle = loop.call_later(seconds / _TURNS, turn)

    turn()
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        if handle is not None:
            handle.cancel()
