"""What sends the requests of a load: when each is sent, when what happened to it, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
from array import array
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from llmservice_runtime.bounded_json import Refused, clean

from .answer import LONGEST, Answer, Failure, Lines, Loss, http_failure

IDENTITY: Mapping[str, str] = {"Accept-Encoding": "identity"}
"""For answers that are read with a bound: nothing is unpacked."""
LONGEST_WORDS = 300
"""Characters of what ended a connection."""
LONGEST_REFUSAL = 64 * 2**10
"""Bytes of an error's body; of a longer one the beginning is read."""
BYTES_AT_LEAST, BYTES_OF_A_TOKEN = 2**20, 4096
"""Bounds of an answer: vLLM's event of a token has 300 bytes, and a name of a model up to a few hundred more."""

Send = Callable[[int], Coroutine[Any, Any, None]]
"""Sends the request of this number, and returns when it has ended."""


@dataclass
class Pace:
    """When requests are sent, by the seconds of `clock`. `stop` ends the sending; what is under way is still
    awaited."""

    clock: Callable[[], float]
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        self._stopped.set()

    async def at(self, moments: Iterable[float], send: Send) -> None:
        """One request at each moment, also while earlier ones go on, until the last has ended."""
        async with asyncio.TaskGroup() as group:
            for number, moment in enumerate(moments):
                if await self._is_stopped_before(moment):
                    return
                group.create_task(send(number))

    async def in_turn(self, clients: int, numbers: Iterable[int], send: Send, pause: float = 0.0) -> None:
        """So many clients take the numbers, each the next one so many seconds after its request before has ended."""
        waiting = iter(numbers)

        async def one_after_another() -> None:
            for number in waiting:
                if self._stopped.is_set():
                    return
                await send(number)
                if pause:
                    await self._is_stopped_before(self.clock() + pause)

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(one_after_another())

    async def _is_stopped_before(self, moment: float) -> bool:
        # A wait of no seconds ends before it looks: who is late would never see the end.
        if not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), max(moment - self.clock(), 0))
        return self._stopped.is_set()


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

    @property
    def most_bytes(self) -> int:
        """Of its answer."""
        most = BYTES_AT_LEAST + BYTES_OF_A_TOKEN * int(self.body["max_tokens"])
        return most if self.is_streamed else min(most, LONGEST)

    def content(self) -> Mapping[str, Any]:
        """The body and its headers, as httpx takes them."""
        if not self.is_chunked:
            return {"json": self.body, "headers": IDENTITY}
        return {"content": self._chunks(), "headers": {**IDENTITY, "Content-Type": "application/json"}}

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
    answer: Answer = field(init=False)

    def __post_init__(self) -> None:
        self.sent = self.clock()
        self.answer = Answer(self.request.body["max_tokens"] if self.request.must_be_exact else None)

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
            data, most = self._counted(response), request.most_bytes
            if response.status_code != 200:
                return http_failure(response.status_code, await beginning(data, LONGEST_REFUSAL))
            if request.is_streamed:
                return await self._follow(data, Lines(most))
            body = await beginning(data, most + 1)
            is_whole = len(body) <= most
            return self.answer.check_whole(body) if is_whole else _too_long(f"the answer is longer than {most} bytes")

    async def _counted(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Raw: what the server has packed, which it was not asked to, stays so."""
        async for data in response.aiter_raw():
            self.got += len(data)
            yield data

    async def _follow(self, data: AsyncIterable[bytes], lines: Lines) -> Failure | None:
        async for some in data:
            try:
                for line in lines.take(some):
                    if self.answer.take(line):
                        self._note_piece()
            except Refused as why:
                return _too_long(f"the answer is given up: {why}")
        return self.answer.check()

    def _note_piece(self) -> None:
        self.last_token = self.clock()
        self.first_token = self.last_token if self.first_token is None else self.first_token
        if len(self.piece_times) < int(self.request.body["max_tokens"]):
            self.piece_times.append(self.last_token)

    async def _trace(self, event: str, _: Any) -> None:
        """httpx calls it at every step of a connection."""
        if event.endswith("connect_tcp.started"):
            self.reused = False
        elif event.endswith("send_request_headers.started") and self.reused is None:
            self.reused = True


async def beginning(data: AsyncIterable[bytes], most: int) -> bytes:
    """At most so many bytes of a body."""
    whole = bytearray()
    async for some in data:
        whole += some[: most - len(whole)]
        if len(whole) >= most:
            break
    return bytes(whole)


def _too_long(why: str) -> Failure:
    return Failure(Loss.TOO_LONG, why)


def _words(error: httpx.HTTPError) -> str:
    return clean(f"{type(error).__name__}: {error}"[:LONGEST_WORDS]).rstrip(": ")
