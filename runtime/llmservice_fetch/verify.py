"""spec.model.cache.verify: Hash. Compares cached files with the published hashes before they are served.

Hashes come from the origin. Where it is unreachable, the cached listing is used, which anyone who writes the cache can
change together with the content: this still detects a broken disk, but no attack.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO

from llmservice_runtime.contract import FailureReason

from llmservice_fetch import failed
from llmservice_fetch.files import Digest, Origin, RemoteFile
from llmservice_fetch.meter import Meter
from llmservice_fetch.store import Store
from llmservice_fetch.transfer import RetryPolicy, retrying

SIZE, HASH = "size", "hash"
# Disks and network storage are faster with concurrent reads; a core hashes about 1 GB/s.
_WORKERS = 4
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Verification:
    """Verifies the cached files of one artifact."""

    origin: Origin
    store: Store
    meter: Meter
    log: Callable[[str], None]
    policy: RetryPolicy
    is_fresh: bool
    """Whether the listing is from the origin and not from the cache."""

    def run(self, files: Sequence[RemoteFile]) -> None:
        """Hash all cached files. Damaged ones are removed and fetched again; FetchFailed where that is impossible."""
        there = [file for file in files if self.store.has(file)]
        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="verify") as pool:
            hashes = list(pool.map(self._digest, there))
            checked = [(file, digest) for file, digest in zip(there, hashes, strict=True) if digest]
            results = list(pool.map(lambda pair: self._is_sound(*pair), checked))
        if len(checked) < len(there):
            self.log(f"{self.origin.uri} publishes no hash of {len(there) - len(checked)} files: only sizes compared")
        if not self.is_fresh:
            self.log(f"{self.origin.uri} is unreachable: the cache was compared with its own listing")
        damaged = [file.path for (file, _), sound in zip(checked, results, strict=True) if not sound]
        if damaged and not self.is_fresh:
            raise failed.FetchFailed(
                FailureReason.MODEL_CORRUPT,
                f"The model cache {self.store.root} holds other contents than were published of {_named(damaged)}, "
                f"and {self.origin.uri} cannot be reached to fetch them again.",
                "Make the origin reachable for one start, or put the files into the cache of spec.model.cache again.",
            )
        if damaged:
            self.log(
                f"the cache held other contents than {self.origin.uri} published: {_named(damaged)}; fetching them"
            )

    def _digest(self, file: RemoteFile) -> Digest | None:
        if not self.is_fresh:
            return file.digest
        return retrying(lambda: self.origin.digest(file), self.policy, self.log, self.origin.uri)

    def _is_sound(self, file: RemoteFile, digest: Digest) -> bool:
        with failed.storage(self.store.root), self.store.open("blobs") as blobs:
            with FileIO(blobs.open(file.blob, os.O_RDONLY)) as source:
                hasher = digest.start(file.size)
                self._feed(source, hasher)
                if hasher.hexdigest() == digest.value:
                    return True
                read = os.fstat(source.fileno())
            found = blobs.stat(file.blob)
            # Another pod may have replaced it by the right content.
            if self.is_fresh and found is not None and (found.st_ino, found.st_dev) == (read.st_ino, read.st_dev):
                blobs.remove(file.blob)
            return False

    def _feed(self, source: FileIO, hasher: hashlib._Hash) -> None:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        while count := source.readinto(buffer):
            hasher.update(buffer[:count])
            self.meter.add(count)


def _named(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more
