"""How far a fetch is: counted by the threads that download, told every second."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llmservice_runtime.contract import Transfer, TransferStep

from llmservice_fetch.store import Store

TELL_SECONDS = 1.0
# Long enough to smooth the gaps between files, short enough to follow a network that changes.
_PACE_SECONDS = 20.0


class Meter:
    """The progress of one artifact. Bytes that were there before count as done, and not for the pace."""

    def __init__(self, artifact: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._artifact, self._clock = artifact, clock
        self._lock = threading.Lock()
        self._step = TransferStep.LISTING
        self._done, self._total = 0, 0
        self._fetched = 0
        self._samples: deque[tuple[float, int]] = deque()

    def begin(self, step: TransferStep, done: int, total: int) -> None:
        """What happens now, with bytes that are there and bytes in all."""
        with self._lock:
            self._step, self._done, self._total = step, done, total
            self._samples.clear()

    def add(self, count: int) -> None:
        """Bytes that came; negative ones are lost again (a file that has to begin anew)."""
        with self._lock:
            self._done += count
            self._fetched += max(count, 0)

    def look(self) -> Transfer:
        """Where it stands."""
        with self._lock:
            now = self._clock()
            self._samples.append((now, self._fetched))
            while len(self._samples) > 2 and now - self._samples[0][0] > _PACE_SECONDS:
                self._samples.popleft()
            then, before = self._samples[0]
            pace = (self._fetched - before) / (now - then) if now - then >= TELL_SECONDS else None
            return Transfer(
                self._artifact,
                self._step,
                self._done,
                self._total or None,
                pace if self._step in (TransferStep.DOWNLOADING, TransferStep.VERIFYING) else None,
            )


@contextmanager
def telling(look: Callable[[], Transfer], tell: Callable[[Transfer], None]) -> Iterator[None]:
    """Tell how it stands now, every second, and once more at the end."""
    ended = threading.Event()

    def run() -> None:
        while True:
            tell(look())
            if ended.wait(TELL_SECONDS):
                tell(look())
                return

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def leave(store: Store, transfer: Transfer) -> None:
    """Leave it for those who wait. A cache that is full has no room for this either, and says so elsewhere."""
    with contextlib.suppress(OSError):
        store.leave_progress(transfer.to_json())


def found(store: Store, artifact: str) -> Transfer:
    """What the process that downloads left, as news of one that waits."""
    with contextlib.suppress(OSError, ValueError):
        seen = Transfer.from_json(store.progress())
        return Transfer(artifact, TransferStep.WAITING, seen.bytes_done, seen.bytes_total, seen.bytes_per_second)
    return Transfer(artifact, TransferStep.WAITING)
