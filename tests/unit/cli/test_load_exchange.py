"""One request to a server that sends anything: bounded, and an outcome in any case."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random

import httpx
import pytest
from aiohttp import web
from hypothesis import given
from llmservice_cli.load import client
from llmservice_cli.load.answer import Loss
from llmservice_cli.load.client import Exchange, Pace, Request

from tests.support.http_servers import application, streams
from tests.unit.cli.fake_vllm import END, piece, usage
from tests.unit.hostile import LEAVES, seeds

ASKED = 3
WHOLE = json.dumps({**usage(ASKED), **piece("abc", "length")}).encode()
STREAM = [json.dumps(each) for each in (piece("a"), piece("b"), piece("c", "length"), usage(ASKED))]
EVENTS = "".join(f"data: {each}\n\n" for each in (*STREAM, END)).encode()


def request(*, is_streamed: bool) -> Request:
    return Request.of("chat", "Hello", ASKED, is_streamed=is_streamed)


async def sent(url: str, asked: Request, timeout: float = 30.0) -> Exchange:
    exchange = Exchange(asked, time.monotonic)
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as http:
        await exchange.run(http, timeout)
    return exchange


def endless(data: bytes, status: int = 200) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(asked: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(asked)
        while True:
            await response.write(data * (2**16 // len(data)))

    return answer


ENDLESS: dict[str, tuple[bool, int, bytes, str]] = {
    "a whole answer": (False, 200, b" ", Loss.TOO_LONG),
    "a whole answer that begins well": (False, 200, WHOLE, Loss.TOO_LONG),
    "a line of a stream": (True, 200, b"x", Loss.TOO_LONG),
    "events": (True, 200, f"data: {STREAM[0]}\n\n".encode(), Loss.TOO_LONG),
    "comments": (True, 200, b":\n\n", Loss.TOO_LONG),
    "a refusal": (False, 500, b"no ", "http-500"),
    "a refusal of a stream": (True, 429, b"no ", "http-429"),
}


@pytest.mark.parametrize(("is_streamed", "status", "data", "loss"), ENDLESS.values(), ids=ENDLESS)
async def test_an_answer_without_an_end_is_given_up(is_streamed: bool, status: int, data: bytes, loss: str) -> None:
    asked = request(is_streamed=is_streamed)
    async with application(endless(data, status), 0.1) as url:
        exchange = await sent(url, asked)
    assert exchange.failure is not None
    assert exchange.failure.loss == loss
    assert len(exchange.failure.error) < 1000
    assert exchange.got < asked.most_bytes + 2**20
    assert len(exchange.piece_times) <= ASKED


async def test_what_is_packed_though_nobody_asked_is_not_unpacked() -> None:
    """A few kilobytes would be gigabytes."""

    async def bomb(asked: web.Request) -> web.StreamResponse:
        assert asked.headers["Accept-Encoding"] == "identity"
        return web.Response(body=gzip.compress(b" " * 2**26), headers={"Content-Encoding": "gzip"})

    async with application(bomb, 0.1) as url:
        exchange = await sent(url, request(is_streamed=False))
    assert exchange.failure is not None
    assert exchange.failure.loss == Loss.NOT_UNDERSTOOD
    assert exchange.got < 2**20


async def test_the_longest_answers_that_are_asked_for_fit() -> None:
    """With a name of a model of 500 characters in each event."""
    tokens = 2000
    event = json.dumps({**piece("token " * 4), "model": "m" * 500, "id": "cmpl-" + "0" * 32})
    last = [json.dumps(piece("x", "length")), json.dumps(usage(tokens)), END]
    body = "".join(f"data: {each}\n\n" for each in (*[event] * (tokens - 1), *last))

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=body)

    async with application(answer, 0.1) as url:
        exchange = await sent(url, Request.of("chat", "Hello", tokens))
    assert (exchange.failure, exchange.got, len(exchange.piece_times)) == (None, len(body), tokens)


# Any bytes at all

HEADERS: Sequence[bytes] = (
    *(b"Content-Length: %d" % number for number in (0, 1, len(WHOLE), len(EVENTS), 10**30)),
    *(b"Content-Length: -1", b"Content-Length: x", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip"),
    *(b"Content-Encoding: gzip", b"Content-Encoding: br", b"Content-Type: text/event-stream", b"Connection: close"),
    *(
        b"Location: http://127.0.0.1:1/",
        b"Retry-After: 1e400",
        b"no header",
        b"X: \xff\xfe\x1b[2J",
        b"X: " + b"y" * 9999,
    ),
    b"Set-Cookie: \xc3\x28",
)
PLAIN = (
    b"Content-Type: text/event-stream",
    b"Transfer-Encoding: chunked",
    b"Content-Encoding: gzip",
    b"Connection: close",
)
STATUSES = (
    b"200 OK",
    b"200 OK",
    b"200 OK",
    b"204 No",
    b"100 Continue",
    b"301 Moved",
    b"500 \xff\x1b[2J",
    b"999 x",
    b"0",
    b"",
)


def hostile(random: Random) -> bytes:
    """Something near an answer."""
    body = random.choice((WHOLE, EVENTS, EVENTS, gzip.compress(WHOLE), random.choice(LEAVES).encode()))
    for _ in range(random.randrange(3)):
        at, other = random.randrange(len(body) + 1), random.choice(LEAVES)[:200].encode()
        body = random.choice((body[:at], body[:at] + other + body[at:], body[:at] + b"\r\n\r\n" + body[at:]))
    is_plain = random.random() < 0.6  # most of what is wrong in a head ends the answer there
    headers = [random.choice(PLAIN if is_plain else HEADERS) for _ in range(random.randrange(3))]
    if b"Transfer-Encoding: chunked" in headers and random.random() < 0.8:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body) + random.choice((0, 0, 1, 10**9)), body)
    begin = random.choice((b"HTTP/1.1 ", b"HTTP/1.0 ", b"HTTP/9 ", b"")) + random.choice(STATUSES)
    start = b"HTTP/1.1 200 OK" if is_plain else begin
    whole = b"\r\n".join([start, *headers, b"", b""]) + body
    return whole[: random.randrange(len(whole) + 1)] if random.random() < 0.2 else whole


@asynccontextmanager
async def raw(data: bytes, end: bytes) -> AsyncIterator[str]:
    """A server that reads a request, sends these bytes and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):  # the client has hung up
            await reader.readuntil(end)
            writer.write(data)
            await writer.drain()

    async with streams(serve) as port:
        yield f"http://127.0.0.1:{port}"


@given(seeds)
def test_whatever_a_server_sends_is_an_outcome(seed: int) -> None:
    random = Random(seed)
    data, is_streamed = hostile(random), random.random() < 0.5
    asked = request(is_streamed=is_streamed)

    async def ask() -> Exchange:
        async with raw(data, json.dumps(asked.body, separators=(",", ":")).encode()[-20:]) as url:
            return await sent(url, asked)

    exchange = asyncio.run(ask())
    assert exchange.ended is not None
    assert exchange.got <= len(data)
    if exchange.failure is None:
        assert b"length" in data
        assert b"completion_tokens" in data
        return
    known = exchange.failure.loss in [*Loss] or exchange.failure.loss.startswith("http-")
    assert known, exchange.failure
    assert exchange.failure.loss != Loss.TIMEOUT, "the server has hung up"
    assert len(exchange.failure.error) <= max(client.LONGEST_WORDS, 500) + 100
    assert exchange.failure.error.isprintable() or "\n" in exchange.failure.error or "\t" in exchange.failure.error


async def test_who_is_late_sends_no_more_once_stopped() -> None:
    """Where requests are asked for faster than they can be sent, each moment is over when it is its turn."""
    pace, sent = Pace(time.monotonic), list[int]()

    async def send(number: int) -> None:
        sent.append(number)
        if len(sent) == 3:
            pace.stop()

    await pace.at((0.0 for _ in range(100)), send)
    assert 3 <= len(sent) < 6
