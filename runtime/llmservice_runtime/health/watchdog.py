"""Ends this process when its event loop is blocked; replaces a liveness probe, whose port clients could flood.

A thread measures for how long the loop has not run and exits with 1, which ends the container. Time in which the thread
itself did not run is not counted: the process was frozen (cgroup, SIGSTOP) or had no CPU. The thread needs the GIL; a
process whose GIL is held forever is ended by faulthandler, which uses the wall clock and has a longer limit.
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
"""Loop callbacks per limit."""
_CHECKS = 20
"""Checks of the thread per limit."""
_LONGEST_STEP = 3
"""In check intervals; a longer pause counts as one interval."""
_LAST_RESORT = 20
"""Multiple of the limit after which faulthandler ends the process."""


class _Watch(threading.Thread):
    """The thread; runs until `end`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._seconds, self._interval = seconds, seconds / _CHECKS
        self._over = threading.Event()
        self._stalled = 0.0

    def on_loop_turn(self) -> None:
        """Record that the loop ran."""
        self._stalled = 0.0

    def end(self) -> None:
        self._over.set()

    def run(self) -> None:
        """Check periodically; end the process at the limit."""
        seen_at = time.monotonic()
        while not self._over.wait(self._interval):
            now = time.monotonic()
            step, seen_at = now - seen_at, now
            self._stalled += step if step <= _LONGEST_STEP * self._interval else self._interval
            if self._stalled >= self._seconds:
                self._end_process()

    def _end_process(self) -> None:
        os.write(2, b"Timeout: the event loop is blocked\n")
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)


@contextmanager
def watching(loop: asyncio.AbstractEventLoop, seconds: float) -> Iterator[None]:
    """A context in which the loop may be blocked for at most `seconds`."""
    handle: asyncio.TimerHandle | None = None
    watch = _Watch(seconds)

    def turn() -> None:
        nonlocal handle
        watch.on_loop_turn()
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
