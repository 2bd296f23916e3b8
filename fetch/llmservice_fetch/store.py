"""The cache on disk, in the layout of huggingface_hub: contents by their hash, and a folder of links for each revision.

FOLDER/blobs/HASH                  a whole, verified file (HASH.incomplete: what has come of it so far)
FOLDER/snapshots/REVISION/PATH     a link to it
FOLDER/refs/BRANCH                 the revision that a branch had when it was last asked for
FOLDER/.llmservice/REVISION.json   the listing of a revision
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmservice_fetch.files import Listing, RemoteFile

OWN = ".llmservice"


@dataclass(frozen=True)
class Store:
    """One model's part of the cache."""

    root: Path

    def prepare(self) -> None:
        """Make the folders. OSError where the cache cannot be written."""
        for name in ("blobs", "snapshots", "refs", OWN):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    @property
    def lock_file(self) -> Path:
        """What a download holds a lock on."""
        return self.root / OWN / "lock"

    @property
    def progress_file(self) -> Path:
        """Where the process that downloads tells the waiting ones how far it is."""
        return self.root / OWN / "progress.json"

    def blob(self, file: RemoteFile) -> Path:
        """A file's content, once it is whole."""
        return self.root / "blobs" / file.blob

    def partial(self, file: RemoteFile) -> Path:
        """What has come of it so far."""
        return self.root / "blobs" / f"{file.blob}.incomplete"

    def has(self, file: RemoteFile) -> bool:
        """Whether it is there. Nothing gets its name before it was verified, so its size is proof enough."""
        return size_of(self.blob(file)) == file.size

    def bytes_of(self, file: RemoteFile) -> int:
        """How much of it is there."""
        if self.has(file):
            return file.size
        return min(max(size_of(self.partial(file)), 0), file.size)

    def missing(self, files: Sequence[RemoteFile]) -> list[RemoteFile]:
        """Those that are not whole yet."""
        return [file for file in files if not self.has(file)]

    def link(self, revision: str, files: Sequence[RemoteFile]) -> Path:
        """Put files that are there into the revision's folder."""
        folder = self.snapshot(revision)
        for file in files:
            place = folder / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            replace_link(place, os.path.relpath(self.blob(file), place.parent))
        return folder

    def snapshot(self, revision: str) -> Path:
        """The folder of a revision."""
        return self.root / "snapshots" / revision

    def remember(self, asked: str, listing: Listing) -> None:
        """Keep a listing, and which revision a branch has."""
        _write(self._listing(listing.revision), listing.to_json())
        if asked != listing.revision:
            (self.root / "refs" / asked).parent.mkdir(parents=True, exist_ok=True)
            _write(self.root / "refs" / asked, listing.revision)

    def recall(self, asked: str, pinned: str | None) -> Listing | None:
        """What was kept for a revision or a branch; None where nothing was."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            revision = pinned or (self.root / "refs" / asked).read_text(encoding="utf-8").strip()
            return Listing.from_json(self._listing(revision).read_text(encoding="utf-8"))
        return None

    def _listing(self, revision: str) -> Path:
        return self.root / OWN / f"{revision}.json"


def size_of(path: Path) -> int:
    """In bytes; -1 for what is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def replace_link(place: Path, target: str) -> None:
    """A symbolic link, in one step for whoever looks."""
    if place.is_symlink() and os.readlink(place) == target:  # noqa: PTH115 - the text as it is
        return
    staging = place.with_name(f".{place.name}.{os.getpid()}")
    staging.unlink(missing_ok=True)
    staging.symlink_to(target)
    staging.replace(place)


def _write(path: Path, text: str) -> None:
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    staging.write_text(text, encoding="utf-8")
    staging.replace(path)
