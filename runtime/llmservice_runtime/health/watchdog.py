"""Ends this process when its event loop stands still: what a liveness probe would do, without a port to flood.

A thread counts for how long the loop has not come round, and ends the process with 1, which in a container ends all of
them. Time in which the thread could not look either is not counted: the whole process stood, frozen by its cgroup or by
SIGSTOP, or the node had no CPU for it, and an end would only take a model away that is well. The thread needs Python's
lock, and whoever keeps that for good is ended by faulthandler, whose thread needs nothing; but it goes by the clock.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_TURNS = 6
"""So often within the time the loop has to come round."""
_LOOKS = 20
"""So often within the time the thread looks."""
_LONGEST_STEP = 3
"""Looks; after a longer pause nobody was there to look."""
_LAST_RESORT = 20
"""So many times the time, without Python's lock."""


class _Watch(threading.Thread):
    """Counts, until it is told to end."""

    def __init__(self, seconds: float) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._seconds, self._interval = seconds, seconds / _LOOKS
        self._over = threading.Event()
        self._still = 0.0

    def turned(self) -> None:
        """The loop came round."""
        self._still = 0.0

    def end(self) -> None:
        """Nobody is watched any more."""
        self._over.set()

    def run(self) -> None:
        """Look, and end the process where it is time."""
        seen_at = time.monotonic()
        while not self._over.wait(self._interval):
            now = time.monotonic()
            step, seen_at = now - seen_at, now
            self._still += step if step <= _LONGEST_STEP * self._interval else self._interval
            if self._still >= self._seconds:
                self._end_process()

    def _end_process(self) -> None:
        os.write(2, b"Timeout: the event loop stands still\n")
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)


@contextmanager
def watching(loop: asyncio.AbstractEventLoop, seconds: float) -> Iterator[None]:
    """Meanwhile the loop may stand still for at most so many seconds."""
    handle: asyncio.TimerHandle | None = None
    watch = _Watch(seconds)

    def turn() -> None:
        nonlocal handle
        watch.turned()
        faulthandler.dump_traceback_later(_LAST_RESORT * seconds, exit=True)
        handle = loop.call_later(seconds / _TURNS, turn)

    turn()
    watch.start()
    try:
        yield
    finally:
        watch.end()
        faulthandler.cancel_dump_traceback_later()
        if handle is not None:
            handle.cancel()
