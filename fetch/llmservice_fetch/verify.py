"""spec.model.cache.verify: Hash. What a cache holds is compared with the published hashes before it is served.

The hashes are those that the origin tells now. Where it cannot be asked, they are those of the cached listing, which
whoever writes the cache can change with the content: that still finds a broken disk, and no attack.
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
from llmservice_fetch.transfer import Patience, patiently

SIZE, HASH = "size", "hash"
# Disks and network storage are faster with some requests at once; a core hashes about 1 GB/s.
_WORKERS = 4
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Verification:
    """Of the files of one artifact."""

    origin: Origin
    store: Store
    meter: Meter
    say: Callable[[str], None]
    patience: Patience
    is_fresh: bool
    """Whether the origin told the listing just now."""

    def run(self, files: Sequence[RemoteFile]) -> None:
        """Read all that is there. What is damaged is removed, to be fetched again; FetchFailed where it cannot be."""
        there = [file for file in files if self.store.has(file)]
        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="verify") as pool:
            hashes = list(pool.map(self._digest, there))
            checked = [(file, digest) for file, digest in zip(there, hashes, strict=True) if digest]
            results = list(pool.map(lambda pair: self._is_sound(*pair), checked))
        if len(checked) < len(there):
            self.say(f"{self.origin.uri} publishes no hash of {len(there) - len(checked)} files: only sizes are known")
        if not self.is_fresh:
            self.say(f"{self.origin.uri} cannot be asked for its hashes: the cache was compared with its own listing")
        damaged = [file.path for (file, _), sound in zip(checked, results, strict=True) if not sound]
        if damaged and not self.is_fresh:
            raise failed.FetchFailed(
                FailureReason.MODEL_CORRUPT,
                f"The model cache {self.store.root} holds other contents than were published of {_named(damaged)}, "
                f"and {self.origin.uri} cannot be reached to fetch them again.",
                "Make the origin reachable for one start, or put the files into the cache of spec.model.cache again.",
            )
        if damaged:
            self.say(
                f"the cache held other contents than {self.origin.uri} published: {_named(damaged)}; fetching them"
            )

    def _digest(self, file: RemoteFile) -> Digest | None:
        if not self.is_fresh:
            return file.digest
        return patiently(lambda: self.origin.digest(file), self.patience, self.say, self.origin.uri)

    def _is_sound(self, file: RemoteFile, digest: Digest) -> bool:
        with failed.storage(self.store.root), self.store.open("blobs") as blobs:
            with FileIO(blobs.open(file.blob, os.O_RDONLY)) as source:
                hasher = digest.start(file.size)
                self._feed(source, hasher)
                if hasher.hexdigest() == digest.value:
                    return True
                read = os.fstat(source.fileno())
            found = blobs.stat(file.blob)
            # Another pod may have put the right content in its place meanwhile.
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
