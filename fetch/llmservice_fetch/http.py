"""HTTP with the standard library: credentials stay with their origin, and every error is one of two kinds."""

from __future__ import annotations

import contextlib
import http.client
import importlib
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 1 << 20
# The hub's word for the hash of a file that lies elsewhere.
LINKED_TAG = "X-Linked-Etag"
_REDIRECTS = 5
_REDIRECTING = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
# What another origin may be told. Everything else may be a credential: Authorization, Cookie, a signature of AWS.
_HARMLESS = frozenset({"accept", "accept-encoding", "user-agent", "range", "if-match"})
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class Unreachable(Exception):
    """No answer, or half of one. Worth another try."""


class Refused(Exception):
    """An answer that is no success. `code` and `text` are the server's own words."""

    def __init__(self, status: int, url: str, *, code: str = "", text: str = "", wait: float = 0.0) -> None:
        super().__init__(f"{plain(url)} answered {status}" + (f": {text}" if text else ""))
        self.status, self.code, self.text, self.wait = status, code, text, wait

    @property
    def passes(self) -> bool:
        """Whether the same request may do better in a moment."""
        return self.status in _PASSING


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@contextmanager
def ask(
    url: str, headers: Mapping[str, str], *, method: str = "GET", timeout: float | None = None
) -> Iterator[http.client.HTTPResponse]:
    """The answer to a request, whatever its status. Raises Unreachable, also while the answer is read.

    Redirects are followed, but for the HEAD of a file, which is asked for what the redirect itself tells. Refused where
    the address, or one on the way, is not http(s), or leads from https to http.
    """
    try:
        with _follow(url, dict(headers), method, timeout or TIMEOUT_SECONDS) as answer:
            yield answer
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{plain(url)}: {_words(error)}") from None


def _follow(url: str, headers: dict[str, str], method: str, timeout: float) -> http.client.HTTPResponse:
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
    before, after = _origin(url), _origin(target)
    if before is None or after is None or (before[0], after[0]) == ("https", "http"):
        raise Refused(status, url, text=f"with a redirect that is not followed, to {plain(target)}")
    if before != after:
        headers = {name: value for name, value in headers.items() if name.lower() in _HARMLESS}
    return target, headers


def _origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None where it is no address of HTTP, or holds a user's name."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (KeyError, ValueError):
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and "@" not in parts.netloc else None


def _once(url: str, headers: Mapping[str, str], method: str, timeout: float) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    if request.type not in _PORTS:
        raise Refused(0, url, text="is not asked: only http:// and https:// are")
    try:
        answer: http.client.HTTPResponse = _opener(request.type).open(request, timeout=timeout)
    except urllib.error.HTTPError as refused:
        # An answer too: its body and headers say what is wrong.
        return refused  # type: ignore[return-value]
    return answer


def _opener(scheme: str) -> urllib.request.OpenerDirector:
    """HTTP and nothing else: urllib's own opener reads files, too."""
    opener = urllib.request.OpenerDirector()
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler(), urllib.request.HTTPHandler()]
    handlers += [urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler(), _NoRedirects()]
    if scheme == "https":
        handlers.append(urllib.request.HTTPSHandler(context=trust()))
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def trust() -> ssl.SSLContext:
    """Whom to believe: the image's certificates, or what SSL_CERT_FILE names.

    Slim images have none, and vLLM's own packages bring some along.
    """
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not paths.cafile and not (paths.capath and any(Path(paths.capath).iterdir())):
        with contextlib.suppress(ModuleNotFoundError):
            context.load_verify_locations(importlib.import_module("certifi").where())
    return context


def plain(url: str) -> str:
    """An address without its query, which may be a signature, and without a password."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def wait_of(answer: http.client.HTTPResponse) -> float:
    """Seconds of a Retry-After header; 0 where there is none that is a number."""
    text = answer.headers.get("Retry-After") or ""
    return float(text) if text.isdigit() else 0.0


def range_header(start: int, end: int) -> str:
    """Bytes from `start` up to and without `end`."""
    return f"bytes={start}-{end - 1}"


def begins_at(answer: http.client.HTTPResponse) -> int:
    """The first byte of an answer's body: a server that ignores Range sends all of it with 200."""
    if answer.status != 206:
        return 0
    unit, _, span = (answer.headers.get("Content-Range") or "").partition(" ")
    first = span.partition("-")[0]
    if unit != "bytes" or not first.isdigit():
        raise OSError("an answer in parts that does not say which")
    return int(first)


def chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body, piece by piece."""
    while chunk := answer.read(CHUNK_BYTES):
        yield chunk


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error or type(error).__name__)
