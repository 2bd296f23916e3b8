"""Records which revisions of a cache are in use: one small file per use, whose mtime is its last renewal.

STORE/.llmservice/used/pod-POD-ARTIFACT.json        a pod serves this revision; renewed while the pod lives
STORE/.llmservice/used/service-NAME-ARTIFACT-URI    the last revision of a URI; the service may return to it
STORE/.llmservice/used/since                        when recording began
(the parts of these names are hashes)

A use is written before the files are looked up, and `prune` reads uses and deletes under a lock that excludes such
writes: either `prune` finds the use, or the user of the revision finds files missing and fetches them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from llmservice_runtime.bounded_json import parse
from llmservice_runtime.documents import Document, Field

from llmservice_fetch import folders
from llmservice_fetch.files import is_plain
from llmservice_fetch.store import OWN, Store

DEFAULT_HOURS = 720
MOST_HOURS = 87_600
RENEW_SECONDS = 300.0
KEPT_URIS = 5
"""Per artifact of a service; equals the number of pod templates that the operator records."""
_USED = "used"
_SINCE = "since"
_LOCK = "prune-lock"
_LIMIT = 4096
_MOST = 10_000
_LOCK_SECONDS = 60.0


@dataclass(frozen=True)
class Use(Document):
    """A use of a revision, by a pod, or by a service that may return to it (`pod` is empty)."""

    artifact: str
    asked: str
    revision: str
    service: str = ""
    pod: str = ""
    hours: Annotated[int, Field(least=1, most=MOST_HOURS, is_required=True)] = DEFAULT_HOURS
    """Hours until it expires after its last renewal."""

    @property
    def name(self) -> str:
        """Name of its file."""
        words = (self.pod, self.artifact) if self.pod else (self.service, self.artifact, self.asked)
        return "-".join(["pod" if self.pod else "service", *map(_hashed, words)])


@dataclass(frozen=True)
class RecordedUse:
    """A use read from a store. `at`: last renewal, seconds since the epoch."""

    store: Store
    use: Use
    at: float

    def is_live(self, now: float) -> bool:
        return now - self.at < self.use.hours * 3600


def stores(cache: Path) -> Iterator[Store]:
    """All models of a cache that this package fetched (SCHEME/MODEL), without following links."""
    with contextlib.suppress(OSError), folders.opened(cache) as top:
        for scheme in top.names():
            models: list[str] = []
            # Unreadable folders such as lost+found are skipped.
            with contextlib.suppress(OSError), top.folder(scheme) as folder:
                models = [name for name in folder.names() if folder.is_folder(name)]
            yield from (store for name in models if _is_ours(store := Store(cache, f"{scheme}/{name}")))


def record(store: Store, use: Use, log: Callable[[str], None]) -> None:
    """Record a use. Failures are only logged: complete revisions of a read-only cache can be served."""
    try:
        with store.open(OWN, _USED, make=True) as used, locked(store, fcntl.LOCK_SH):
            if used.size(_SINCE) < 0:
                used.write(_SINCE, "")
            used.write(use.name, json.dumps(use.to_document()))
    except (OSError, ValueError) as error:
        log(f"the use of {store.root} cannot be recorded: {error}")


def renew(cache: Path, pod: str) -> None:
    prefix = f"pod-{_hashed(pod)}-"
    for store in stores(cache):
        with contextlib.suppress(OSError), store.open(OWN, _USED) as used:
            for name in used.names():
                if name.startswith(prefix) and used.size(name) >= 0:
                    with contextlib.suppress(OSError):
                        os.utime(name, dir_fd=used.descriptor, follow_symlinks=False)


def seen(store: Store) -> Iterator[RecordedUse]:
    """The uses of one model. OSError where there are too many or one cannot be read, because it may be valid."""
    with contextlib.suppress(FileNotFoundError), store.open(OWN, _USED) as used:
        names = used.names()
        if len(names) > _MOST:
            raise OSError(f"{used.path} has more than {_MOST} files")
        for name in names:
            found = used.stat(name)
            with contextlib.suppress(FileNotFoundError, ValueError):
                use = _read(used.read(name, _LIMIT))
                if found is not None and use.name == name:
                    yield RecordedUse(store, use, found.st_mtime)


def since(store: Store, now: float) -> float:
    """When recording began; `now` where it never did."""
    with contextlib.suppress(FileNotFoundError), store.open(OWN, _USED) as used:
        found = used.stat(_SINCE)
        return now if found is None else found.st_mtime
    return now


def needed(uses: Sequence[RecordedUse], now: float) -> list[RecordedUse]:
    """The uses to keep: of live pods, and the last URIs of services with such pods."""
    pods = [seen for seen in uses if seen.use.pod and seen.is_live(now)]
    services = {seen.use.service for seen in pods if seen.use.service}
    counted: dict[tuple[str, str], int] = {}
    found = pods
    for seen in sorted(uses, key=lambda seen: -seen.at):
        key = (seen.use.service, seen.use.artifact)
        if seen.use.pod or seen.use.service not in services or counted.get(key, 0) >= KEPT_URIS:
            continue
        counted[key] = counted.get(key, 0) + 1
        found.append(seen)
    return found


def forget(seen: RecordedUse) -> None:
    """Delete a use."""
    with seen.store.open(OWN, _USED) as used:
        used.remove(seen.use.name)


@contextmanager
def locked(store: Store, how: int) -> Iterator[bool]:
    """Lock the recording of uses against deletion. Yields False where the lock is not acquired within a minute."""
    descriptor = store.open_lock(_LOCK)
    try:
        yield _acquire(descriptor, how)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, how: int) -> bool:
    # Another tenant may hold the lock forever, so the wait is bounded.
    until = time.monotonic() + (0 if how & fcntl.LOCK_NB else _LOCK_SECONDS)
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.05)
        except OSError:
            return False
        else:
            return True


def _read(text: str) -> Use:
    use = Use.from_document(parse(text))
    if not is_plain(use.revision):
        raise ValueError(f"{use.revision!r} is not a revision")
    return use


def _is_ours(store: Store) -> bool:
    with contextlib.suppress(OSError), store.open(OWN):
        return True
    return False


def _hashed(word: str) -> str:
    return hashlib.sha256(word.encode(errors="surrogateescape")).hexdigest()[:20]
