"""Downloads files concurrently: resumed, with back-off, and verified before they are renamed to their blob.

The progress is measured and reported every second.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from llmservice_runtime.contract import Transfer, TransferStep

from llmservice_fetch import failed
from llmservice_fetch.failed import HTTPStatusError, Unreachable
from llmservice_fetch.files import Digest, Listing, Origin, RemoteFile, total
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


_CHUNK_BYTES = 1 << 20


class Partial:
    """Bytes are appended in order, so that after a kill the file's size is the offset to resume from.

    `target` must be readable too; `root` is for messages. `count` is called with received bytes, negative for
    discarded ones.
    """

    def __init__(
        self, target: FileIO, root: Path, file: RemoteFile, digest: Digest | None, count: Callable[[int], None]
    ) -> None:
        self._target, self._root, self._file, self._digest, self._count = target, root, file, digest, count
        self._hasher: hashlib._Hash | None = None
        self.offset = os.fstat(target.fileno()).st_size
        """Bytes present."""
        if self.offset > file.size:
            count(self.offset - file.size)  # was counted as a complete file
            self.restart()
        else:
            self._start_hash()

    def _start_hash(self) -> None:
        self._hasher = self._digest.start(self._file.size) if self._digest else None
        if self._hasher and self.offset:
            at = 0
            while chunk := os.pread(self._target.fileno(), _CHUNK_BYTES, at):
                self._hasher.update(chunk)
                at += len(chunk)

    def append(self, chunk: bytes | memoryview) -> None:
        """Write and hash a chunk, both without the GIL. FetchFailed where the disk fails."""
        left = memoryview(chunk)
        with failed.storage(self._root):
            while left:
                left = left[self._target.write(left) :]
        if self._hasher:
            self._hasher.update(chunk)
        self.offset += len(chunk)
        self._count(len(chunk))

    def restart(self) -> None:
        self._count(-self.offset)
        self._target.truncate(0)
        self.offset = 0
        self._start_hash()

    def finish(self) -> str | None:
        """Sync the file and return None where it matches the digest; else its hash, with all bytes discarded."""
        hashed = self._hasher.hexdigest() if self._hasher else ""
        if self._digest is None or hashed == self._digest.value:
            os.fsync(self._target.fileno())
            return None
        self._count(-self.offset)
        return hashed


T = TypeVar("T")
WORKERS = 8
# Connections for parts of large files, whose bytes wait in memory for their turn: 64 MiB in total.
PARTS = 8
PART_BYTES = 8 << 20
# Waiting parts are at most 1/20 of their file.
_PARTS_OF_FILE = 20
# A file with a connection this fast is not read in parts: parts cost 0.5 s of CPU per GB, and are slower where CPU is
# the bottleneck. Stores of hubs and clouds send 30 to 100 MB/s per connection.
FAST_BYTES_PER_SECOND = 150e6
# Bytes of the first measurement of a connection's speed, and of later ones.
PROBE_BYTES = 64 << 20
STRETCH_BYTES = 512 << 20
# Kept free for listings, links and other content of the volume.
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True)
class RetryPolicy:
    """Consecutive attempts of a request, and the back-off in seconds: `first`, doubled each time up to `longest`."""

    attempts: int = 6
    first: float = 1.0
    longest: float = 30.0
    sleep: Callable[[float], object] = field(default=time.sleep)
    left: Callable[[], float] = field(default=lambda: math.inf)
    """Seconds until no further attempt is made."""

    def seconds(self, failures: int, asked: float) -> float:
        """Seconds before the next attempt, at least the server's Retry-After (`asked`), up to 120."""
        pause = min(max(self.first * 2.0 ** (failures - 1), asked), max(self.longest, min(asked, 120.0)))
        return min(pause, self.left())


class Stopped(Exception):
    """Another file has failed."""


class _WholeOnly(Exception):
    """The server ignores ranges."""


def _refuse() -> None:
    raise _WholeOnly


@runtime_checkable
class InParts(Protocol):
    """An origin that decides per file whether it may be read in concurrent parts."""

    def in_parts(self, listing: Listing, file: RemoteFile) -> bool:
        """Whether this file may be read in parts. Raises like read."""


class ActiveFiles:
    """Number of files being downloaded; a context for each file."""

    def __init__(self) -> None:
        self.count, self._lock = 0, threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.count -= 1


def retrying(action: Callable[[], T], policy: RetryPolicy, log: Callable[[str], None], place: str) -> T:
    """The result of `action`, with retries. FetchFailed after the last one; `place` is for the remedy."""
    failures = 0
    while True:
        try:
            return action()
        except (Unreachable, HTTPStatusError) as error:
            failures += 1
            back_off(error, failures, policy, log, place)


def back_off(
    error: Unreachable | HTTPStatusError, failures: int, policy: RetryPolicy, log: Callable[[str], None], place: str
) -> None:
    """Wait before the next attempt; FetchFailed after the last one, or for a permanent error."""
    permanent = isinstance(error, HTTPStatusError) and not error.is_transient
    if permanent or failures >= policy.attempts or policy.left() <= 0:
        often = "" if permanent else f" ({failures} times in a row)"
        raise failed.download_failed(f"{error}{often}.", place) from error
    seconds = policy.seconds(failures, error.wait if isinstance(error, HTTPStatusError) else 0.0)
    log(f"{error}; trying again in {seconds:.0f} s")
    policy.sleep(seconds)


@dataclass(frozen=True)
class Download:
    origin: Origin
    listing: Listing
    store: Store
    meter: Meter
    log: Callable[[str], None]
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    suffix: str = ""
    """Of partial files, to separate processes where the cache has no locks."""
    stop: threading.Event = field(default_factory=threading.Event)
    active: ActiveFiles = field(default_factory=ActiveFiles)
    clock: Callable[[], float] = time.monotonic

    def check_space(self, files: Sequence[RemoteFile]) -> None:
        """FetchFailed where the volume has no space for the rest of these files."""
        needed = total(files) - sum(self.store.bytes_of(file) for file in files)
        free = shutil.disk_usage(self.store.root).free
        if needed and needed + _SPARE_BYTES > free:
            raise failed.storage_full(self.store.root, needed, free)

    def fetch(self, files: Sequence[RemoteFile]) -> None:
        """Fetch all missing files. The first failure ends all; received bytes are kept."""
        missing = {file.blob: file for file in self.store.missing(files)}
        with (
            ThreadPoolExecutor(PARTS, thread_name_prefix="part") as ahead,
            ThreadPoolExecutor(WORKERS, thread_name_prefix="fetch") as pool,
        ):
            # Large files first, so that no large file is left alone at the end.
            ordered = sorted(missing.values(), key=lambda file: -file.size)
            running = [pool.submit(self._fetch, file, ahead) for file in ordered]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            errors = [error for future in done if (error := future.exception())]
            if errors:
                self.stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])

    def _fetch(self, file: RemoteFile, ahead: ThreadPoolExecutor) -> None:
        digest = retrying(lambda: self.origin.digest(file), self.policy, self.log, self.origin.uri)
        words = f"{file.path} of {self.origin.uri} has another hash than published"
        for last in (False, True):
            # Unbuffered, so that nothing is lost in a kill.
            with (
                failed.storage(self.store.root),
                self.store.append(file, self.suffix) as target,
                self.active,
            ):
                partial = Partial(target, self.store.root, file, digest, self.meter.add)
                if partial.offset:
                    self.log(f"resuming {file.path} at {partial.offset / file.size:.0%}")
                self._fill(file, partial, ahead)
                other = partial.finish()
                if other is None or digest is None:
                    self.store.keep(file, self.suffix)
                    return
                self.store.drop_partial(file, self.suffix)
            if last:
                raise failed.corrupt(
                    self.origin.field, f"{words}, twice ({digest.algorithm} {other}, not {digest.value})."
                )
            self.log(f"{words}; fetching it again")

    def _fill(self, file: RemoteFile, partial: Partial, ahead: ThreadPoolExecutor) -> None:
        """Append until the file is complete; in concurrent parts where one connection is slow and the file is large."""
        in_parts = file.size >= 2 * _PARTS_OF_FILE * PART_BYTES and self._may_be_in_parts(file)
        length, is_slow = PROBE_BYTES, False
        while partial.offset < file.size:
            if not in_parts:
                self._read(file, partial.offset, file.size, partial.append, partial.restart)
                continue
            try:
                if is_slow and self._at_once(file) > 1:
                    for part in self._parts(file, partial.offset, ahead):
                        partial.append(part)
                else:
                    is_slow = self._stretch(file, partial, length)
                    length = STRETCH_BYTES
            except _WholeOnly:
                in_parts = False

    def _stretch(self, file: RemoteFile, partial: Partial, length: int) -> bool:
        """Read `length` bytes by one connection; whether it was slow."""
        start, began = partial.offset, self.clock()
        self._read(file, start, min(file.size, start + length), partial.append, _refuse)
        return partial.offset - start < FAST_BYTES_PER_SECOND * (self.clock() - began)

    def _may_be_in_parts(self, file: RemoteFile) -> bool:
        origin = self.origin
        if not isinstance(origin, InParts):
            return True
        return retrying(lambda: origin.in_parts(self.listing, file), self.policy, self.log, origin.uri)

    def _at_once(self, file: RemoteFile) -> int:
        """Number of concurrent parts of a file: at most PARTS over all files.

        A kill loses parts that wait in memory for an earlier one: at most 5% of the file.
        """
        return min(PARTS // self.active.count, file.size // (_PARTS_OF_FILE * PART_BYTES))

    def _parts(self, file: RemoteFile, start: int, ahead: ThreadPoolExecutor) -> Iterator[memoryview]:
        """The parts of a file in order, read by several connections."""
        under_way: deque[Future[memoryview]] = deque()
        # Buffers are reused, because allocating memory is expensive.
        free: list[bytearray] = []
        try:
            while start < file.size or under_way:
                while start < file.size and len(under_way) < max(1, self._at_once(file)):
                    end = min(file.size, start + PART_BYTES)
                    under_way.append(ahead.submit(self._part, file, start, end, free))
                    start = end
                part = under_way.popleft().result()
                yield part
                free.append(part.obj)  # type: ignore[arg-type]
        finally:
            for future in under_way:
                future.cancel()

    def _part(self, file: RemoteFile, start: int, end: int, free: list[bytearray]) -> memoryview:
        try:
            buffer = free.pop()
        except IndexError:
            buffer = bytearray(PART_BYTES)
        body = memoryview(buffer)[: end - start]
        filled = 0

        def take(chunk: bytes) -> None:
            nonlocal filled
            body[filled : filled + len(chunk)] = chunk
            filled += len(chunk)

        self._read(file, start, end, take, _refuse)
        return body

    def _read(
        self, file: RemoteFile, offset: int, end: int, take: Callable[[bytes], None], restart: Callable[[], None]
    ) -> None:
        """Read a range, reconnecting as needed. `restart` is called where the server ignores the offset."""
        failures = 0
        while offset < end:
            before = offset
            try:
                with self.origin.read(self.listing, file, offset, end) as (first, chunks):
                    if first not in (0, offset):
                        raise Unreachable(f"{self.origin.uri} sends another part of {file.path} than requested")
                    if first != offset:
                        restart()
                        offset = 0
                    for chunk in chunks:
                        if self.stop.is_set():
                            raise Stopped
                        take(piece := chunk[: end - offset])
                        offset += len(piece)
                        if offset == end:
                            break
                if offset < end:
                    raise Unreachable(f"{self.origin.uri}: the connection ended early, in {file.path}")
            except (Unreachable, HTTPStatusError) as error:
                failures = 1 if offset > before else failures + 1
                back_off(error, failures, self.policy, self.log, self.origin.uri)
