"""huggingface_hub as a fetch uses it: one client whose requests keep the token with its hub, and says nothing itself.

The library reads tokens from HOME, writes there, counts its users and logs whole addresses unless it is told not to.
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

from llmservice_fetch.errors import Refused, Unreachable, words
from llmservice_fetch.http import origin, redirected, trust, wait_of

_ERRORS = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError)
# Listings and small files; weights are not read by this client.
_ANSWER_LIMIT = 64 << 20
_WORDS_LIMIT = 300
USER_AGENT = "llmservice"
_hub: ContextVar[str] = ContextVar("hub")


def prepare() -> None:
    """Before the first request: no telemetry, no token but the given one, no file in HOME, no word in the log."""
    constants.HF_HUB_DISABLE_TELEMETRY = True
    constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = True
    constants.HF_HUB_DISABLE_PROGRESS_BARS = True
    # Read by nobody then, and if it were: empty.
    constants.HF_TOKEN_PATH = constants.HF_STORED_TOKENS_PATH = f"{tempfile.gettempdir()}/llmservice-no-token"
    for name in ("huggingface_hub", "httpx2", "httpcore2"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [logging.NullHandler()]
        logger.propagate = False
        # HF_DEBUG would have requests written as curl's command lines.
        logger.setLevel(logging.CRITICAL)
    set_client_factory(_client)


@contextmanager
def asking(endpoint: str) -> Iterator[None]:
    """Requests of the block may take the token to this hub, and to nobody else.

    Unreachable where there is no whole answer; the library's own exceptions where the answer is an error.
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


def refused(error: HfHubHTTPError) -> Refused:
    """A hub's refusal in its own words, on one line."""
    answer = error.response
    text = answer.headers.get("X-Error-Message") or error.server_message or ""
    return Refused(
        answer.status_code,
        str(answer.request.url),
        code=answer.headers.get("X-Error-Code") or "",
        text=" ".join(text.split())[:_WORDS_LIMIT].rstrip("."),
        wait=wait_of(answer),
    )


def _client() -> httpx2.Client:
    return httpx2.Client(
        verify=trust(),
        headers={"Accept-Encoding": "identity"},
        follow_redirects=True,
        max_redirects=5,
        event_hooks={"request": [_keep_token], "response": [_check_answer]},
    )


def _keep_token(request: httpx2.Request) -> None:
    """The library sends the token to the public hub's other names as well, and httpx2 other headers to everybody."""
    if origin(str(request.url)) != origin(_hub.get()):
        for name in ("Authorization", "Proxy-Authorization", "Cookie"):
            request.headers.pop(name, None)


def _check_answer(answer: httpx2.Response) -> None:
    """Where it leads, and how long it is: some answers never end, and compressed ones are longer than they look."""
    if answer.has_redirect_location:
        redirected(str(answer.request.url), answer.headers["Location"], {}, answer.status_code)
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise OSError("a compressed answer, which was not asked for")
    assert isinstance(answer.stream, httpx2.SyncByteStream)
    answer.stream = _Bounded(answer.stream)


class _Bounded(httpx2.SyncByteStream):
    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        left = _ANSWER_LIMIT
        for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise OSError(f"an answer of more than {_ANSWER_LIMIT} bytes")
            yield chunk

    def close(self) -> None:
        self._stream.close()
