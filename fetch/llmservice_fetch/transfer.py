"""Downloading: several files at once, each from where it stopped, with back-off, verified before it gets its name."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import TypeVar

from llmservice_fetch import failed
from llmservice_fetch.files import Digest, Listing, Origin, RemoteFile, total
from llmservice_fetch.http import CHUNK_BYTES, Refused, Unreachable
from llmservice_fetch.meter import Meter
from llmservice_fetch.store import Store

T = TypeVar("T")
WORKERS = 8
# No answer is longer: some hubs refuse to send very large files in one piece.
PIECE_BYTES = 8 << 30
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

    def check_space(self, files: Sequence[RemoteFile]) -> None:
        """FetchFailed where the rest of these files has no room."""
        needed = total(files) - sum(self.store.bytes_of(file) for file in files)
        free = shutil.disk_usage(self.store.root).free
        if needed and needed + _SPARE_BYTES > free:
            raise failed.storage_full(self.store.root, needed, free)

    def fetch(self, files: Sequence[RemoteFile]) -> None:
        """Everything that is not there yet. The first failure ends all; what came stays."""
        missing = {file.blob: file for file in self.store.missing(files)}
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="fetch") as pool:
            # Large files first, so that the last one does not end alone.
            ordered = sorted(missing.values(), key=lambda file: -file.size)
            running = [pool.submit(self._fetch, file) for file in ordered]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            errors = [error for future in done if (error := future.exception())]
            if errors:
                self.stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])

    def _fetch(self, file: RemoteFile) -> None:
        digest = patiently(lambda: self.origin.digest(file), self.patience, self.say, self.origin.uri)
        for last in (False, True):
            # Unbuffered: what is written is what the next process finds.
            with failed.storage(self.store.root), self.store.append(file, self.suffix) as target:
                hashed = self._fill(file, target, digest)
                if digest is None or hashed == digest.value:
                    os.fsync(target.fileno())
                    self.store.keep(file, self.suffix)
                    return
            self.store.drop_partial(file, self.suffix)
            self.meter.add(-file.size)
            words = f"{file.path} of {self.origin.uri} came with another hash than published"
            if last:
                raise failed.corrupt(
                    self.origin.field, f"{words}, twice ({digest.algorithm} {hashed}, not {digest.value})."
                )
            self.say(f"{words}; fetching it once more")

    def _fill(self, file: RemoteFile, target: FileIO, digest: Digest | None) -> str:
        """Append until the file has its size. The hash of all of it; empty where none is asked for."""
        offset, hasher = self._resumed(file, target, digest)
        failures = 0
        while offset < file.size:
            before = offset
            try:
                end = min(file.size, offset + PIECE_BYTES)
                with self.origin.read(self.listing, file, offset, end) as (start, chunks):
                    if start != offset:
                        self.meter.add(-offset)
                        offset, hasher = self._anew(target, file, digest)
                    for chunk in chunks:
                        offset += self._take(chunk[: file.size - offset], target, hasher)
                if offset < end:
                    raise Unreachable(f"{self.origin.uri}: the connection ended early, in {file.path}")
            except (Unreachable, Refused) as error:
                failures = 1 if offset > before else failures + 1
                give_up_or_wait(error, failures, self.patience, self.say, self.origin.uri)
        return hasher.hexdigest() if hasher else ""

    def _take(self, chunk: bytes, target: FileIO, hasher: hashlib._Hash | None) -> int:
        if self.stop.is_set():
            raise Stopped
        left = memoryview(chunk)
        while left:
            with failed.storage(self.store.root):
                left = left[target.write(left) :]
        if hasher:
            hasher.update(chunk)
        self.meter.add(len(chunk))
        return len(chunk)

    def _resumed(self, file: RemoteFile, target: FileIO, digest: Digest | None) -> tuple[int, hashlib._Hash | None]:
        """What an earlier process left is taken over: counted already, but to be hashed."""
        size = os.fstat(target.fileno()).st_size
        if size > file.size:
            self.meter.add(-file.size)
            return self._anew(target, file, digest)
        hasher = digest.start(file.size) if digest else None
        if size:
            self.say(f"going on with {file.path} at {size / file.size:.0%}")
        if hasher and size:
            for chunk in _read(Path(str(target.name))):
                hasher.update(chunk)
        return size, hasher

    def _anew(self, target: FileIO, file: RemoteFile, digest: Digest | None) -> tuple[int, hashlib._Hash | None]:
        target.truncate(0)
        return 0, digest.start(file.size) if digest else None


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk
