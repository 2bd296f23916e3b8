"""The cache on disk, in the layout of huggingface_hub: blobs by hash, and a folder of links for each revision.

FOLDER/blobs/HASH                  a complete, verified file (HASH.incomplete: a partial one)
FOLDER/snapshots/REVISION/PATH     a link to it, for other programs; a pod has links of its own (pod_folder)
FOLDER/refs/BRANCH                 the revision of a branch at its last request
FOLDER/.llmservice/REVISION.json   the listing of a revision (REVISION.pruned: while it is being deleted)
FOLDER/.llmservice/used/           uses of revisions (uses)

Anyone who mounts the claim may write all of this: content is parsed with bounds, and no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from llmservice_fetch import failed, folders
from llmservice_fetch.files import LISTING_BYTES, Listing, Origin, RemoteFile, is_file_path, is_plain
from llmservice_fetch.folders import Folder

OWN = ".llmservice"
PARTIAL = ".incomplete"
LISTED, PRUNED = ".json", ".pruned"
_SMALL_TEXT = 4096
_PROGRESS = "progress"


@dataclass(frozen=True)
class Store:
    """One model's part of the cache."""

    cache: Path
    folder: str

    @property
    def root(self) -> Path:
        """Its path, for messages and for reading."""
        return self.cache / self.folder

    def open(self, *parts: str, make: bool = False) -> AbstractContextManager[Folder]:
        """Open a folder of it. OSError where it is missing or the path contains a link."""
        return folders.opened(self.cache, (*self.folder.split("/"), *parts), make=make)

    def prepare(self) -> None:
        """Make the folders. OSError where the cache cannot be written."""
        self.cache.mkdir(parents=True, exist_ok=True)
        for name in ("blobs", "snapshots", "refs", OWN):
            with self.open(name, make=True):
                pass

    def open_lock(self, name: str = "lock") -> int:
        """Open a lock file; its descriptor."""
        with self.open(OWN) as own:
            return own.open(name, os.O_RDWR | os.O_CREAT)

    def leave_progress(self, text: str) -> None:
        """Store the progress of the downloading process for waiting ones."""
        with self.open(OWN) as own:
            own.write(_PROGRESS, text)

    def progress(self) -> str:
        """The stored progress. OSError or ValueError where there is none."""
        with self.open(OWN) as own:
            return own.read(_PROGRESS, _SMALL_TEXT)

    def blob(self, file: RemoteFile) -> Path:
        return self.root / "blobs" / file.blob

    def append(self, file: RemoteFile, suffix: str = "") -> FileIO:
        """Open the partial file for appending."""
        with self.open("blobs") as blobs:
            return blobs.append(f"{file.blob}{PARTIAL}{suffix}")

    def partial(self, file: RemoteFile, suffix: str = "") -> Path:
        """Path of the partial file, for a library that opens it; an entry that is not a regular file is removed."""
        name = f"{file.blob}{PARTIAL}{suffix}"
        with self.open("blobs") as blobs:
            if blobs.size(name) < 0:
                blobs.remove(name)
            return blobs.path / name

    def keep(self, file: RemoteFile, suffix: str = "") -> None:
        """Rename a complete, verified partial file to its blob."""
        with self.open("blobs") as blobs:
            blobs.rename(f"{file.blob}{PARTIAL}{suffix}", file.blob)

    def drop_partial(self, file: RemoteFile, suffix: str = "") -> None:
        """Remove the partial file."""
        with self.open("blobs") as blobs:
            blobs.remove(f"{file.blob}{PARTIAL}{suffix}")

    def drop(self, file: RemoteFile) -> None:
        """Remove a blob with wrong content; open readers are not affected."""
        with self.open("blobs") as blobs:
            blobs.remove(file.blob)

    def has(self, file: RemoteFile) -> bool:
        """Whether the blob is a regular file of the right size."""
        return self._size(file.blob) == file.size

    def bytes_of(self, file: RemoteFile) -> int:
        """Bytes present of a file, complete or partial."""
        if self.has(file):
            return file.size
        return min(max(self._size(f"{file.blob}{PARTIAL}"), 0), file.size)

    def missing(self, files: Sequence[RemoteFile]) -> list[RemoteFile]:
        """The files that are not complete."""
        return [file for file in files if not self.has(file)]

    def link(self, revision: str, files: Sequence[RemoteFile]) -> None:
        """Link complete files into the revision's snapshot, where huggingface_hub finds them."""
        with self.open("snapshots", revision, make=True) as snapshot:
            for file in files:
                *parents, name = file.path.split("/")
                with snapshot.folder(*parents, make=True) as parent:
                    parent.link(name, "/".join([".."] * (len(parents) + 2) + ["blobs", file.blob]))

    def remember(self, origin: Origin, listing: Listing) -> None:
        """Store a listing and the branch's revision. FetchFailed where a name is unsafe."""
        wrong = listing.unsound()
        if wrong is not None:
            raise failed.unusable(wrong, origin.uri)
        with self.open(OWN) as own:
            own.write(f"{listing.revision}{LISTED}", listing.to_json())
        if origin.asked != listing.revision and is_file_path(origin.asked):
            *parents, name = origin.asked.split("/")
            with self.open("refs", *parents, make=True) as refs:
                refs.write(name, listing.revision)

    def recall(self, asked: str, pinned: str | None) -> Listing | None:
        """The stored listing of a revision or branch; None where it is missing or invalid."""
        with contextlib.suppress(OSError, ValueError):
            return self.listing(pinned or self._revision(asked))
        return None

    def listing(self, revision: str, kind: str = LISTED) -> Listing:
        """The stored listing of a revision. OSError or ValueError where it is missing or invalid."""
        if not is_plain(revision):
            raise ValueError(f"{revision!r} is not a revision")
        with self.open(OWN) as own:
            listing = Listing.from_json(own.read(f"{revision}{kind}", LISTING_BYTES))
        if listing.revision != revision:
            raise ValueError(f"it is the listing of {listing.revision}")
        return listing

    def revisions(self, kind: str = LISTED) -> Iterator[str]:
        """Revisions with a stored listing."""
        with contextlib.suppress(FileNotFoundError), self.open(OWN) as own:
            yield from (name[: -len(kind)] for name in own.names() if name.endswith(kind) and is_plain(name))

    def _revision(self, asked: str) -> str:
        if not is_file_path(asked):
            raise ValueError(f"{asked!r} is not a branch")
        *parents, name = asked.split("/")
        with self.open("refs", *parents) as refs:
            return refs.read(name, _SMALL_TEXT).strip()

    def _size(self, name: str) -> int:
        """Size of a blob; -1 where it is missing or the path contains a link (`prepare` reports links)."""
        with contextlib.suppress(OSError), self.open("blobs") as blobs:
            return blobs.size(name)
        return -1


# Errors of file systems without locks.
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@contextmanager
def exclusive(
    opened: Callable[[], int],
    folder: Path,
    log: Callable[[str], None],
    while_waiting: Callable[[], AbstractContextManager[None]],
) -> Iterator[bool]:
    """Hold the lock of a file in `folder`, which `opened` opens.

    Yields False where the file system has no locks, so that other processes may work in the folder too.
    The context `while_waiting` is entered while another process holds the lock.
    """
    descriptor = opened()
    try:
        yield _acquire(descriptor, folder, log, while_waiting)
    finally:
        os.close(descriptor)


def _acquire(
    descriptor: int,
    folder: Path,
    log: Callable[[str], None],
    while_waiting: Callable[[], AbstractContextManager[None]],
) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log("another process fetches this into the same cache: waiting")
        with while_waiting():
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log(f"{folder} is on a file system without locks: replicas may fetch the same files at once")
        return False
    return True
