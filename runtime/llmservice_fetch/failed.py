"""Errors of origins, common to all client libraries, and the failures of a fetch, each with message and remedy.

Texts of other programs are freed of secrets before they get into a message.
"""

from __future__ import annotations

import errno
import re
import shutil
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmservice_runtime.contract import DRAFT_ARTIFACT, MODEL_ARTIFACT, Failure, FailureReason, Phase

GIB = 1 << 30
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class FetchFailed(Exception):
    """The fetch failed; carries the classified failure."""

    def __init__(self, reason: FailureReason, message: str, remedy: str) -> None:
        super().__init__(message)
        self.failure = Failure(reason, message, remedy, phase=Phase.FETCHING)

    @classmethod
    def of(cls, failure: Failure) -> FetchFailed:
        failed = cls(failure.reason, failure.message, failure.remedy)
        failed.failure = failure
        return failed


def field_of(artifact: str, uri: str) -> str:
    known = {MODEL_ARTIFACT: "spec.model.uri", DRAFT_ARTIFACT: "spec.speculativeDecoding.model.uri"}
    return known.get(artifact, f"spec.adapters ({uri})")


def not_found(field: str, message: str, hint: str) -> FetchFailed:
    """The name does not exist, or is not visible with these credentials."""
    return FetchFailed(FailureReason.MODEL_NOT_FOUND, message, f"Check {field}. {hint}")


def revision_not_found(field: str, uri: str, revision: str) -> FetchFailed:
    """The repository exists, the revision does not."""
    return FetchFailed(
        FailureReason.MODEL_REVISION_NOT_FOUND,
        f"{uri} has no revision {revision!r}.",
        f"Write a branch, a tag or a commit that exists behind the @ of {field}.",
    )


def access_denied(message: str, remedy: str) -> FetchFailed:
    """The identity is valid or anonymous, but may not read this."""
    return FetchFailed(FailureReason.MODEL_ACCESS_DENIED, message, remedy)


def token_refused(message: str, remedy: str) -> FetchFailed:
    """The credentials are invalid."""
    return FetchFailed(FailureReason.MODEL_TOKEN_REFUSED, message, remedy)


def download_failed(message: str, place: str) -> FetchFailed:
    """A failure of the network or the server; downloaded bytes are kept."""
    return FetchFailed(
        FailureReason.MODEL_DOWNLOAD_FAILED,
        message,
        f"Check DNS, proxy and CA settings of the operator's chart and {place}. With spec.model.cache the next start "
        "resumes the fetch.",
    )


def corrupt(field: str, message: str) -> FetchFailed:
    """Two downloads with a wrong hash: the origin's copy is damaged."""
    return FetchFailed(
        FailureReason.MODEL_CORRUPT,
        message,
        f"Upload the file again where {field} points to, or choose another revision.",
    )


def unusable(path: str, uri: str) -> FetchFailed:
    """A listing with a name that cannot be stored safely."""
    return FetchFailed(
        FailureReason.MODEL_CORRUPT, f"{uri} lists a file called {path!r}.", "Use a copy of the model that you trust."
    )


def storage_full(folder: Path, needed: int | None, free: int) -> FetchFailed:
    """Not enough space, found before the download (`needed` bytes) or during it (None)."""
    rest = "the volume is full" if needed is None else f"{needed / GIB:.2f} GiB are still to be fetched"
    return FetchFailed(
        FailureReason.STORAGE_FULL,
        f"The model cache {folder} has {free / GIB:.2f} GiB free, and {rest}.",
        "Enlarge spec.model.cache.size (the claim's storage class must allow expansion), name a larger claim in "
        "spec.model.cache.claimName, or without a cache raise the node's ephemeral storage; downloaded bytes are kept.",
    )


@contextmanager
def storage(folder: Path) -> Iterator[None]:
    """Convert OSErrors of the disk into FetchFailed; network errors are never plain OSErrors here."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise storage_full(folder, None, shutil.disk_usage(folder).free) from None
        raise storage_refused(folder, error) from None


def storage_refused(folder: Path, error: OSError) -> FetchFailed:
    """The cache cannot be written: permissions, a read-only volume, a broken disk."""
    return FetchFailed(
        FailureReason.MODEL_DOWNLOAD_FAILED,
        f"The model cache {folder} cannot be written: {error.strerror or error}.",
        "Check the claim of spec.model.cache: it must be writable for the pod's user or fsGroup "
        "(spec.podTemplate.spec.securityContext).",
    )


_ADDRESS = re.compile(r"\w+://[^\s()<>'\"]+")
_WORDS_LIMIT = 300
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class Unreachable(Exception):
    """No response, or an incomplete one. May be retried."""


class HTTPStatusError(Exception):
    """An error status. `code` and `text` are the server's; `wait` is its Retry-After in seconds."""

    def __init__(self, status: int, url: str, *, code: str = "", text: str = "", wait: float = 0.0) -> None:
        super().__init__(f"{plain(url)} answered {status}" + (f": {text}" if text else ""))
        self.status, self.code, self.text, self.wait = status, code, text, wait

    @property
    def is_transient(self) -> bool:
        return self.status in _PASSING


def plain(url: str) -> str:
    """A URL without query (which may hold a signature) and user info; empty where it is not a URL."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return ""
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def words(error: Exception) -> str:
    """A library's error message: one line, with plain URLs."""
    text = " ".join(_ADDRESS.sub(lambda found: plain(found[0]), str(error)).split())
    return text[:_WORDS_LIMIT] or type(error).__name__
