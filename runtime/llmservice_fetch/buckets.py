"""The origin SCHEME://BUCKET/PREFIX of each cloud, read with obstore.

The clouds' own servers or compatible ones (AWS_ENDPOINT_URL_S3, GOOGLE_BASE_URL, AZURE_STORAGE_ENDPOINT). Response
headers that obstore does not pass on (a bucket's region, an object's published hash) are read with HEAD requests.
"""

from __future__ import annotations

import hashlib
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from email.message import Message
from typing import Any, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, InvalidPathError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from llmservice_fetch import bucket_errors, failed
from llmservice_fetch.bucket_stores import Access, Identity, access_of
from llmservice_fetch.clouds import CLOUDS
from llmservice_fetch.failed import Unreachable
from llmservice_fetch.files import Digest, Listing, RemoteFile, is_file_path, is_inside
from llmservice_fetch.proxies import proxy_of

_REGION = re.compile(r"[a-z0-9-]{1,63}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def head(url: str, timeout: float) -> tuple[int, Message]:
    """Status and headers of a HEAD request; redirects are not followed. OSError without a response."""
    scheme = urlsplit(url).scheme
    if scheme not in ("http", "https"):
        raise OSError("not an HTTP address")
    # The standard library reads no networks in NO_PROXY.
    proxy = proxy_of(url)
    proxies = urllib.request.ProxyHandler({scheme: proxy} if proxy else {})
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "llmservice"})
    try:
        with urllib.request.build_opener(_NoRedirects(), proxies).open(request, timeout=timeout) as answer:
            return answer.status, answer.headers
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.headers


def region_of(url: str, timeout: float) -> str:
    """The bucket's region as AWS reports it, also without credentials; empty where unknown."""
    try:
        _, headers = head(url, timeout)
    except (OSError, ValueError):
        return ""
    values = headers.get("x-amz-bucket-region") or ""
    return values if _REGION.fullmatch(values) else ""


T = TypeVar("T")
# Larger chunks cost more CPU: obstore assembles each from many small ones.
_CHUNK_BYTES = 256 << 10
_PAGE = 1000
_MOST_FILES = 50_000
_LARGEST_BYTES = 1 << 50
_HEAD_SECONDS = 30.0
_SIGNED_FOR = timedelta(minutes=5)
_SIGNING = S3Store | GCSStore | AzureStore
# obstore's exceptions: its own types, and Python's for missing objects and malformed arguments.
_ERRORS = (BaseError, FileNotFoundError, ValueError)


@dataclass(frozen=True)
class Bucket:
    """The objects below a prefix. `field` is the field of the spec that names them."""

    access: Access
    place: str
    """The URI's part before the prefix: the bucket, and what its cloud has before that."""
    prefix: str
    field: str
    asked: str = "latest"
    pinned: str | None = None
    timeout: float | None = None
    """Seconds without a byte; None: as long as a fetch waits."""

    @classmethod
    def of(cls, uri: str, field: str, environment: Mapping[str, str], hide: Callable[[str], None]) -> Bucket | None:
        """From a URI; None where it names no bucket."""
        scheme, _, rest = uri.partition("://")
        cloud = CLOUDS.get(scheme)
        if cloud is None or not is_inside(rest):
            return None
        parts = rest.split("/", cloud.depth)
        place, prefix = "/".join(parts[: cloud.depth]), "".join(parts[cloud.depth :])
        access = access_of(cloud, place, environment, hide)
        if cloud.no_account is not None and not access.account:
            problem, hint = cloud.no_account
            raise failed.not_found(field, f"{uri} {problem}.", hint)
        return cls(access, place, prefix.strip("/"), field)

    def within(self, seconds: float) -> Bucket:
        """The same with a timeout, for an inspection."""
        return replace(self, timeout=seconds)

    @property
    def uri(self) -> str:
        """For messages."""
        return f"{self.access.cloud.scheme}://{self.place}/{self.prefix}".rstrip("/")

    @property
    def folder(self) -> str:
        """The cache's folder; unique by server, account, bucket and prefix."""
        access = self.access
        account = (access.account,) if access.account else ()
        return f"{access.cloud.scheme}/{access.bucket}--{_hash(access.endpoint, *account, self.prefix)[:12]}"

    def listing(self) -> Listing:
        """All objects. The revision is a hash of their names, sizes and ETags."""
        files = self._request(self._listed, listing=True)
        if not files:
            section = self.access.cloud.wording.section
            other = f" Or {section}.endpoint names something else." if self.access.endpoint else ""
            hint = f"The prefix is the model's folder.{other}"
            raise failed.not_found(self.field, f"There is nothing in {self.uri}.", hint)
        return Listing(_hash(*(f"{file.path} {file.blob}" for file in files)), tuple(files))

    def digest(self, file: RemoteFile) -> Digest | None:
        """The object's MD5 where the server publishes it, by a HEAD request that is unsigned or can be signed locally.

        obstore does not pass on the headers.
        """
        url = self._request(lambda store: self._head_address(store, self._key(file)))
        if url is None:
            return None
        try:
            status, headers = head(url, self.timeout or _HEAD_SECONDS)
        except (OSError, ValueError) as error:
            # Not the error's text, which may hold the signed URL.
            reason = getattr(error, "reason", type(error).__name__)
            raise Unreachable(f"{self.uri}: {reason}") from None
        return self.access.cloud.digest(headers, file.version) if status == 200 else None

    @contextmanager
    def read(self, listing: Listing, file: RemoteFile, start: int, end: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Read a range of an object. FetchFailed where the object has changed since the listing."""
        result = self._request(lambda store: self._get(store, file, start, end))
        if result.meta["size"] != file.size or _tag(result.meta["e_tag"] or file.version) != _tag(file.version):
            # Some servers ignore If-Match.
            raise bucket_errors.changed(self.uri)
        yield result.range[0], self._chunks(result)

    def _listed(self, store: ObjectStore) -> list[RemoteFile]:
        found: list[Mapping[str, Any]] = []
        for page in obstore.list(store, self.prefix or None, chunk_size=_PAGE):
            found += page
            if len(found) > _MOST_FILES:
                message = f"{self.uri} holds more than {_MOST_FILES} objects."
                raise failed.not_found(self.field, message, "The prefix is the model's folder, and not all models'.")
        return files_of(found, self.prefix, self.uri)

    def _get(self, store: ObjectStore, file: RemoteFile, start: int, end: int) -> obstore.GetResult:
        options: obstore.GetOptions = {"if_match": file.version} if file.version else {}
        if (start, end) == (0, file.size):
            return obstore.get(store, self._key(file), options=options)
        try:
            return obstore.get(store, self._key(file), options={**options, "range": (start, end)})
        except BaseError as error:
            if "non-partial response" not in str(error):
                raise
            # A server without Range sends the whole object, and the caller starts from the beginning.
            return obstore.get(store, self._key(file), options=options)

    def _chunks(self, result: obstore.GetResult) -> Iterator[bytes]:
        try:
            yield from result.stream(min_chunk_size=_CHUNK_BYTES)
        except _ERRORS as error:
            raise bucket_errors.retryable(bucket_errors.read(error), self.uri) from None

    def _head_address(self, store: ObjectStore, key: str) -> str | None:
        if self.access.identity is Identity.NOBODY:
            return self.access.address(key)
        if not self.access.signs or not isinstance(store, _SIGNING):
            return None
        return obstore.sign(store, self.access.cloud.signed_method, key, _SIGNED_FOR)

    def _key(self, file: RemoteFile) -> str:
        return f"{self.prefix}/{file.path}" if self.prefix else file.path

    def _request(self, action: Callable[[ObjectStore], T], *, listing: bool = False) -> T:
        """The result of an action, repeated with another identity or region where the error calls for it."""
        while True:
            try:
                result = action(self.access.store(self.timeout))
            except _ERRORS as error:
                parsed = bucket_errors.read(error)
                if not self._redirects_request(parsed):
                    raise self._explained(error, parsed, listing=listing) from None
            else:
                self.access.answered = True
                return result

    def _redirects_request(self, parsed: bucket_errors.ParsedError) -> bool:
        """Switch to unsigned requests or to the bucket's region, each at most once; False where neither applies."""
        access = self.access
        # After a successful request the role exists, so its failure is an error.
        if access.identity is Identity.MACHINE and not access.answered and self._is_about_credentials(parsed):
            access.identity = Identity.NOBODY
            return True
        if not access.cloud.has_regions or access.moved or not (parsed.region or parsed.bare_redirect):
            return False
        region = parsed.region or region_of(access.address(), self.timeout or _HEAD_SECONDS)
        access.moved, changed, access.region = True, region not in ("", access.region), region or access.region
        return changed

    def _is_about_credentials(self, parsed: bucket_errors.ParsedError) -> bool:
        """Whether the credentials' server failed rather than the bucket's, or no request was sent.

        obstore hides URLs of Azure with a SAS and of AWS' token service.
        """
        hidden = parsed.is_redacted and self.access.cloud.hides_urls
        of_bucket = hidden or parsed.url.startswith(self.access.address().rstrip("/"))
        return not (of_bucket or parsed.is_body or parsed.bare_redirect)

    def _explained(self, error: BaseException, parsed: bucket_errors.ParsedError, *, listing: bool) -> Exception:
        access = self.access
        if isinstance(error, InvalidPathError):
            return failed.unusable(parsed.words, self.uri)
        if "invalid list response" in str(error):
            wording = access.cloud.wording
            where, name = access.endpoint or wording.own, wording.server.removeprefix("The ")
            message = f"{where} does not list objects like {name}."
            return failed.not_found(self.field, message, f"Check {wording.section}.endpoint.")
        signed = access.identity is not Identity.NOBODY
        if signed and self._is_about_credentials(parsed):
            return bucket_errors.no_credentials(parsed, access.cloud.scheme, access.cloud.wording)
        asked = bucket_errors.AccessedBucket(
            access.cloud.wording, access.bucket, self.uri, self.field, access.endpoint, access.account, signed
        )
        return bucket_errors.explained(parsed, asked, listing=listing)


def files_of(found: Sequence[Mapping[str, Any]], prefix: str, uri: str) -> list[RemoteFile]:
    """The listed files by path. FetchFailed for a name that is not a file below the prefix.

    Empty objects with others below them are folder markers and are skipped.
    """
    start = f"{prefix}/" if prefix else ""
    files: dict[str, RemoteFile] = {}
    folders: set[str] = set()
    for item in found:
        key, size = str(item["path"]), item["size"]
        if key == prefix and size == 0:
            continue
        path = key[len(start) :]
        tag = item["e_tag"] or ""
        sound = tag.isascii() and tag.isprintable() and 0 <= size <= _LARGEST_BYTES
        if not (sound and key.startswith(start) and is_file_path(path)):
            raise failed.unusable(key, uri)
        files[path] = RemoteFile(path, size, _hash(path, tag or str(item["last_modified"]), str(size)), version=tag)
        folders.update(path[:at] for at, character in enumerate(path) if character == "/")
    if both := [path for path in folders & files.keys() if files[path].size]:
        raise failed.unusable(min(both), uri)
    return [files[path] for path in sorted(files.keys() - folders)]


def _tag(text: str) -> str:
    return text.removeprefix("W/").strip('"')


def _hash(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:40]
