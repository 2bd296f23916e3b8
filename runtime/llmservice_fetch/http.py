"""HTTP requests for file contents, with urllib3: ranges, connection reuse, credentials only to their origin.

huggingface_hub resolves a file's location; the bytes are read here, because a GB costs 0.8 s of CPU with urllib3 and
1.8 s with the library's client, httpx2.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import importlib
import os
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import urllib3
from urllib3.exceptions import HTTPError

from llmservice_fetch.failed import HTTPStatusError, Unreachable, plain, words
from llmservice_fetch.proxies import proxy_of

TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 1 << 20
# The hub's header with the hash of a file that is stored elsewhere.
LINKED_TAG = "X-Linked-Etag"
Response = urllib3.BaseHTTPResponse
_REDIRECTS = 5
_REDIRECTING = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
# Headers that may be sent to another origin; any other may be a credential (Authorization, Cookie, AWS signatures).
_HARMLESS = frozenset({"accept", "accept-encoding", "user-agent", "range", "if-match"})
# Connections kept per host: the number of files and parts that are read concurrently.
_CONNECTIONS = 16


@contextmanager
def http_request(
    url: str, headers: Mapping[str, str], *, method: str = "GET", timeout: float | None = None
) -> Iterator[Response]:
    """The response to a request, with any status. Raises Unreachable, also while the body is read.

    Redirects of GET and HEAD are followed, except a HEAD whose redirect already describes the file. HTTPStatusError
    where the URL, or one of a redirect, is not http(s), or leads from https to http.
    """
    response: Response | None = None
    try:
        response = _follow(url, dict(headers), method, timeout or TIMEOUT_SECONDS)
        yield response
    except (HTTPError, OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{plain(url)}: {words(error)}") from None
    finally:
        if response is not None:
            # Closes the connection unless the body was read to its end.
            response.close()


def _follow(url: str, headers: dict[str, str], method: str, timeout: float) -> Response:
    for _ in range(_REDIRECTS):
        response = _once(url, headers, method, timeout)
        target = response.headers.get("Location")
        if response.status not in _REDIRECTING or not target or method not in ("GET", "HEAD"):
            return response
        if method == "HEAD" and LINKED_TAG in response.headers:
            return response
        response.close()
        url, headers = redirected(url, target, headers, response.status)
    raise OSError(f"more than {_REDIRECTS} redirects")


def redirected(url: str, target: str, headers: dict[str, str], status: int) -> tuple[str, dict[str, str]]:
    """The URL and headers of a redirected request; without credentials for another origin (scheme, host, port).

    HTTPStatusError where it leads away from HTTP, from https to http, or contains user info.
    """
    target = urllib.parse.urljoin(url, target)
    before, after = origin(url), origin(target)
    if before is None or after is None or (before[0], after[0]) == ("https", "http"):
        raise HTTPStatusError(status, url, text=f"with a redirect that is not followed, to {plain(target)}")
    if before != after:
        headers = {name: value for name, value in headers.items() if name.lower() in _HARMLESS}
    return target, headers


def origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None where it is not an HTTP URL or contains user info."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (KeyError, ValueError):
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and "@" not in parts.netloc else None


def _once(url: str, headers: Mapping[str, str], method: str, timeout: float) -> Response:
    if origin(url) is None:
        raise HTTPStatusError(0, url, text="is not allowed: only http:// and https:// are")
    return _pool(proxy_of(url), *trusted_files()).request(
        method,
        url,
        headers=dict(headers),
        timeout=urllib3.Timeout(connect=timeout, read=timeout),
        retries=False,
        redirect=False,
        preload_content=False,
        decode_content=False,
    )


@functools.lru_cache(maxsize=8)
def _pool(proxy: str | None, *trusted: str | None) -> urllib3.PoolManager:
    """The connection pool of a proxy. `trusted` is part of the cache key: other certificates need new connections."""
    context = trust()
    if proxy is None:
        return urllib3.PoolManager(maxsize=_CONNECTIONS, ssl_context=context)
    parts = urllib.parse.urlsplit(proxy)
    words = b":".join(urllib.parse.unquote_to_bytes(part or "") for part in (parts.username, parts.password))
    return urllib3.ProxyManager(
        urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", "")),
        proxy_headers={"proxy-authorization": f"Basic {base64.b64encode(words).decode()}"} if parts.username else None,
        maxsize=_CONNECTIONS,
        ssl_context=context,
        proxy_ssl_context=context if parts.scheme == "https" else None,
    )


def trusted_files() -> tuple[str | None, str | None]:
    """SSL_CERT_FILE and SSL_CERT_DIR."""
    return os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")


def trust() -> ssl.SSLContext:
    """The TLS context: the image's certificates, or those of SSL_CERT_FILE.

    Slim images have none; certifi's are used then.
    """
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not paths.cafile and not (paths.capath and any(Path(paths.capath).iterdir())):
        with contextlib.suppress(ModuleNotFoundError):
            context.load_verify_locations(importlib.import_module("certifi").where())
    return context


class HasHeaders(Protocol):
    """A response of any HTTP client."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers by case-insensitive name."""


def retry_after(response: HasHeaders) -> float:
    """The Retry-After header in seconds; 0 where it is missing or not a number."""
    text = response.headers.get("Retry-After") or ""
    return float(text) if text.isdigit() else 0.0


def range_header(start: int, end: int) -> str:
    """The Range header for bytes `start` to `end`, exclusive."""
    return f"bytes={start}-{end - 1}"


def begins_at(response: Response) -> int:
    """Offset of a response's first byte: 0 where the server ignored Range."""
    if response.status != 206:
        return 0
    unit, _, span = (response.headers.get("Content-Range") or "").partition(" ")
    first = span.partition("-")[0]
    if unit != "bytes" or not first.isdigit():
        raise OSError("a partial response without a valid Content-Range")
    return int(first)


def chunks(response: Response) -> Iterator[bytes]:
    while chunk := response.read1(CHUNK_BYTES, decode_content=False):
        yield chunk
