"""One request and its answer: when what happened, and how it ended."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from llmservice_runtime.bounded_json import clean

from .answer import Events, Failure, Loss, check_body, http_failure

LONGEST_WORDS = 300
"""Characters of what ended a connection."""


@dataclass(frozen=True, slots=True)
class Request:
    """A completion to ask for; `body["max_tokens"]` is its length, which vLLM's `ignore_eos` makes exact."""

    path: str
    body: Mapping[str, Any]
    must_be_exact: bool = True
    """An answer of another length, or without usage, is a failure."""
    is_chunked: bool = False
    """Sent without a Content-Length.

    A Go reverse proxy, such as the API server, cuts an answer off when it begins before the proxy has seen the end of
    a request with a length (1 to 10 % of those on a busy machine); it sends the end of a chunked one only after that.
    """

    @classmethod
    def of(
        cls, model: str, prompt: str, tokens: int, *, is_chat: bool = False, is_streamed: bool = True, **more: Any
    ) -> Request:
        """An answer of exactly `tokens` tokens; `more` goes to the body too."""
        asked = {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
        streamed = {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}
        body = {"model": model, **asked, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **streamed, **more}
        return cls("/v1/chat/completions" if is_chat else "/v1/completions", body)

    @property
    def is_streamed(self) -> bool:
        return "stream" in self.body

    def content(self) -> Mapping[str, Any]:
        """The body, as httpx takes it."""
        if not self.is_chunked:
            return {"json": self.body}
        return {"content": self._chunks(), "headers": {"Content-Type": "application/json"}}

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield json.dumps(self.body).encode()


@dataclass
class Exchange:
    """One request, filled in while it goes on; times are the clock's seconds, None for what has not happened."""

    request: Request
    clock: Callable[[], float]
    sent: float = field(init=False)
    first_token: float | None = None
    last_token: float | None = None
    piece_times: array[float] = field(default_factory=lambda: array("d"))
    """When each piece of a streamed answer came, of as many as tokens were asked for: one that comes in more is
    followed no further."""
    ended: float | None = None
    """None of one that was cancelled too."""
    failure: Failure | None = None
    """None once `ended` is set: the answer is whole."""
    response: httpx.Response | None = None
    reused: bool | None = None
    """Whether its connection had served before; None: there was none."""
    got: int = 0
    """Bytes of the answer's body."""
    events: Events = field(init=False)
    """Of a streamed answer."""

    def __post_init__(self) -> None:
        self.sent = self.clock()
        self.events = Events(self.request.body["max_tokens"] if self.request.must_be_exact else None)

    async def run(self, http: httpx.AsyncClient, timeout: float) -> None:
        """From the sending to the end; only cancelling raises."""
        try:
            async with asyncio.timeout(timeout):
                self.failure = await self._ask(http)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self.failure = Failure(Loss.NOT_CONNECTED, _words(error))
        except TimeoutError:
            self.failure = Failure(Loss.TIMEOUT, f"no whole answer within {timeout:g} s")
        except httpx.HTTPError as error:
            self.failure = Failure(Loss.DISCONNECTED if self.response is None else Loss.CUT, _words(error))
        self.ended = self.clock()

    async def _ask(self, http: httpx.AsyncClient) -> Failure | None:
        request, watched = self.request, {"trace": self._trace}
        async with http.stream("POST", request.path, extensions=watched, **request.content()) as response:
            self.response = response
            if response.status_code == 200 and request.is_streamed:
                return await self._read_events(response)
            whole = bytearray()
            async for piece in response.aiter_bytes():
                whole += piece
                self.got = len(whole)
            if response.status_code != 200:
                return http_failure(response.status_code, bytes(whole))
            return check_body(bytes(whole), request.body["max_tokens"])

    async def _read_events(self, response: httpx.Response) -> Failure | None:
        pieces, most = 0, int(self.request.body["max_tokens"])
        async for line in response.aiter_lines():
            self.events.take(line)
            self.got = response.num_bytes_downloaded
            if self.events.pieces > pieces:
                pieces, self.last_token = self.events.pieces, self.clock()
                self.first_token = self.last_token if self.first_token is None else self.first_token
                if len(self.piece_times) < most:
                    self.piece_times.append(self.last_token)
        return self.events.check()

    async def _trace(self, event: str, _: Any) -> None:
        """httpx calls it at every step of a connection."""
        if event.endswith("connect_tcp.started"):
            self.reused = False
        elif event.endswith("send_request_headers.started") and self.reused is None:
            self.reused = True


def _words(error: httpx.HTTPError) -> str:
    return clean(f"{type(error).__name__}: {error}"[:LONGEST_WORDS]).rstrip(": ")
