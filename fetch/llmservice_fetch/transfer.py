"""Downloading: several files at once, each from where it stopped, with back-off, verified before it gets its name."""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

from llmservice_fetch import failed
from llmservice_fetch.errors import Refused, Unreachable
from llmservice_fetch.files import Listing, Origin, RemoteFile, total
from llmservice_fetch.meter import Meter
from llmservice_fetch.partial import Partial
from llmservice_fetch.store import Store

T = TypeVar("T")
WORKERS = 8
# Connections for parts of large files, whose bytes wait in memory for their turn: 64 MiB in all.
PARTS = 8
PART_BYTES = 8 << 20
# Parts that wait are at most one in so many of their file.
_PARTS_OF_FILE = 20
# A connection that is this fast stays the only one of its file: parts cost half a second of processor time a GB, and
# are slower where processors are the limit. Stores of hubs and clouds send 30 to 100 MB/s to one connection.
FAST_BYTES_PER_SECOND = 150e6
# What a connection's speed is measured with, and after how much it is measured again.
PROBE_BYTES = 64 << 20
STRETCH_BYTES = 512 << 20
# Left free: listings, links, and whatever else lives on this volume.
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True)
class Patience:
    """How often in a row a request may fail, and how long to wait before the next: doubled each time. Seconds."""

    attempts: int = 6
    first: float = 1.0
    longest: float = 30.0
    sleep: Callable[[float], object] = field(default=time.sleep)

    def seconds(self, failures: int, asked: float) -> float:
        """Before the next try, at least as long as the server asked for."""
        return min(max(self.first * 2.0 ** (failures - 1), asked), max(self.longest, min(asked, 120.0)))


class Stopped(Exception):
    """Another file has failed already."""


class _WholeOnly(Exception):
    """The server sends files from their beginning only."""


def _refuse() -> None:
    raise _WholeOnly


@runtime_checkable
class InParts(Protocol):
    """An origin that does not want every file to be read in several parts at once."""

    def in_parts(self, listing: Listing, file: RemoteFile) -> bool:
        """Whether this one may be. Raises as read does."""


class Crowd:
    """How many files are under way: a context for each."""

    def __init__(self) -> None:
        self.count, self._lock = 0, threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.count -= 1


def patiently(action: Callable[[], T], patience: Patience, say: Callable[[str], None], place: str) -> T:
    """The result of a request that may fail for a while. FetchFailed when it goes on failing."""
    failures = 0
    while True:
        try:
            return action()
        except (Unreachable, Refused) as error:
            failures += 1
            give_up_or_wait(error, failures, patience, say, place)


def give_up_or_wait(
    error: Unreachable | Refused, failures: int, patience: Patience, say: Callable[[str], None], place: str
) -> None:
    """Wait before the next try; FetchFailed where there is none."""
    hopeless = isinstance(error, Refused) and not error.passes
    if hopeless or failures >= patience.attempts:
        often = "" if hopeless else f" ({failures} times in a row)"
        raise failed.download_failed(f"{error}{often}.", place) from error
    seconds = patience.seconds(failures, error.wait if isinstance(error, Refused) else 0.0)
    say(f"{error}; trying again in {seconds:.0f} s")
    patience.sleep(seconds)


@dataclass(frozen=True)
class Download:
    """What all files of one artifact share."""

    origin: Origin
    listing: Listing
    store: Store
    meter: Meter
    say: Callable[[str], None]
    patience: Patience = field(default_factory=Patience)
    suffix: str = ""
    """Where the cache has no locks, partial files of two processes must not meet."""
    stop: threading.Event = field(default_factory=threading.Event)
    crowd: Crowd = field(default_factory=Crowd)
    clock: Callable[[], float] = time.monotonic

    def check_space(self, files: Sequence[RemoteFile]) -> None:
        """FetchFailed where the rest of these files has no room."""
        needed = total(files) - sum(self.store.bytes_of(file) for file in files)
        free = shutil.disk_usage(self.store.root).free
        if needed and needed + _SPARE_BYTES > free:
            raise failed.storage_full(self.store.root, needed, free)

    def fetch(self, files: Sequence[RemoteFile]) -> None:
        """Everything that is not there yet. The first failure ends all; what came stays."""
        missing = {file.blob: file for file in self.store.missing(files)}
        with (
            ThreadPoolExecutor(PARTS, thread_name_prefix="part") as ahead,
            ThreadPoolExecutor(WORKERS, thread_name_prefix="fetch") as pool,
        ):
            # Large files first, so that the last one does not end alone.
            ordered = sorted(missing.values(), key=lambda file: -file.size)
            running = [pool.submit(self._fetch, file, ahead) for file in ordered]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            errors = [error for future in done if (error := future.exception())]
            if errors:
                self.stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])

    def _fetch(self, file: RemoteFile, ahead: ThreadPoolExecutor) -> None:
        digest = patiently(lambda: self.origin.digest(file), self.patience, self.say, self.origin.uri)
        words = f"{file.path} of {self.origin.uri} came with another hash than published"
        for last in (False, True):
            # Unbuffered: what is written is what the next process finds.
            with (
                failed.storage(self.store.root),
                self.store.append(file, self.suffix) as target,
                self.crowd,
            ):
                partial = Partial(target, self.store.root, file, digest, self.meter.add)
                if partial.offset:
                    self.say(f"going on with {file.path} at {partial.offset / file.size:.0%}")
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
            self.say(f"{words}; fetching it once more")

    def _fill(self, file: RemoteFile, partial: Partial, ahead: ThreadPoolExecutor) -> None:
        """Append until the file has its size: in parts at once where one connection is slow and a kill loses little."""
        in_parts = file.size >= 2 * _PARTS_OF_FILE * PART_BYTES and self._may_be_in_parts(file)
        length, is_slow = PROBE_BYTES, False
        while partial.offset < file.size:
            if not in_parts:
                self._read(file, partial.offset, file.size, partial.append, partial.begin_anew)
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
        """Bytes by one connection; whether it was slow."""
        start, began = partial.offset, self.clock()
        self._read(file, start, min(file.size, start + length), partial.append, _refuse)
        return partial.offset - start < FAST_BYTES_PER_SECOND * (self.clock() - began)

    def _may_be_in_parts(self, file: RemoteFile) -> bool:
        origin = self.origin
        if not isinstance(origin, InParts):
            return True
        return patiently(lambda: origin.in_parts(self.listing, file), self.patience, self.say, origin.uri)

    def _at_once(self, file: RemoteFile) -> int:
        """How many parts of a file may be under way: together with the other files' no more than PARTS.

        What a kill takes with it is in memory: parts that wait for an earlier one, at most 5% of the file.
        """
        return min(PARTS // self.crowd.count, file.size // (_PARTS_OF_FILE * PART_BYTES))

    def _parts(self, file: RemoteFile, start: int, ahead: ThreadPoolExecutor) -> Iterator[memoryview]:
        """The parts of a file in their order, read by several connections."""
        under_way: deque[Future[memoryview]] = deque()
        # Used again: fresh memory costs more than what is done with it.
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
        self, file: RemoteFile, offset: int, end: int, take: Callable[[bytes], None], anew: Callable[[], None]
    ) -> None:
        """Bytes of a file, over as many connections as it needs. `anew` is called where a server sends all of it."""
        failures = 0
        while offset < end:
            before = offset
            try:
                with self.origin.read(self.listing, file, offset, end) as (first, chunks):
                    if first not in (0, offset):
                        raise Unreachable(f"{self.origin.uri} sends another part of {file.path} than was asked for")
                    if first != offset:
                        anew()
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
            except (Unreachable, Refused) as error:
                failures = 1 if offset > before else failures + 1
                give_up_or_wait(error, failures, self.patience, self.say, self.origin.uri)
