"""A small server that answers as S3, Google Cloud Storage and Azure do, to the requests that obstore makes.

It checks no signatures: VersityGW, fake-gcs-server and Azurite do. It can refuse, move, stall and lie as they never do.
"""

from __future__ import annotations

import base64
import hashlib
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.http_servers import threaded

ACCOUNT = "weights"


@dataclass(frozen=True)
class Asked:
    """A request. `bucket` and `key` are empty where the path names none."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: Message
    bucket: str = ""
    key: str = ""

    @property
    def is_listing(self) -> bool:
        return self.method == "GET" and bool(self.bucket) and not self.key


@dataclass(frozen=True)
class Answer:
    """What is sent back. `cut`: the connection ends after so many bytes of the body."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


@dataclass
class BucketServer:
    """Objects by bucket and key. `first` may answer in place of the server; None: as usual."""

    objects: dict[str, dict[str, bytes]]
    first: Callable[[Asked], Answer | None] = lambda _: None
    headers: dict[str, str] = field(default_factory=dict)
    """Of every object."""
    knows_ranges: bool = True
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    @property
    def as_s3(self) -> dict[str, str]:
        """Variables, without credentials."""
        return {"AWS_ENDPOINT_URL_S3": self.url, "AWS_REGION": "eu-west-1"}

    @property
    def as_gcs(self) -> dict[str, str]:
        return {"GOOGLE_BASE_URL": self.url}

    @property
    def as_azure(self) -> dict[str, str]:
        return {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}"}

    def environment(self, scheme: str) -> dict[str, str]:
        return {"s3": self.as_s3, "gs": self.as_gcs, "az": self.as_azure}[scheme]

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self.objects.setdefault(bucket, {})[key] = content

    def answer(self, asked: Asked) -> Answer:
        """As a server that lets everybody read."""
        azure = asked.path.startswith(f"/{ACCOUNT}/")
        objects = self.objects.get(asked.bucket)
        if objects is None:
            return refusal(404, "ContainerNotFound" if azure else "NoSuchBucket", "It does not exist.")
        if not asked.key:
            prefix = asked.query.get("prefix", [""])[0]
            found = {key: content for key, content in sorted(objects.items()) if key.startswith(prefix)}
            return Answer(200, (azure_page if azure else page)(found).encode(), {"Content-Type": "application/xml"})
        content = objects.get(asked.key)
        if content is None:
            return refusal(404, "BlobNotFound" if azure else "NoSuchKey", "It does not exist.")
        return self._object(asked, content, azure=azure)

    def _object(self, asked: Asked, content: bytes, *, azure: bool) -> Answer:
        tag, digest = tag_of(content), hashlib.md5(content).digest()
        if asked.headers.get("If-Match", tag).strip('"') != tag.strip('"'):
            return refusal(412, "ConditionNotMet" if azure else "PreconditionFailed", "It is another one.")
        headers = {"ETag": tag, "Last-Modified": "Tue, 01 Jul 2025 00:00:00 GMT", **self.headers}
        if azure:
            headers["Content-MD5"] = base64.b64encode(digest).decode()
        asked_range = asked.headers.get("Range") or asked.headers.get("x-ms-range")
        if not asked_range or not self.knows_ranges:
            return Answer(200, content, headers)
        first, _, last = asked_range.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(content)), len(content) - 1)
        return Answer(
            206, content[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{len(content)}"}
        )


def tag_of(content: bytes) -> str:
    """The MD5, as S3's and Google's are."""
    return f'"{hashlib.md5(content).hexdigest()}"'


def page(found: dict[str, bytes], **override: str) -> str:
    """A listing of S3 or Google. `override` replaces Size or ETag."""
    items = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2025-07-01T00:00:00.000Z</LastModified>"
        f"<ETag>{override.get('ETag', tag_of(content))}</ETag>"
        f"<Size>{override.get('Size', len(content))}</Size></Contents>"
        for key, content in found.items()
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"


def azure_page(found: dict[str, bytes]) -> str:
    """A listing of Azure, whose tags have no quotes there."""
    items = "".join(
        f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>Tue, 01 Jul 2025 00:00:00 GMT</Last-Modified>"
        f"<Etag>{tag_of(content).strip(chr(34))}</Etag><Content-Length>{len(content)}</Content-Length>"
        f"<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
        for key, content in found.items()
    )
    return f"<EnumerationResults><Blobs>{items}</Blobs><NextMarker /></EnumerationResults>"


def refusal(status: int, code: str, message: str, **headers: str) -> Answer:
    """An error document of S3, Google or Azure."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Answer(status, body.encode(), {"Content-Type": "application/xml", **named})


@contextmanager
def bucket_server(
    objects: dict[str, dict[str, bytes]] | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[BucketServer]:
    """On a loopback address, until the end of the block."""
    found = BucketServer(objects or {})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body in one packet, or each answer waits for an acknowledgement.
        wbufsize = 1 << 16

        def do_GET(self) -> None:
            asked = _asked(self.command, self.path, self.headers)
            found.asked.append(asked)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = found.first(asked) or found.answer(asked)
            body = b"" if answer.status in (204, 304) else answer.body
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: answer.cut])
            self.close_connection = self.close_connection or answer.cut is not None

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            self.do_GET()

    with threaded(Handler, tls=tls) as port:
        found.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        yield found


def _asked(method: str, target: str, headers: Message) -> Asked:
    # Through a proxy the whole URL stands in the request.
    parts = urlsplit(target)
    path = unquote(parts.path)
    bucket, _, key = path.removeprefix(f"/{ACCOUNT}").lstrip("/").partition("/")
    return Asked(method, path, parse_qs(parts.query), headers, bucket, key)
