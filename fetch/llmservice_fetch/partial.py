"""A file that grows: what has come of it on disk, and the hash of that."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from llmservice_fetch import failed
from llmservice_fetch.files import Digest, RemoteFile

_CHUNK_BYTES = 1 << 20


class Partial:
    """Bytes are appended in their order, so that the file's size says what is missing after a kill.

    `target` is open for reading too; `root` is for messages. `count` is told how many bytes came, and minus how many
    were thrown away.
    """

    def __init__(
        self, target: FileIO, root: Path, file: RemoteFile, digest: Digest | None, count: Callable[[int], None]
    ) -> None:
        self._target, self._root, self._file, self._digest, self._count = target, root, file, digest, count
        self._hasher: hashlib._Hash | None = None
        self.offset = os.fstat(target.fileno()).st_size
        """Bytes that are there."""
        if self.offset > file.size:
            count(self.offset - file.size)  # counted as a whole file before
            self.begin_anew()
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
        """FetchFailed where the disk takes no more. Writing and hashing leave the interpreter to other threads."""
        left = memoryview(chunk)
        with failed.storage(self._root):
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

    def finish(self) -> str | None:
        """Write it through, if it is what was published; else its hash, and nothing of it counts."""
        hashed = self._hasher.hexdigest() if self._hasher else ""
        if self._digest is None or hashed == self._digest.value:
            os.fsync(self._target.fileno())
            return None
        self._count(-self.offset)
        return hashed
