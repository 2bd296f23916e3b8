"""The origin hf://ORG/NAME[@REVISION]: the Hugging Face hub or the mirror in HF_ENDPOINT, with huggingface_hub.

By default the library reads and writes tokens in HOME, sends telemetry and logs whole URLs. Here its client sends the
token to its hub only, without telemetry and logging.

Files in Xet, the hub's deduplicated store, are read with hf_xet: fewer bytes, in several streams. Tested against
hf_xet's own store on disk (tests/unit/fetch/test_xet.py), not against the hub's; after any failure files are read as
plain bytes.
"""

from __future__ import annotations

import atexit
import dataclasses
import datetime as dt
import functools
import importlib
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import urljoin

import httpx2
from huggingface_hub import (
    HfApi,
    HfFileMetadata,
    constants,
    get_hf_file_metadata,
    get_session,
    hf_hub_url,
    set_client_factory,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]
from llmservice_runtime.contract import HF_TOKEN_ENV

from llmservice_fetch import failed
from llmservice_fetch.failed import HTTPStatusError, Unreachable, words
from llmservice_fetch.files import Digest, Listing, RemoteFile, is_inside
from llmservice_fetch.http import (
    CHUNK_BYTES,
    LINKED_TAG,
    TIMEOUT_SECONDS,
    begins_at,
    chunks,
    http_request,
    origin,
    range_header,
    redirected,
    retry_after,
    trust,
)
from llmservice_fetch.proxies import proxy_of

_MIB = 1 << 20
# hf_xet's own limits follow the machine's memory, not the container's: 1.5 GB and more.
_SETTINGS: dict[str, object] = {
    "reconstruction.download_buffer_size": 128 * _MIB,
    "reconstruction.download_buffer_perfile_size": 32 * _MIB,
    "reconstruction.download_buffer_limit": 128 * _MIB,
    "reconstruction.min_prefetch_buffer": 32 * _MIB,
    "reconstruction.min_reconstruction_fetch_size": 32 * _MIB,
    "reconstruction.max_reconstruction_fetch_size": 64 * _MIB,
    "client.ac_max_download_concurrency": 16,
    "client.retry_max_attempts": 2,
    "client.retry_base_delay": dt.timedelta(seconds=1),
    "client.connect_timeout": dt.timedelta(seconds=10),
    "client.read_timeout": dt.timedelta(seconds=30),
    "telemetry.enabled": False,
}


class XetStore:
    """The Xet store of one repository. `refresh` is the hub's URL that returns the store's address and a token for it.

    `headers` hold the hub's token, which is sent to `refresh` only.
    """

    def __init__(self, refresh: str, headers: Mapping[str, str]) -> None:
        self._refresh, self._headers = refresh, dict(headers)
        self._lock = threading.Lock()
        self._group: Any = None

    def read(self, file_hash: str, size: int, start: int, end: int) -> Iterator[bytes]:
        """Bytes `start` to `end` (exclusive) of a file, in order. Raises Unreachable."""
        try:
            info = _library().XetFileInfo(file_hash, size)
            stream = self._connected().download_stream(info, start=start, end=end)
        # hf_xet raises exceptions of many types.
        except Exception as error:  # noqa: BLE001
            raise _failed(error) from None
        try:
            for chunk in _chunks(stream):
                start += len(chunk)
                yield chunk
        finally:
            stream.cancel()
        if start < end:
            # For an unknown file hf_xet's stream ends without an error.
            raise Unreachable("the hub's Xet store sent too little")

    def _connected(self) -> Any:
        with self._lock:
            if self._group is None:
                self._group = _session().new_download_stream_group(
                    token_refresh_url=self._refresh,
                    token_refresh_headers=self._headers,
                    custom_headers={"User-Agent": "llmservice"},
                )
            return self._group


def _chunks(stream: Iterator[bytes]) -> Iterator[bytes]:
    while True:
        try:
            chunk = next(stream, None)
        except Exception as error:  # noqa: BLE001
            raise _failed(error) from None
        if chunk is None:
            return
        yield chunk


def _failed(error: Exception) -> Unreachable:
    """The error without URLs' queries: chunks have signed URLs."""
    return Unreachable(f"the hub's Xet store: {words(error)}")


@functools.cache
def _library() -> ModuleType:
    """Import hf_xet with its cache outside of HOME, and without its log, which contains URLs."""
    os.environ["HF_XET_CACHE"] = folder = tempfile.mkdtemp(prefix="llmservice-xet-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["HF_XET_LOG_DEST"] = os.devnull
    return importlib.import_module("hf_xet")


@functools.cache
def _session() -> Any:
    library = _library()
    return library.XetSession(library.XetConfig().with_config(_SETTINGS))


_ERRORS = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError)
# Listings and small files; weights are not read by this client.
_RESPONSE_LIMIT = 64 << 20
_WORDS_LIMIT = 300
USER_AGENT = "llmservice"
_hub: ContextVar[str] = ContextVar("hub")


def prepare() -> None:
    """Configure the library before the first request: no telemetry, no implicit token, no file in HOME, no logging."""
    constants.HF_HUB_DISABLE_TELEMETRY = True
    constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = True
    constants.HF_HUB_DISABLE_PROGRESS_BARS = True
    # Not read with the settings above; in any case a missing file.
    constants.HF_TOKEN_PATH = constants.HF_STORED_TOKENS_PATH = f"{tempfile.gettempdir()}/llmservice-no-token"
    for name in ("huggingface_hub", "httpx2", "httpcore2"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [logging.NullHandler()]
        logger.propagate = False
        # HF_DEBUG would log requests as curl commands.
        logger.setLevel(logging.CRITICAL)
    set_client_factory(_client)


@contextmanager
def requests_to(endpoint: str) -> Iterator[None]:
    """A context in which requests send the token to this hub only.

    Unreachable without a complete response; the library's exceptions for an error status.
    """
    mark = _hub.set(endpoint)
    try:
        yield
    except HfHubHTTPError:
        raise
    except _ERRORS as error:
        raise Unreachable(f"{endpoint}: {words(error)}") from None
    finally:
        _hub.reset(mark)


def status_error(error: HfHubHTTPError) -> HTTPStatusError:
    """Convert the library's error for an error status; text on one line."""
    response = error.response
    text = response.headers.get("X-Error-Message") or error.server_message or ""
    return HTTPStatusError(
        response.status_code,
        str(response.request.url),
        code=response.headers.get("X-Error-Code") or "",
        text=" ".join(text.split())[:_WORDS_LIMIT].rstrip("."),
        wait=retry_after(response),
    )


def _client() -> httpx2.Client:
    # The library reads every proxy when the client is made; its errors for an invalid one are of several classes.
    for scheme in ("http", "https", "all"):
        proxy_of(f"{scheme}://unlisted.invalid")
    return httpx2.Client(
        verify=trust(),
        headers={"Accept-Encoding": "identity"},
        follow_redirects=True,
        max_redirects=5,
        event_hooks={"request": [_keep_token], "response": [_check_response]},
    )


def _keep_token(request: httpx2.Request) -> None:
    """Remove credentials from requests to other origins; the library sends the token to the public hub's aliases."""
    if origin(str(request.url)) != origin(_hub.get()):
        for name in ("Authorization", "Proxy-Authorization", "Cookie"):
            request.headers.pop(name, None)


def _check_response(response: httpx2.Response) -> None:
    """Refuse unsafe redirects and compressed responses, and bound the length of the body."""
    if response.has_redirect_location:
        redirected(str(response.request.url), response.headers["Location"], {}, response.status_code)
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise OSError("a compressed response, which was not requested")
    assert isinstance(response.stream, httpx2.SyncByteStream)
    response.stream = _Bounded(response.stream)


class _Bounded(httpx2.SyncByteStream):
    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        left = _RESPONSE_LIMIT
        for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise OSError(f"a response of more than {_RESPONSE_LIMIT} bytes")
            yield chunk

    def close(self) -> None:
        self._stream.close()


HUB = "https://huggingface.co"
DEFAULT_REVISION = "main"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TOKEN_NAMES = (HF_TOKEN_ENV, "HUGGING_FACE_HUB_TOKEN")
_BAD_TOKEN = "invalid credentials"
# Files in git, which the hub sends itself; larger ones are redirected to a store.
_SMALL_BYTES = 16 << 20
# Statuses of a store for an expired signature.
_OVER = frozenset({400, 401, 403, 404, 410})


@dataclass(frozen=True)
class Hub:
    """One repository. `field` is the field of the spec that names it."""

    repo: str
    asked: str
    field: str
    endpoint: str
    token: str
    offline: bool
    timeout: float | None = None
    """Seconds without a byte; None: as long as a fetch waits."""
    uses_xet: bool = True
    """Worth its start-up time and memory for whole files only."""
    _places: dict[str, HfFileMetadata] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """Locations of large files by path; their URLs are signed for about an hour."""
    _locks: dict[str, threading.Lock] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    _without_xet: set[str] = dataclasses.field(default_factory=set, compare=False, repr=False)
    """Files that hf_xet failed to read; after the first failure all files are read as plain bytes."""
    _stores: dict[str, XetStore] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, rest: str, field: str, environment: Mapping[str, str]) -> Hub:
        """From the part of the URI after hf://."""
        prepare()
        repo, _, revision = rest.partition("@")
        return cls(
            repo,
            revision or DEFAULT_REVISION,
            field,
            (environment.get("HF_ENDPOINT") or HUB).rstrip("/"),
            next((environment[name].strip() for name in _TOKEN_NAMES if environment.get(name)), ""),
            environment.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES,
        )

    def within(self, seconds: float) -> Hub:
        """The same with a timeout, for an inspection, which reads too little for Xet."""
        return dataclasses.replace(self, timeout=seconds, uses_xet=False)

    @property
    def uri(self) -> str:
        """For messages."""
        return f"hf://{self.repo}"

    @property
    def folder(self) -> str:
        """The folder as in huggingface_hub's cache."""
        return f"hub/models--{self.repo.replace('/', '--')}"

    @property
    def pinned(self) -> str | None:
        """The commit, where the URI contains one."""
        return self.asked if _COMMIT.fullmatch(self.asked) else None

    def listing(self) -> Listing:
        """The revision's commit and its files."""
        info = self._info(files_metadata=True) or self._info(files_metadata=False)
        if info is None or not isinstance(info.sha, str):
            raise failed.not_found(
                self.field,
                f"{self.endpoint} does not respond like a model hub.",
                "HF_ENDPOINT (services.hfEndpoint of the chart, or spec.runtime.env) must name the hub or a mirror.",
            )
        commit = info.sha
        if not is_inside(commit) or "/" in commit:
            raise failed.unusable(commit, self.uri)
        return Listing(commit, tuple(self._file(commit, sibling) for sibling in info.siblings or ()))

    def _info(self, *, files_metadata: bool) -> ModelInfo | None:
        """None where the library cannot parse the response; of some mirrors it can parse only the names."""
        api = HfApi(self.endpoint, token=self.token or False, library_name=USER_AGENT)
        with self._requests():
            try:
                return api.model_info(
                    self.repo, revision=self.asked, files_metadata=files_metadata, timeout=self._timeout
                )
            except HfHubHTTPError:
                raise  # some are ValueErrors as well
            except HFValidationError as error:
                raise failed.not_found(self.field, f"{self.uri} is not a model name: {error}", "") from None
            except (ValueError, TypeError, KeyError, AttributeError):
                return None

    def digest(self, file: RemoteFile) -> Digest | None:
        return file.digest

    def in_parts(self, listing: Listing, file: RemoteFile) -> bool:
        """Whether a file may be read in concurrent parts; hf_xet does that itself."""
        return not self._in_xet(file, self._place(listing.revision, file.path))

    @contextmanager
    def read(self, listing: Listing, file: RemoteFile, start: int, end: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Read a range of a file of the listed commit; a small file is read as a whole."""
        url = self._address(listing.revision, file.path)
        if file.size <= _SMALL_BYTES and file.digest and file.digest.algorithm == "git-sha1":
            with (
                self._requests(),
                get_session().stream("GET", url, headers=self._headers, timeout=self._timeout) as response_headers,
            ):
                hf_raise_for_status(response_headers)
                yield 0, response_headers.iter_raw(CHUNK_BYTES)
            return
        known = self._places.get(file.path)
        place = self._place(listing.revision, file.path)
        if self._in_xet(file, place):
            with self._xet(place, file, start, end) as stream:
                yield start, stream
            return
        headers = {"Accept-Encoding": "identity", "User-Agent": USER_AGENT}
        headers["Range"] = range_header(start, end)
        location = urljoin(url, place.location)
        if self.token and origin(location) == origin(self.endpoint):
            headers["Authorization"] = f"Bearer {self.token}"
        with http_request(location, headers, timeout=self._timeout) as response:
            if response.status >= 400:
                self._places.pop(file.path, None)
                if response.status in _OVER and known is not None:
                    raise Unreachable(f"the store of {self.uri} returned {response.status}: requesting a new address")
                raise HTTPStatusError(response.status, location, wait=retry_after(response))
            yield begins_at(response), chunks(response)

    @contextmanager
    def _xet(self, place: HfFileMetadata, file: RemoteFile, start: int, end: int) -> Iterator[Iterator[bytes]]:
        """Read by hf_xet; after a failure the retry reads plain bytes."""
        data = place.xet_file_data
        assert data is not None
        store = self._stores.setdefault(data.refresh_route, XetStore(data.refresh_route, self._headers))
        try:
            yield store.read(data.file_hash, file.size, start, end)
        except Unreachable as error:
            self._without_xet.add(file.path)
            raise Unreachable(f"{error}; {file.path} continues without Xet") from None

    def _in_xet(self, file: RemoteFile, place: HfFileMetadata) -> bool:
        """Whether to read a file by hf_xet: only with a refresh route on the hub's origin, which gets the token."""
        if place.xet_file_data is None or constants.HF_HUB_DISABLE_XET or self._without_xet or not self.uses_xet:
            return False
        return origin(place.xet_file_data.refresh_route) == origin(self.endpoint)

    def _file(self, commit: str, sibling: RepoSibling) -> RemoteFile:
        path = sibling.rfilename
        if not isinstance(path, str) or not is_inside(path):
            raise failed.unusable(str(path), self.uri)
        blob, size = sibling.blob_id, sibling.size
        if sibling.lfs is not None:
            blob, size = sibling.lfs.sha256, sibling.lfs.size
        if isinstance(blob, str) and isinstance(size, int) and _digest_of(blob):
            return RemoteFile(path, size, blob, _digest_of(blob))
        return self._looked_up(commit, path)

    def _looked_up(self, commit: str, path: str) -> RemoteFile:
        """Size and digest by a request per file, for mirrors that list names only."""
        place = self._place(commit, path)
        size, tag = place.size, place.etag or ""
        if size is None or not tag:
            # A mirror that only redirects; the library does not follow it.
            headers = {"Accept-Encoding": "identity", "User-Agent": USER_AGENT}
            elsewhere = urljoin(self._address(commit, path), place.location)
            with http_request(elsewhere, headers, method="HEAD", timeout=self._timeout) as response:
                response_headers = response.headers
            found = response_headers.get("X-Linked-Size") or response_headers.get("Content-Length") or ""
            size = int(found) if found.isdigit() else None
            tag = (response_headers.get(LINKED_TAG) or response_headers.get("ETag") or "").removeprefix("W/").strip('"')
        if size is None or not re.fullmatch(r"[\w.-]+", tag):
            raise Unreachable(f"{self.endpoint} reports no size or no ETag of {path}")
        return RemoteFile(path, size, tag, _digest_of(tag))

    def _place(self, commit: str, path: str) -> HfFileMetadata:
        """A file's location; requested once for all threads."""
        with self._locks.setdefault(path, threading.Lock()):
            if path not in self._places:
                with self._requests():
                    self._places[path] = get_hf_file_metadata(
                        self._address(commit, path),
                        token=self.token or False,
                        timeout=self._timeout,
                        library_name=USER_AGENT,
                        endpoint=self.endpoint,
                    )
            return self._places[path]

    def _address(self, commit: str, path: str) -> str:
        return hf_hub_url(self.repo, path, revision=commit, endpoint=self.endpoint)

    @property
    def _headers(self) -> dict[str, str]:
        return build_hf_headers(token=self.token or False, library_name=USER_AGENT)

    @property
    def _timeout(self) -> float:
        return self.timeout or TIMEOUT_SECONDS

    @contextmanager
    def _requests(self) -> Iterator[None]:
        if self.offline:
            message = f"HF_HUB_OFFLINE is set: {self.uri} is not requested."
            raise failed.download_failed(message, "HF_HUB_OFFLINE in spec.runtime.env") from Unreachable("offline")
        with requests_to(self.endpoint):
            try:
                yield
            except HfHubHTTPError as error:
                raise self._explained(error) from None

    def _explained(self, error: HfHubHTTPError) -> Exception:
        """The exception for a hub's error. It returns 401 both for private and for missing repositories."""
        secret = "spec.model.hfTokenSecretRef"
        refused = status_error(error)
        if isinstance(error, RevisionNotFoundError):
            return failed.revision_not_found(self.field, self.uri, self.asked)
        if _BAD_TOKEN in refused.text.lower() or (refused.status == 401 and not refused.code and self.token):
            return failed.token_refused(
                f"{self.endpoint} does not accept the token: {refused.text or refused.status}.",
                f"Put a valid token into the Secret that {secret} names (it may have expired or been revoked).",
            )
        if isinstance(error, GatedRepoError):
            return failed.access_denied(
                f"{self.uri} is gated, and {'this token' if self.token else 'nobody without a token'} may read it: "
                f"{refused.text or refused.status}.",
                f"Accept the model's licence on the hub with the token's account, and give its token in {secret}.",
            )
        if isinstance(error, RepositoryNotFoundError) or refused.status == 404:
            who = "or the token may not see it" if self.token else "or it is private"
            return failed.not_found(
                self.field, f"{self.endpoint} has no model {self.repo}, {who}.", f"A private model needs {secret}."
            )
        if refused.status in (401, 403):
            return failed.access_denied(
                f"{self.endpoint} refuses {self.uri}: {refused.text or refused.status}.",
                f"Give a token that may read it in {secret}.",
            )
        return refused


def _digest_of(tag: str) -> Digest | None:
    """The hash in a hub's ETag: git-sha1 of a small file, SHA-256 of a large one."""
    algorithm = {40: "git-sha1", 64: "sha256"}.get(len(tag))
    return Digest(algorithm, tag) if algorithm and re.fullmatch(r"[0-9a-f]+", tag) else None
