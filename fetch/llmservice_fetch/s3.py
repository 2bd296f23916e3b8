"""s3://BUCKET/PREFIX: AWS, or any server that speaks S3 (AWS_ENDPOINT_URL_S3)."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import http.client
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from llmservice_fetch import failed
from llmservice_fetch.files import Digest, Listing, RemoteFile, is_inside
from llmservice_fetch.http import Refused, ask, begins_at, chunks, range_header, wait_of
from llmservice_fetch.s3_credentials import REMEDY, Chain, endpoint_of
from llmservice_fetch.s3_sign import escape, signed

_ERROR_LIMIT = 64 << 10
_PAGE_LIMIT = 16 << 20
_BAD_KEYS = frozenset({
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired",
    "InvalidSecurity", "RequestTimeTooSkewed", "AuthorizationHeaderMalformed",
})  # fmt: skip
_DEFAULT_REGION = "us-east-1"


@dataclass
class Place:
    """Where a bucket answers. AWS tells its region when it is asked in another one."""

    endpoint: str
    bucket: str
    region: str

    def address(self, key: str, query: Mapping[str, str]) -> str:
        """Of an object, or of the bucket where there is no key. A server of one's own has no names for buckets."""
        base = self.endpoint or f"https://s3.{self.region}.amazonaws.com"
        if self.endpoint or "." in self.bucket:
            base = f"{base}/{escape(self.bucket)}"
        else:
            parts = urlsplit(base)
            base = f"{parts.scheme}://{self.bucket}.{parts.netloc}"
        words = "&".join(f"{escape(name)}={escape(value)}" for name, value in sorted(query.items()))
        return f"{base}/{escape(key, '/')}" + (f"?{words}" if words else "")


@dataclass(frozen=True)
class Bucket:
    """The objects below a prefix. `field` is the field of the spec that names them."""

    place: Place
    prefix: str
    field: str
    chain: Chain
    asked: str = "latest"
    pinned: str | None = None
    timeout: float | None = None
    """Seconds without a byte; None: as long as a fetch waits."""

    @classmethod
    def of(cls, rest: str, field: str, environment: Mapping[str, str], hide: Callable[[str], None]) -> Bucket:
        """From what stands behind s3://."""
        bucket, _, prefix = rest.partition("/")
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
        place = Place(endpoint_of(environment), bucket, region)
        return cls(place, prefix.strip("/"), field, Chain(environment, region, hide))

    @property
    def uri(self) -> str:
        """For messages."""
        return f"s3://{self.place.bucket}/{self.prefix}".rstrip("/")

    @property
    def folder(self) -> str:
        """One for each server, bucket and prefix."""
        return f"s3/{self.place.bucket}--{_hash(self.place.endpoint, self.prefix)[:12]}"

    def listing(self) -> Listing:
        """All objects, page by page. Their names, sizes and ETags are the revision."""
        prefix = f"{self.prefix}/" if self.prefix else ""
        query = {"list-type": "2", "prefix": prefix}
        files: list[RemoteFile] = []
        while True:
            with self._ask("", query) as answer:
                page = ET.fromstring(answer.read(_PAGE_LIMIT))
            objects = [(item.findtext("{*}Key", "")[len(prefix) :], item) for item in page.iterfind("{*}Contents")]
            # A key that ends with a slash is what some programs call a folder.
            files += [_listed(path, item) for path, item in objects if not path.endswith("/") and path]
            token = page.findtext("{*}NextContinuationToken")
            if page.findtext("{*}IsTruncated") != "true" or not token:
                break
            query["continuation-token"] = token
        for file in files:
            if not is_inside(file.path):
                raise failed.unusable(file.path, self.uri)
        if not files:
            raise failed.not_found(self.field, f"There is nothing in {self.uri}.", "The prefix is the model's folder.")
        files.sort(key=lambda file: file.path)
        return Listing(_hash(*(f"{file.path} {file.blob}" for file in files)), tuple(files))

    def digest(self, file: RemoteFile) -> Digest | None:
        """The object's SHA-256 where it has one, else its ETag where that is an MD5."""
        with self._ask(self._key(file), {}, method="HEAD", headers={"x-amz-checksum-mode": "ENABLED"}) as answer:
            headers = answer.headers
        checksum = headers.get("x-amz-checksum-sha256") or ""
        if checksum and "-" not in checksum and headers.get("x-amz-checksum-type", "FULL_OBJECT") == "FULL_OBJECT":
            return Digest("sha256", base64.b64decode(checksum).hex())
        encrypted = headers.get("x-amz-server-side-encryption", "AES256") != "AES256"
        hidden = encrypted or "x-amz-server-side-encryption-customer-algorithm" in headers
        tag = file.version.strip('"')
        return None if hidden or not re.fullmatch(r"[0-9a-f]{32}", tag) else Digest("md5", tag)

    @contextmanager
    def read(self, listing: Listing, file: RemoteFile, start: int, end: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """A part of an object, while it is the one that was listed."""
        headers = {"Range": range_header(start, end), **({"If-Match": file.version} if file.version else {})}
        with self._ask(self._key(file), {}, headers=headers) as answer:
            yield begins_at(answer), chunks(answer)

    def _key(self, file: RemoteFile) -> str:
        return f"{self.prefix}/{file.path}" if self.prefix else file.path

    @contextmanager
    def _ask(
        self, key: str, query: Mapping[str, str], *, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        for second in (False, True):
            url = self.place.address(key, query)
            credentials = self.chain.current()
            ours = {"Accept-Encoding": "identity", "User-Agent": "llmservice", **(headers or {})}
            if credentials:
                now = dt.datetime.now(dt.timezone.utc)  # noqa: UP017 - Python 3.10
                ours = signed(method, url, credentials, self.place.region, now, headers=ours)
            with ask(url, ours, method=method, timeout=self.timeout) as answer:
                if answer.status < 300:
                    yield answer
                    return
                region = answer.headers.get("x-amz-bucket-region") or ""
                if not second and region and region != self.place.region:
                    self.place.region = region
                    continue
                raise self._explained(_refused(url, answer), key, signed=credentials is not None)

    def _explained(self, refused: Refused, key: str, *, signed: bool) -> Exception:
        """S3's refusals, told apart."""
        words = refused.text or refused.code or f"status {refused.status}"
        # Servers that are not AWS have codes of their own for a key that they do not know.
        if refused.code in _BAD_KEYS or "access key" in refused.text.lower():
            message = f"The S3 server does not accept the credentials ({refused.code}): {words}"
            return failed.token_refused(message, REMEDY)
        if refused.code == "NoSuchBucket" or (refused.status == 404 and not key):
            return failed.not_found(
                self.field,
                f"There is no bucket {self.place.bucket} at {self.place.endpoint or 'AWS'}.",
                "A bucket of another server needs spec.model.s3.endpoint.",
            )
        if refused.status in (401, 403):
            who = "these credentials" if signed else "anybody without credentials"
            return failed.access_denied(
                f"The S3 server does not let {who} read {self.uri}: {words}",
                "Give credentials in spec.model.s3.credentialsSecretRef that may list the bucket and read its objects "
                "(s3:ListBucket and s3:GetObject).",
            )
        if refused.status in (404, 412):
            return failed.download_failed(f"{self.uri} changed while it was fetched.", "whoever writes there")
        return refused


def _listed(path: str, item: ET.Element) -> RemoteFile:
    tag, size = item.findtext("{*}ETag", ""), int(item.findtext("{*}Size", "0"))
    return RemoteFile(path, size, _hash(path, tag or item.findtext("{*}LastModified", ""), str(size)), version=tag)


def _refused(url: str, answer: http.client.HTTPResponse) -> Refused:
    try:
        told = ET.fromstring(answer.read(_ERROR_LIMIT))
    except ET.ParseError:
        return Refused(answer.status, url, wait=wait_of(answer))
    code, text = told.findtext("{*}Code", ""), told.findtext("{*}Message", "")
    return Refused(answer.status, url, code=code, text=text, wait=wait_of(answer))


def _hash(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:40]
