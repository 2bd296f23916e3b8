"""A partial file: the bytes received so far and their hash."""

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
        """Discard all bytes."""
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
