"""A file that grows: what has come of it on disk, and the hash of that."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

from llmservice_fetch import failed
from llmservice_fetch.files import Digest, RemoteFile
from llmservice_fetch.store import size_of

_CHUNK_BYTES = 1 << 20


class Partial:
    """Bytes are appended in their order, so that the file's size says what is missing after a kill.

    `count` is told how many bytes came, and minus how many were thrown away.
    """

    def __init__(self, target: FileIO, file: RemoteFile, digest: Digest | None, count: Callable[[int], None]) -> None:
        self._target, self._file, self._digest, self._count = target, file, digest, count
        self._path = Path(str(target.name))
        self._hasher: hashlib._Hash | None = None
        self.offset = size_of(self._path)
        """Bytes that are there."""
        if self.offset > file.size:
            count(self.offset - file.size)  # counted as a whole file before
            self.begin_anew()
        else:
            self._start_hash()

    def _start_hash(self) -> None:
        self._hasher = self._digest.start(self._file.size) if self._digest else None
        if self._hasher and self.offset:
            for chunk in _read(self._path):
                self._hasher.update(chunk)

    def append(self, chunk: bytes | memoryview) -> None:
        """FetchFailed where the disk takes no more. Writing and hashing leave the interpreter to other threads."""
        left = memoryview(chunk)
        with failed.storage(self._path.parents[1]):
            while left:
                left = left[self._target.write(left) :]
        if self._hasher:
            self._hasher.update(chunk)
        self.offset += len(chunk)
        self._count(len(chunk))

    def begin_anew(self) -> None:
        """Throw away what is there."""
        self._count(-self.offset)
        self._target.truncate(0)
        self.offset = 0
        self._start_hash()

    def finish(self, blob: Path) -> str | None:
        """Give it its name, if it is what was published; else remove it. The other hash, where it is another."""
        hashed = self._hasher.hexdigest() if self._hasher else ""
        if self._digest is None or hashed == self._digest.value:
            os.fsync(self._target.fileno())
            self._path.replace(blob)
            return None
        self._path.unlink()
        self._count(-self.offset)
        return hashed


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            yield chunk
