"""Deletes unused revisions and abandoned partial files from a cache.

Kept are
- revisions that a pod serves: uses are renewed while it lives and expire after some hours (spec.model.cache);
- the last revision of each of the last URIs of a service with such pods, as many as templates are recorded;
- revisions listed or last used less than those hours ago;
- everything without a listing of ours, such as downloads of huggingface_hub in the same folder;
- all revisions of a model that is being fetched, or whose file system has no locks.

A revision is deleted in steps that survive a kill: its listing is renamed, so that it no longer counts as complete;
then its branches and links are removed, then the blobs that no other listing and no link names, then the renamed
listing. The next `prune` completes an interrupted one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llmservice_runtime.bounded_json import LARGEST
from llmservice_runtime.contract import CacheRoom

from llmservice_fetch import uses
from llmservice_fetch.files import Listing
from llmservice_fetch.folders import Folder
from llmservice_fetch.store import LISTED, NO_LOCKS, OWN, PARTIAL, PRUNED, Store
from llmservice_fetch.uses import RecordedUse

PARTIAL_SECONDS = 24 * 3600.0
"""Minimum age of an unneeded partial file."""
_STAGING = ".new-"
_MOST_LEVELS = 32


@dataclass
class Pruned:
    """Counts of deleted items, and the cache's usage afterwards in bytes."""

    revisions: int = 0
    partials: int = 0
    freed: int = 0
    used: int = 0
    available: int = 0

    @property
    def room(self) -> CacheRoom:
        """For the pod's metrics."""
        # Some file systems report unlimited space.
        return CacheRoom(self.used, min(self.available, LARGEST), self.freed)


def prune(cache: Path, hours: int, log: Callable[[str], None], now: float | None = None) -> Pruned:
    """Prune all models of a cache. Failures are logged and affect one model; nothing is raised."""
    now = time.time() if now is None else now
    result = Pruned()
    stores = list(uses.stores(cache))
    try:
        everywhere = [seen for store in stores for seen in uses.seen(store)]
    except OSError as error:
        log(f"{cache} was not pruned: its uses cannot be read: {error}")
        stores, everywhere = [], []
    for store in stores:
        elsewhere = [seen for seen in everywhere if seen.store != store]
        try:
            Pruning(store, elsewhere, hours, now, log, result).run()
            result.used += _used(store)
        except (OSError, ValueError) as error:
            log(f"{store.root} was not pruned: {error}")
    with contextlib.suppress(OSError):
        result.available = shutil.disk_usage(cache).free
    if result.revisions or result.partials:
        log(
            f"pruned {result.revisions} revisions and {result.partials} partial files of {cache}: "
            f"{result.freed} bytes freed, {result.used} in use, {result.available} available"
        )
    return result


@dataclass(frozen=True)
class Pruning:
    """Prunes one model's part of the cache."""

    store: Store
    elsewhere: Sequence[RecordedUse]
    """Uses of other models; they show which services have pods."""
    hours: int
    now: float
    log: Callable[[str], None]
    result: Pruned

    def run(self) -> None:
        """Run all steps, holding the locks of downloads and of uses."""
        with self._alone("lock") as fetches, uses.locked(self.store, fcntl.LOCK_EX | fcntl.LOCK_NB) as excluded:
            if fetches is None:
                self._partials()
            if not (fetches and excluded):
                return
            here = list(uses.seen(self.store))
            needed = uses.needed([*self.elsewhere, *here], self.now)
            kept = {seen.use.revision for seen in needed if seen.store == self.store}
            for revision in list(self.store.revisions()):
                if revision not in kept and self._is_old(revision):
                    self._rename(revision)
            for revision in list(self.store.revisions(PRUNED)):
                self._finish(revision)
            self._partials()
            for seen in here:
                if seen not in needed and not seen.is_live(self.now):
                    uses.forget(seen)

    @contextmanager
    def _alone(self, name: str) -> Iterator[bool | None]:
        """Whether this process holds the download lock; None without file locks."""
        descriptor = self.store.open_lock(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            yield None if error.errno in NO_LOCKS else False
        else:
            yield True
        finally:
            os.close(descriptor)

    def _is_old(self, revision: str) -> bool:
        with self.store.open(OWN) as own:
            found = own.stat(f"{revision}{LISTED}")
        last = max(found.st_mtime if found else self.now, uses.since(self.store, self.now))
        return self.now - last >= self.hours * 3600

    def _rename(self, revision: str) -> None:
        with self.store.open(OWN) as own:
            own.rename(f"{revision}{LISTED}", f"{revision}{PRUNED}")
        self.result.revisions += 1

    def _finish(self, revision: str) -> None:
        listing = self._listing(revision, PRUNED)
        if listing is not None:
            if revision not in self.store.revisions():
                self._branches(revision)
                self._links(listing)
            self._contents(listing)
        with self.store.open(OWN) as own:
            own.remove(f"{revision}{PRUNED}")

    def _branches(self, revision: str) -> None:
        """Remove branches that point to the revision."""
        with self.store.open("refs") as refs:
            for folder, name in _walk(refs):
                with contextlib.suppress(OSError, ValueError):
                    if folder.read(name, 256).strip() == revision:
                        folder.remove(name)

    def _links(self, listing: Listing) -> None:
        """Remove our links; entries of other programs in the snapshot stay, together with their blobs."""
        with contextlib.suppress(FileNotFoundError), self.store.open("snapshots", listing.revision) as snapshot:
            for file in listing.files:
                *parents, name = file.path.split("/")
                with contextlib.suppress(OSError), snapshot.folder(*parents) as parent:
                    if (parent.target(name) or "").endswith(f"../blobs/{file.blob}"):
                        parent.remove(name)
                for depth in range(len(parents), 0, -1):
                    with contextlib.suppress(OSError), snapshot.folder(*parents[: depth - 1]) as parent:
                        os.rmdir(parents[depth - 1], dir_fd=parent.descriptor)
        with contextlib.suppress(OSError), self.store.open("snapshots") as snapshots:
            os.rmdir(listing.revision, dir_fd=snapshots.descriptor)

    def _contents(self, listing: Listing) -> None:
        gone = {file.blob for file in listing.files} - self._wanted() - set(self._linked())
        with self.store.open("blobs") as blobs:
            for name in blobs.names():
                if name.partition(PARTIAL)[0] in gone:
                    self._delete(blobs, name)

    def _partials(self) -> None:
        wanted = self._wanted()
        with self.store.open("blobs") as blobs:
            for name in blobs.names():
                blob, partial, suffix = name.partition(PARTIAL)
                resumed = blob in wanted and not suffix
                if (partial and not resumed) or name.startswith(_STAGING):
                    self.result.partials += self._delete_old(blobs, name)

    def _delete_old(self, blobs: Folder, name: str) -> bool:
        found = blobs.stat(name)
        if found is None or self.now - found.st_mtime < PARTIAL_SECONDS:
            return False
        self._delete(blobs, name)
        return True

    def _delete(self, blobs: Folder, name: str) -> None:
        size = blobs.size(name)
        if not blobs.is_folder(name):
            blobs.remove(name)
            self.result.freed += max(size, 0)

    def _wanted(self) -> set[str]:
        """Blobs that listings name."""
        found = (self._listing(revision, LISTED) for revision in self.store.revisions())
        return {file.blob for listing in found if listing for file in listing.files}

    def _linked(self) -> Iterator[str]:
        """Blobs that links in any snapshot point to."""
        with contextlib.suppress(FileNotFoundError), self.store.open("snapshots") as snapshots:
            for folder, name in _walk(snapshots):
                yield (folder.target(name) or "").rpartition("/")[2]

    def _listing(self, revision: str, kind: str) -> Listing | None:
        with contextlib.suppress(OSError, ValueError):
            return self.store.listing(revision, kind)
        return None


def _walk(folder: Folder, levels: int = _MOST_LEVELS) -> Iterator[tuple[Folder, str]]:
    """All files and links below a folder. OSError where it is deeper than any listing."""
    if not levels:
        raise OSError(f"{folder.path} is nested too deep")
    for name in folder.names():
        if folder.is_folder(name):
            with folder.folder(name) as inner:
                yield from _walk(inner, levels - 1)
        else:
            yield folder, name


def _used(store: Store) -> int:
    with contextlib.suppress(FileNotFoundError), store.open("blobs") as blobs:
        return sum(max(blobs.size(name), 0) for name in blobs.names())
    return 0
