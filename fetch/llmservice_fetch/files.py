"""What there is to fetch: files with their sizes and hashes, and where they come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Protocol


@dataclass(frozen=True)
class Digest:
    """A published hash: sha256 and md5 of the content, git-sha1 of git's blob with its header."""

    algorithm: str
    value: str

    def start(self, size: int) -> hashlib._Hash:
        """A hash object that the content is to be fed to."""
        if self.algorithm != "git-sha1":
            return hashlib.new(self.algorithm, usedforsecurity=False)
        return hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)


@dataclass(frozen=True)
class RemoteFile:
    """One file of a model. Size in bytes; `blob` names its content among the blobs of the cache."""

    path: str
    size: int
    blob: str
    digest: Digest | None = None
    version: str = ""
    """What the server calls this content (S3: the ETag); a download goes on only while it is the same."""


@dataclass(frozen=True)
class Listing:
    """All files of one revision, which never changes: a commit, or a hash of what a bucket held."""

    revision: str
    files: tuple[RemoteFile, ...]

    def to_json(self) -> str:
        """For the cache, so that what is complete needs no server."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Listing:
        """The reverse. ValueError, KeyError or TypeError where the text is something else."""
        document = json.loads(text)
        return cls(document["revision"], tuple(_file(item) for item in document["files"]))


def _file(item: dict[str, Any]) -> RemoteFile:
    file = RemoteFile(**item)
    return replace(file, digest=Digest(**item["digest"])) if item["digest"] else file


def is_inside(path: str) -> bool:
    """Whether a name stays below the folder that it is put into."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


class Origin(Protocol):
    """A place that files come from."""

    @property
    def uri(self) -> str:
        """For messages."""

    @property
    def field(self) -> str:
        """The field of the spec that names it."""

    @property
    def folder(self) -> str:
        """Where its files lie, below the cache."""

    @property
    def asked(self) -> str:
        """The revision as the user wrote it."""

    @property
    def pinned(self) -> str | None:
        """The revision, where the URI itself says which."""

    def listing(self) -> Listing:
        """What is there. Raises Unreachable, Refused or FetchFailed."""

    def digest(self, file: RemoteFile) -> Digest | None:
        """The hash that the content must have, where the server tells one."""

    def read(
        self, listing: Listing, file: RemoteFile, start: int, end: int
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Bytes of a file, and at which one they begin: a server may ignore `start`. Raises as listing does."""


def total(files: Sequence[RemoteFile]) -> int:
    """Bytes of all."""
    return sum(file.size for file in files)
