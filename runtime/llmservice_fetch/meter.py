"""Measures the progress of a fetch and reports it every second."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llmservice_runtime.contract import Transfer, TransferStep

from llmservice_fetch.store import Store

REPORT_SECONDS = 1.0
# Window of the rate: smooths gaps between files, follows changes of the network.
_PACE_SECONDS = 20.0


class Meter:
    """Progress of one artifact; thread-safe. Bytes present before count as done, but not for the rate."""

    def __init__(self, artifact: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._artifact, self._clock = artifact, clock
        self._lock = threading.Lock()
        self._step = TransferStep.LISTING
        self._done, self._total = 0, 0
        self._fetched = 0
        self._samples: deque[tuple[float, int]] = deque()

    def begin(self, step: TransferStep, done: int, total: int) -> None:
        """Begin a step; `done` and `total` are in bytes."""
        with self._lock:
            self._step, self._done, self._total = step, done, total
            self._samples.clear()

    def add(self, count: int) -> None:
        """Add received bytes; negative for discarded ones."""
        with self._lock:
            self._done += count
            self._fetched += max(count, 0)

    def snapshot(self) -> Transfer:
        with self._lock:
            now = self._clock()
            self._samples.append((now, self._fetched))
            while len(self._samples) > 2 and now - self._samples[0][0] > _PACE_SECONDS:
                self._samples.popleft()
            then, before = self._samples[0]
            pace = (self._fetched - before) / (now - then) if now - then >= REPORT_SECONDS else None
            return Transfer(
                self._artifact,
                self._step,
                self._done,
                self._total or None,
                pace if self._step in (TransferStep.DOWNLOADING, TransferStep.VERIFYING) else None,
            )


@contextmanager
def reporting(snapshot: Callable[[], Transfer], report: Callable[[Transfer], None]) -> Iterator[None]:
    """A context in which progress is reported now, every second, and at the end."""
    ended = threading.Event()

    def run() -> None:
        while True:
            report(snapshot())
            if ended.wait(REPORT_SECONDS):
                report(snapshot())
                return

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def save_progress(store: Store, transfer: Transfer) -> None:
    """Store the progress for waiting processes. Errors, such as a full cache, are reported elsewhere."""
    with contextlib.suppress(OSError):
        store.leave_progress(transfer.to_json())


def progress_of_other(store: Store, artifact: str) -> Transfer:
    """The stored progress of the downloading process, as that of a waiting one."""
    with contextlib.suppress(OSError, ValueError):
        other = Transfer.from_json(store.progress())
        return Transfer(artifact, TransferStep.WAITING, other.bytes_done, other.bytes_total, other.bytes_per_second)
    return Transfer(artifact, TransferStep.WAITING)
