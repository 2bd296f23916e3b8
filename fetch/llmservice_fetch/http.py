"""Bytes by HTTP, with urllib3: ranges, connections that are used again, and credentials that stay with their origin.

A GB costs 0.8 s of processor time here, and 1.8 s with httpx2, the client of huggingface_hub: that is asked where a
file's bytes are, and they are read here.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import importlib
import os
import ssl
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import urllib3
from urllib3.exceptions import HTTPError

from llmservice_fetch.errors import Refused, Unreachable, plain, words

TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 1 << 20
# The hub's word for the hash of a file that lies elsewhere.
LINKED_TAG = "X-Linked-Etag"
Answer = urllib3.BaseHTTPResponse
_REDIRECTS = 5
_REDIRECTING = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
# What another origin may be told. Everything else may be a credential: Authorization, Cookie, a signature of AWS.
_HARMLESS = frozenset({"accept", "accept-encoding", "user-agent", "range", "if-match"})
# Connections that are kept to one host: as many as files or parts of a file are read at once.
_CONNECTIONS = 16


@contextmanager
def ask(url: str, headers: Mapping[str, str], *, method: str = "GET", timeout: float | None = None) -> Iterator[Answer]:
    """The answer to a request, whatever its status. Raises Unreachable, also while the answer is read.

    Redirects of reading requests are followed, but for a HEAD whose redirect itself tells of the file. Refused where
    the address, or one on the way, is not http(s), or leads from https to http.
    """
    answer: Answer | None = None
    try:
        answer = _follow(url, dict(headers), method, timeout or TIMEOUT_SECONDS)
        yield answer
    except (HTTPError, OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{plain(url)}: {words(error)}") from None
    finally:
        if answer is not None:
            # A connection whose answer was read to its end is kept; this closes any other.
            answer.close()


def _follow(url: str, headers: dict[str, str], method: str, timeout: float) -> Answer:
    for _ in range(_REDIRECTS):
        answer = _once(url, headers, method, timeout)
        target = answer.headers.get("Location")
        if answer.status not in _REDIRECTING or not target or method not in ("GET", "HEAD"):
            return answer
        if method == "HEAD" and LINKED_TAG in answer.headers:
            return answer
        answer.close()
        url, headers = redirected(url, target, headers, answer.status)
    raise OSError(f"more than {_REDIRECTS} redirects")


def redirected(url: str, target: str, headers: dict[str, str], status: int) -> tuple[str, dict[str, str]]:
    """Where a redirect leads, and what is sent there: to another origin (scheme, host, port) no credentials.

    Refused where it leads away from HTTP, from https to http, or names a password.
    """
    target = urllib.parse.urljoin(url, target)
    before, after = origin(url), origin(target)
    if before is None or after is None or (before[0], after[0]) == ("https", "http"):
        raise Refused(status, url, text=f"with a redirect that is not followed, to {plain(target)}")
    if before != after:
        headers = {name: value for name, value in headers.items() if name.lower() in _HARMLESS}
    return target, headers


def origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None where it is no address of HTTP, or holds a user's name."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (KeyError, ValueError):
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and "@" not in parts.netloc else None


def _once(url: str, headers: Mapping[str, str], method: str, timeout: float) -> Answer:
    if origin(url) is None:
        raise Refused(0, url, text="is not asked: only http:// and https:// are")
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


def proxy_of(url: str) -> str | None:
    """The proxy that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY give an address; None: asked directly."""
    parts = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass(parts.netloc):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


@functools.lru_cache(maxsize=8)
def _pool(proxy: str | None, *trusted: str | None) -> urllib3.PoolManager:
    """Connections by one way. `trusted` is trust()'s input: with other certificates no connection is used again."""
    context = trust()
    if proxy is None:
        return urllib3.PoolManager(maxsize=_CONNECTIONS, ssl_context=context)
    parts = urllib.parse.urlsplit(proxy)
    words = f"{urllib.parse.unquote(parts.username or '')}:{urllib.parse.unquote(parts.password or '')}"
    return urllib3.ProxyManager(
        urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", "")),
        proxy_headers=urllib3.make_headers(proxy_basic_auth=words) if parts.username else None,
        maxsize=_CONNECTIONS,
        ssl_context=context,
        proxy_ssl_context=context if parts.scheme == "https" else None,
    )


def trusted_files() -> tuple[str | None, str | None]:
    """The environment's own certificates."""
    return os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")


def trust() -> ssl.SSLContext:
    """Whom to believe: the image's certificates, or what SSL_CERT_FILE names.

    Slim images have none; certifi's are taken then.
    """
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not paths.cafile and not (paths.capath and any(Path(paths.capath).iterdir())):
        with contextlib.suppress(ModuleNotFoundError):
            context.load_verify_locations(importlib.import_module("certifi").where())
    return context


class Told(Protocol):
    """An answer of any client."""

    @property
    def headers(self) -> Mapping[str, str]:
        """By name, whatever its case."""


def wait_of(answer: Told) -> float:
    """Seconds of a Retry-After header; 0 where there is none that is a number."""
    text = answer.headers.get("Retry-After") or ""
    return float(text) if text.isdigit() else 0.0


def range_header(start: int, end: int) -> str:
    """Bytes from `start` up to and without `end`."""
    return f"bytes={start}-{end - 1}"


def begins_at(answer: Answer) -> int:
    """The first byte of an answer's body: a server that ignores Range sends all of it with 200."""
    if answer.status != 206:
        return 0
    unit, _, span = (answer.headers.get("Content-Range") or "").partition(" ")
    first = span.partition("-")[0]
    if unit != "bytes" or not first.isdigit():
        raise OSError("an answer in parts that does not say which")
    return int(first)


def chunks(answer: Answer) -> Iterator[bytes]:
    """The body as it comes, at most CHUNK_BYTES at a time."""
    while chunk := answer.read1(CHUNK_BYTES, decode_content=False):
        yield chunk
