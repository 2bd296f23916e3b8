"""Heads of requests are bounded: one, those of a namespace, and those of the process, from their first byte on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kubeloop.resources import Key
from llmservice_activator.holding.interface import HoldingTarget
from llmservice_activator.holding.limits import Limits
from llmservice_activator.holding.server import FairShares, HeadLimit

from tests.support.patience import PATIENCE, until
from tests.unit.holding_world import CHAT, Answered, World, head, target, world

BODY = b'{"model": "llama"}'
REQUEST = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n".encode()
FIELD = b"X: " + b"x" * 4000 + b"\r\n"
LONG = REQUEST + FIELD * 9
TOO_LONG: dict[str, list[bytes]] = {
    "whole": [LONG + b"\r\n" + BODY],
    "in pieces": [LONG[:9000], LONG[9000:20_000], LONG[20_000:]],
    "without an end": [LONG],
    "after empty lines": [b"\r\n\r\n", LONG],
    "sent on and on": [LONG] * 50,
    "one long field": [REQUEST + b"X: " + b"x" * 33_000 + b"\r\n\r\n" + BODY],
    "a long address": [REQUEST.replace(b" HTTP", b"?" + b"x" * 33_000 + b" HTTP") + b"\r\n" + BODY],
    "many fields": [REQUEST + b"X: x\r\n" * 127 + b"\r\n" + BODY],
    "many fields, in pieces": [REQUEST + b"X: x\r\n" * 100, b"X: x\r\n" * 27 + b"\r\n" + BODY],
}
AS_LONG_AS_MAY_BE: dict[str, bytes] = {
    "one long field": REQUEST + b"X: " + b"x" * 32_000 + b"\r\n",
    "a long address": REQUEST.replace(b" HTTP", b"?" + b"x" * 32_000 + b" HTTP"),
    "many fields": REQUEST + b"X: x\r\n" * 126,
}


@pytest.mark.parametrize("case", AS_LONG_AS_MAY_BE)
async def test_a_head_of_few_long_or_many_short_lines_is_held(case: str) -> None:
    """A token with many groups is one field of ten thousand bytes."""
    async with world() as w:
        service = target()
        await w.serve(service)
        asked = asyncio.create_task(w.raw(service, AS_LONG_AS_MAY_BE[case] + b"\r\n" + BODY))
        await until(lambda: asked.done() or w.held(service) == 1)
        assert not asked.done(), asked.result()
        asked.cancel()
        await until(lambda: not heads(w).used)


@pytest.mark.parametrize("case", TOO_LONG)
async def test_a_head_that_is_too_large(case: str) -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        for piece in TOO_LONG[case]:
            writer.write(piece)
            await writer.drain()
        status, headers, body = head(await asyncio.wait_for(reader.read(), PATIENCE))
        assert (status, headers["connection"], int(headers["content-length"])) == (431, "close", len(body))
        error = Answered(status, headers, body).error
        assert (error["code"], error["type"]) == (431, "request_too_large")
        assert "32768 bytes" in error["message"]
        writer.close()
        await until(lambda: not heads(w).used)
        assert (w.woken, w.server.in_progress()) == ([], 0)


async def test_a_head_below_the_bound_is_held_whatever_its_body() -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        whole = BODY + b"\r\n\r\n" + b" " * 100_000
        text = REQUEST.replace(str(len(BODY)).encode(), str(len(whole)).encode()) + FIELD * 7 + b"\r\n"
        asked = asyncio.create_task(w.raw(service, text + whole))
        await until(lambda: w.held(service) == 1)
        assert heads(w).used == heads(w).of_namespace("team") == len(text)
        asked.cancel()
        await until(lambda: not heads(w).used)


async def test_heads_of_one_namespace_leave_place_to_others() -> None:
    """Neither those without an end nor those of held requests escape the bound."""
    async with world(head_bytes=20_000) as w:
        service, other = target(), target(Key("others", "s"))
        await w.serve(service, other)
        begun = [await asyncio.open_connection("127.0.0.1", service.port) for _ in range(2)]
        begun[0][1].write(REQUEST + FIELD)
        begun[1][1].write(REQUEST + FIELD + b"\r\n" + BODY)
        await until(lambda: heads(w).used > 8000)
        status, headers, _ = head(await w.raw(service, REQUEST + FIELD))
        assert (status, headers["retry-after"]) == (503, "10")
        assert head(await w.raw(other, b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + FIELD + b"\r\n"))[0] == 200
        for _, writer in begun:
            writer.close()
        await until(lambda: not heads(w).used)
        assert (await w.ask(service, "/health", "GET")).status == 200


async def test_requests_behind_one_that_is_held_are_not_kept() -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        whole = REQUEST + b"\r\n" + BODY
        writer.write(whole * 30)
        await until(lambda: w.held(service) == 1)
        assert w.server._connections is not None
        (connection,) = w.server._connections.connections
        assert not connection._messages
        writer.close()
        await until(lambda: w.held(service) == 0)


async def test_requests_behind_one_whose_body_is_not_read_yet_are_not_kept() -> None:
    """While the client's address is looked up, say."""
    asked, admitted = asyncio.Event(), asyncio.Event()

    async def admits(target: HoldingTarget, address: str) -> None:
        asked.set()
        await admitted.wait()

    async with world(admits) as w:
        service = target()
        await w.serve(service)
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(REQUEST + b"\r\n" + BODY)
        await asked.wait()
        assert w.server._connections is not None
        (connection,) = w.server._connections.connections
        for count in (1, 2, 3):
            connection.data_received(REQUEST + b"\r\n" + BODY)
            assert len(connection._messages) == 1, count
        admitted.set()
        await until(lambda: w.held(service) == 1)
        writer.close()
        await until(lambda: w.held(service) == 0)


@pytest.mark.parametrize("requests", [1, 20, 3000])
async def test_a_client_that_sent_many_at_once_and_went_is_not_held(requests: int) -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write((REQUEST + b"\r\n" + BODY) * requests)
        await until(lambda: w.held(service) == 1)
        writer.close()
        await until(lambda: w.held(service) == 0)


def test_heads_that_are_refused_take_no_place() -> None:
    """Or one namespace would fill the place of all."""
    shares = FairShares(200)
    ours, others = HeadLimit(shares, "ours", "a", 60), [HeadLimit(shares, "others", "b", 60) for _ in range(50)]
    assert others[0].add(b"x" * 60) is None
    for each in others[1:]:
        assert each.add(b"x" * 60) is not None
    assert HeadLimit(shares, "ours", "a", 30).add(b"x" * 31) is not None, "too large by itself"
    assert ours.add(b"x" * 40) is None
    for each in (ours, *others):
        each.close()
    assert shares.used == 0


CHUNKED = REQUEST.replace(f"Content-Length: {len(BODY)}".encode(), b"Transfer-Encoding: chunked")
ENDLESS_FIELDS = [b"X: " + b"x" * 31_000 + b"\r\n"] * 120
BEYOND: dict[str, list[bytes]] = {
    "trailers": [CHUNKED + b"\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY), *ENDLESS_FIELDS],
    "trailers of a body of many bytes": [
        CHUNKED + b"\r\n%x\r\n%s\r\n0\r\n" % (200_000, BODY + b" " * (200_000 - len(BODY))),
        *ENDLESS_FIELDS,
    ],
    "the extension of a chunk": [CHUNKED + b"\r\n1", *[b";x=" + b"x" * 31_000] * 120],
    "the head of a second request": [REQUEST + b"\r\n" + BODY + b"GET / HTTP/1.1\r\n", *ENDLESS_FIELDS],
}


@pytest.mark.parametrize("case", BEYOND)
async def test_what_follows_a_head_and_is_no_body_is_bounded(case: str) -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        sent = 0
        with suppress(ConnectionError):
            for piece in BEYOND[case]:
                writer.write(piece)
                await writer.drain()
                sent += 1
                await asyncio.sleep(0.002)
        assert sent < 20, "the connection was closed meanwhile"
        writer.close()
        await until(lambda: not heads(w).used and not w.server.in_progress())


@pytest.mark.parametrize("size", [1, 7, 500, 100_000])
async def test_a_chunked_body_with_a_few_trailers_is_held(size: int) -> None:
    whole = BODY + b" " * 300_000
    pieces = (whole[place : place + size] for place in range(0, len(whole), size))
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    async with world() as w:
        service = target()
        await w.serve(service)
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(CHUNKED + b"\r\n" + chunks + b"0\r\nX-Checksum: 1\r\n\r\n")
        await until(lambda: w.held(service) == 1)
        writer.close()
        await until(lambda: w.held(service) == 0)


def heads(w: World) -> FairShares:
    assert w.server._connections is not None
    return w.server._connections._heads


@given(
    st.integers(0, 3),
    st.text("ab \r\n", max_size=40).map(str.encode),
    st.binary(max_size=20),
    st.lists(st.integers(0, 70), max_size=4),
)
@example(0, b"", b"body", [2, 3, 4])
def test_what_counts_is_the_head_however_it_is_cut(empty: int, inner: bytes, body: bytes, cuts: list[int]) -> None:
    text = b"G" + inner.replace(b"\n", b"")
    whole = b"\r\n" * empty + text + b"\r\n\r\n" + body
    shares = FairShares(Limits().head_bytes)
    made = HeadLimit(shares, "ns", "a", Limits().largest_head)
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    for begin, end in pairwise(places):
        assert made.add(whole[begin:end]) is None
    assert shares.used == shares.of_namespace("ns") == len(text) + 4
    made.close()
    made.close()
    assert (shares.used, shares.of_namespace("ns")) == (0, 0)
