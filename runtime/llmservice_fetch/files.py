"""Listings of files with sizes and hashes, the protocol of their origins, and the files that vLLM needs."""

from __future__ import annotations

import fnmatch
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
"""Of a stored listing."""
_MOST_FILES = 50_000
_LARGEST_FILE = 1 << 50
_LONGEST_PATH, _LONGEST_NAME, _DEEPEST = 1024, 255, 32
_PLAIN = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,127}")
_PARTIAL = ".incomplete"
# Hex digits of each.
_HASHES = {"sha256": 64, "md5": 32, "git-sha1": 40}


@dataclass(frozen=True)
class Digest:
    """A published hash: sha256 or md5 of the content, or git-sha1 of git's blob including its header."""

    algorithm: str
    value: str

    def start(self, size: int) -> hashlib._Hash:
        """A hash object for content of `size` bytes."""
        if self.algorithm != "git-sha1":
            return hashlib.new(self.algorithm, usedforsecurity=False)
        return hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)


@dataclass(frozen=True)
class RemoteFile:
    """One file of a model. Size in bytes; `blob` is the content's name in the cache."""

    path: str
    size: int
    blob: str
    digest: Digest | None = None
    version: str = ""
    """The server's version of the content (S3: the ETag); a download continues only while it is unchanged."""


@dataclass(frozen=True)
class Listing:
    """All files of one immutable revision: a commit, or a hash of a bucket's listing."""

    revision: str
    files: tuple[RemoteFile, ...]

    def to_json(self) -> str:
        """For the cache, so that a complete revision needs no server."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Listing:
        """The inverse. Refused, a ValueError, where the text is invalid or names are unsafe."""
        given = Reader(parse(text, LISTING_BYTES))
        files = tuple(_file(Reader(item, "file")) for item in given.items("files", _MOST_FILES))
        listing = cls(_text(given, "revision"), files)
        if not files:
            raise Refused("it lists no file")
        if (wrong := listing.unsound()) is not None:
            raise Refused(f"it lists {wrong!r}")
        return listing

    def unsound(self) -> str | None:
        """The first unsafe name, None where all are safe.

        Listings come from servers or from a cache that others write; their names must stay within the cache.
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
        written = given.within("digest")
        digest = Digest(_text(written, "algorithm"), _text(written, "value"))
        if not re.fullmatch(rf"[0-9a-f]{{{_HASHES.get(digest.algorithm, 0)}}}", digest.value or "-"):
            raise Refused("it has an invalid hash")
    size = given.integer("size", most=_LARGEST_FILE)
    return RemoteFile(_text(given, "path"), size, _text(given, "blob"), digest, _text(given, "version", default=""))


def _text(given: Reader, name: str, default: str | None = None) -> str:
    """The exact text, unlike `Reader.word`, which removes control characters."""
    given.word(name, _LONGEST_PATH, default)
    return str(given.value(name) if given.has(name) else default)


def is_plain(name: str) -> bool:
    """Whether it may name a revision or a blob: a single path component that is not hidden."""
    return _PLAIN.fullmatch(name) is not None


def is_file_path(path: str) -> bool:
    """Whether it is a safe relative path: no empty, `.` or `..` component, bounded lengths, printable."""
    parts = path.split("/")
    is_readable = "\\" not in path and not any(unicodedata.category(character)[0] == "C" for character in path)
    return (
        is_readable
        and len(path) <= _LONGEST_PATH
        and len(parts) <= _DEEPEST
        and all(part not in ("", ".", "..") and len(part.encode()) <= _LONGEST_NAME for part in parts)
    )


def is_inside(path: str) -> bool:
    """Whether a relative path stays below its folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


class Origin(Protocol):
    """A source of files: a repository of a hub, or a bucket."""

    @property
    def uri(self) -> str:
        """For messages."""

    @property
    def field(self) -> str:
        """The field of the spec that names it."""

    @property
    def folder(self) -> str:
        """Its folder below the cache."""

    @property
    def asked(self) -> str:
        """The revision as written by the user."""

    @property
    def pinned(self) -> str | None:
        """The immutable revision where the URI contains one."""

    def listing(self) -> Listing:
        """All files. Raises Unreachable, HTTPStatusError or FetchFailed."""

    def digest(self, file: RemoteFile) -> Digest | None:
        """The published hash of the content; None where the server has none."""

    def read(
        self, listing: Listing, file: RemoteFile, start: int, end: int
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """(offset of the first byte, chunks): a server may ignore `start`. Raises like listing."""


def total(files: Sequence[RemoteFile]) -> int:
    """Sum of sizes in bytes."""
    return sum(file.size for file in files)


# Copies of the weights for other runtimes, and files of the training.
_FOLDERS = frozenset({"original", "metal", "onnx", "openvino", "coreml", "gguf", "runs", ".git", ".cache"})
_NEVER = (
    "*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.tflite", "*.ot", "*.mlmodel", "*.mlpackage", "*.llamafile",
    "*.png", "*.jpg", "*.jpeg", "*.gif", "*.webp", "*.svg", "*.mp4", "*.pdf", "*.zip", "*.tar", "*.gz",
    ".gitattributes", "training_args.bin", "optimizer.*", "scheduler.pt", "rng_state*", "trainer_state.json", "*.lock",
)  # fmt: skip
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_MISTRAL = "consolidated*.safetensors"
# Smaller files whose names contain `token` count as tokenizer files.
_SMALL_BYTES = 64 << 20


def select(files: Sequence[RemoteFile], load_format: str = "auto") -> tuple[list[RemoteFile], list[RemoteFile]]:
    """(configuration, tokenizer and index files; weights).

    Formats in vLLM's order, per folder: Mistral's where it is complete, then safetensors, then PyTorch's.
    """
    wanted = [file for file in files if not _is_foreign(file.path)]
    weights = [file for file in wanted if _matches(file.path, *_WEIGHTS) and not _is_tokenizer(file)]
    small = [file for file in wanted if file not in weights]
    if load_format == "dummy":
        return small, []
    chosen: list[RemoteFile] = []
    for folder in dict.fromkeys(PurePosixPath(file.path).parent for file in weights):
        here = [file for file in weights if PurePosixPath(file.path).parent == folder]
        chosen += _best(here, load_format, has_params=any(file.path == str(folder / "params.json") for file in small))
    return small, chosen


def _best(files: list[RemoteFile], load_format: str, *, has_params: bool) -> list[RemoteFile]:
    mistral = [file for file in files if _matches(file.path, _MISTRAL)]
    plain = [file for file in files if _matches(file.path, "*.safetensors") and file not in mistral]
    if load_format in ("auto", "mistral") and mistral and has_params:
        return mistral
    if load_format in ("pt", "npcache", "gguf"):
        patterns = {"pt": ("*.pt", "*.bin", "*.pth"), "npcache": ("*.bin",), "gguf": ("*.gguf",)}[load_format]
        return [file for file in files if _matches(file.path, *patterns)]
    if plain or mistral:
        return plain or mistral
    torch = [file for file in files if _matches(file.path, "*.bin")] or [
        file for file in files if _matches(file.path, "*.pt", "*.pth")
    ]
    return torch or files


def _is_foreign(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(_FOLDERS.intersection(parts[:-1])) or _matches(path, *_NEVER)


def _is_tokenizer(file: RemoteFile) -> bool:
    """Whether a file with a suffix of weights is a tokenizer's, such as a token table."""
    return file.size < _SMALL_BYTES and "token" in PurePosixPath(file.path).name.lower()


def _matches(path: str, *patterns: str) -> bool:
    name = PurePosixPath(path).name
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
