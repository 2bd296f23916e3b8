"""Configures huggingface_hub: a client that sends the token to its hub only, without telemetry and logging.

By default the library reads and writes tokens in HOME, sends telemetry and logs whole URLs.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import httpx2
from huggingface_hub import constants, set_client_factory
from huggingface_hub.errors import HfHubHTTPError

from llmservice_fetch.errors import HTTPStatusError, Unreachable, words
from llmservice_fetch.http import origin, redirected, retry_after, trust
from llmservice_fetch.proxies import proxy_of

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
