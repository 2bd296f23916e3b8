"""What there is to fetch: files with their sizes and hashes, and where they come from."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Protocol

from llmservice_runtime.bounded_json import Reader, Refused, parse

LISTING_BYTES = 32 << 20
"""Of a listing that is kept."""
_MOST_FILES = 50_000
_LARGEST_FILE = 1 << 50
_LONGEST_PATH, _LONGEST_NAME, _DEEPEST = 1024, 255, 32
_PLAIN = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,127}")
_PARTIAL = ".incomplete"
# Hex digits of each.
_HASHES = {"sha256": 64, "md5": 32, "git-sha1": 40}


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
        """The reverse. Refused, which is a ValueError, where the text is something else, or not sound."""
        given = Reader(parse(text, LISTING_BYTES))
        files = tuple(_file(Reader(item, "file")) for item in given.items("files", _MOST_FILES))
        listing = cls(_text(given, "revision"), files)
        if not files:
            raise Refused("it lists no file")
        if (wrong := listing.unsound()) is not None:
            raise Refused(f"it lists {wrong!r}")
        return listing

    def unsound(self) -> str | None:
        """The first name in it that may not become a file of the cache; None where all may.

        A listing comes from a server or from a cache that others write: neither may choose a place outside of it.
        """
        if not is_plain(self.revision):
            return self.revision
        seen: set[str] = set()
        sizes: dict[str, int] = {}
        for file in self.files:
            sound = is_file_path(file.path) and is_plain(file.blob) and _PARTIAL not in file.blob
            whole = 0 <= file.size <= _LARGEST_FILE and sizes.setdefault(file.blob, file.size) == file.size
            if not (sound and whole and file.version.isprintable() and file.version.isascii()) or file.path in seen:
                return file.path
            seen.add(file.path)
        return None


def _file(given: Reader) -> RemoteFile:
    digest = None
    if given.has("digest"):
        told = given.within("digest")
        digest = Digest(_text(told, "algorithm"), _text(told, "value"))
        if not re.fullmatch(rf"[0-9a-f]{{{_HASHES.get(digest.algorithm, 0)}}}", digest.value or "-"):
            raise Refused("it has a hash that is none")
    size = given.integer("size", most=_LARGEST_FILE)
    return RemoteFile(_text(given, "path"), size, _text(given, "blob"), digest, _text(given, "version", default=""))


def _text(given: Reader, name: str, default: str | None = None) -> str:
    """Exactly as it stands there, unlike `Reader.word`, which takes characters out."""
    given.word(name, _LONGEST_PATH, default)
    return str(given.value(name) if given.has(name) else default)


def is_plain(name: str) -> bool:
    """Whether it may name a revision or a content: one part of a path, which is not hidden."""
    return _PLAIN.fullmatch(name) is not None


def is_file_path(path: str) -> bool:
    """Whether it may name a file below a folder: no part leads elsewhere, is empty, or is no name of a file."""
    parts = path.split("/")
    is_readable = "\\" not in path and not any(unicodedata.category(character)[0] == "C" for character in path)
    return (
        is_readable
        and len(path) <= _LONGEST_PATH
        and len(parts) <= _DEEPEST
        and all(part not in ("", ".", "..") and len(part.encode()) <= _LONGEST_NAME for part in parts)
    )


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
