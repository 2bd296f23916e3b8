"""Sources of an inspection: a model's files by name and size, and ranges of their bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from llmservice_runtime.contract import MODEL_ARTIFACT, FailureReason
from llmservice_runtime.preflight import model_files

from llmservice_fetch import failed
from llmservice_fetch.buckets import Bucket
from llmservice_fetch.errors import Unreachable
from llmservice_fetch.files import Listing, Origin, RemoteFile
from llmservice_fetch.origins import origin_of
from llmservice_fetch.transfer import RetryPolicy, retrying

T = TypeVar("T")
BUDGET_SECONDS = 60.0
# Few attempts: a model that is served from a cache must not wait long for an unreachable hub.
ATTEMPTS = 4
TIMEOUT_SECONDS = 10.0


@dataclass
class Budget:
    """Time limit for all requests together, in seconds."""

    seconds: float = BUDGET_SECONDS
    log: Callable[[str], None] = field(default=lambda _: None)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep

    def __post_init__(self) -> None:
        end = self.clock() + self.seconds
        self._policy = RetryPolicy(ATTEMPTS, longest=8.0, sleep=self.sleep, left=lambda: max(0.0, end - self.clock()))

    def retrying(self, action: Callable[[], T], place: str) -> T:
        """The result of a request, with retries. FetchFailed after the last one."""
        return retrying(action, self._policy, self.log, place)


class Remote:
    """A repository of the hub, or a bucket."""

    def __init__(self, origin: Origin, budget: Budget) -> None:
        self._origin, self._budget = origin, budget
        self._listing: Listing = budget.retrying(origin.listing, origin.uri)
        self.uri, self.field = origin.uri, origin.field
        self.revision: str | None = self._listing.revision
        self.files = self._listing.files

    def read(self, file: RemoteFile, start: int, end: int) -> bytes:
        """Read by a range request; of a response that ignores the range only what is needed."""
        return self._budget.retrying(lambda: self._read(file, start, end), self.uri)

    def _read(self, file: RemoteFile, start: int, end: int) -> bytes:
        body = bytearray()
        with self._origin.read(self._listing, file, start, end) as (at, chunks):
            if at > start:
                raise Unreachable(f"{self.uri} sends another part of {file.path} than requested")
            for chunk in chunks:
                body += chunk
                if at + len(body) >= end:
                    break
        if at + len(body) < end:
            raise Unreachable(f"{self.uri}: the connection ended early, in {file.path}")
        return bytes(body[start - at : end - at])


class Folder:
    """A local folder, or a single config.json."""

    revision: str | None = None

    def __init__(self, path: Path, field: str) -> None:
        self.uri, self.field = str(path), field
        self._folder = path.parent if path.is_file() else path
        found = [path] if path.is_file() else sorted(entry for entry in path.iterdir() if entry.is_file())
        self.files = tuple(RemoteFile(self._name(entry), entry.stat().st_size, blob="") for entry in found)
        self._paths = dict(zip((file.path for file in self.files), found, strict=False))

    def _name(self, path: Path) -> str:
        """A single JSON file counts as config.json."""
        return "config.json" if str(path) == self.uri and path.suffix == ".json" else path.name

    def read(self, file: RemoteFile, start: int, end: int) -> bytes:
        """Read from the disk."""
        try:
            with self._paths[file.path].open("rb") as opened:
                opened.seek(start)
                return opened.read(end - start)
        except OSError as error:
            raise unreadable(f"{self._paths[file.path]} cannot be read: {error.strerror or error}.") from None


Source = Remote | Folder
"""The files of one revision: `uri` for messages, `field` of the spec, `revision` (None: unknown), `files`, `read`."""


def source_of(uri: str, environment: Mapping[str, str], hide: Callable[[str], None], budget: Budget) -> Source:
    """The source of hf://, s3://, gs://, az:// or a path. FetchFailed."""
    where = failed.field_of(MODEL_ARTIFACT, uri)
    origin = origin_of(uri, where, environment, hide)
    if isinstance(origin, Bucket):
        return Remote(replace(origin, timeout=TIMEOUT_SECONDS), budget)
    if origin is not None:
        return Remote(replace(origin, timeout=TIMEOUT_SECONDS, uses_xet=False), budget)
    if "://" in uri:
        remedy = "It must be hf://, s3://, gs://, az:// or a folder."
        raise failed.not_found(where, f"{uri!r} cannot be inspected.", remedy)
    path = Path(uri)
    try:
        if not path.is_file():
            _check_folder(path)
        return Folder(path, where)
    except OSError as error:
        raise unreadable(f"{uri} cannot be read: {error.strerror or error}.") from None


def _check_folder(folder: Path) -> None:
    """Check a folder as the preflight does. Weights may be missing, as for `llmservice plan`."""
    failure = next(model_files.check_files(folder, needs_weights=False), None)
    if failure is None and any(path.suffix in model_files.WEIGHT_SUFFIXES for path in folder.iterdir()):
        failure = next(model_files.check_files(folder, needs_weights=True), None)
    if failure is not None:
        raise failed.FetchFailed.of(failure)


def unreadable(message: str) -> failed.FetchFailed:
    """Files that cannot be read, or do not match their index."""
    return failed.FetchFailed(
        FailureReason.WEIGHTS_UNREADABLE, message, "Check spec.model.uri and the permissions of the files."
    )
