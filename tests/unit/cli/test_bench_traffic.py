"""One streamed completion against a real server: what is measured of it, and what each way to fail is called."""

import asyncio
import time
from typing import Any

import httpx
import pytest
from llmservice_cli.bench.traffic import Batching, Discipline, Gathered, Planned, Player, Point, RequestRecord

from tests.unit.cli.fake_vllm import (
    END,
    FakeVllm,
    Handler,
    hangs_up,
    never_answers,
    piece,
    refuses,
    serving,
    streams,
    usage,
)

PLANNED = Planned(index=3, arrival=1.0, prompt="of the", output_tokens=4)
BATCHING = Batching(1, 0.0)


async def send(
    fake: FakeVllm, *, timeout: float = 10.0, clock: Any = time.monotonic, is_chunked: bool = True
) -> RequestRecord:
    gathered = Gathered(Point(Discipline.CONTINUOUS, concurrency=1), 1)
    async with httpx.AsyncClient(base_url=fake.url, timeout=None, trust_env=False) as http:
        player = Player(http, "chat", timeout, clock, "salt", BATCHING, is_chunked)
        await player.play([PLANNED], gathered)
    (row,) = gathered.rows
    return row


async def test_an_answer_is_timed_from_its_arrival_and_counted_by_the_server() -> None:
    moments = iter([100.0, 101.0, 110.0, 111.0, 112.0, 114.0, 118.0, 120.0])
    async with serving(FakeVllm()) as fake:
        row = await send(fake, clock=lambda: next(moments))
    assert (row.index, row.batch, row.outcome, row.finish_reason) == (3, None, "answered", "length")
    assert row.arrival == 1.0
    assert (row.sent, row.first_token, row.last_token, row.ended) == (10.0, 11.0, 18.0, 20.0)
    assert list(row.pieces) == [11.0, 12.0, 14.0, 18.0]
    assert (row.ttft, row.latency) == (10.0, 19.0)
    assert (row.output_tokens, row.prompt_tokens, row.asked_tokens) == (4, 7, 4)


async def test_what_is_sent_to_the_server() -> None:
    lengths: list[str] = []

    async def answer(request: Any, body: Any) -> Any:
        lengths.append(f"{request.headers.get('Transfer-Encoding')} {request.headers.get('Content-Length')}")
        return await streams(piece("x", "length"), END)(request, body)

    async with serving(FakeVllm(misbehaves={3: answer})) as fake:
        await send(fake)
        await send(fake, is_chunked=False)
    # With a length, the API server's proxy cuts answers off that begin before it has seen the request's end.
    assert lengths == ["chunked None", "None 159"]
    body, other = fake.bodies
    assert body == other
    asked = {"model": "chat", "prompt": "of the", "max_tokens": 4, "ignore_eos": True, "cache_salt": "salt-3"}
    assert body == asked | {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}


DEAD = {"error": {"message": "engine died", "code": 500}}
FAILURES: list[tuple[Handler, str, str]] = [
    (refuses(503, "the queue is full"), "503", "the queue is full"),
    (refuses(401, "Unauthorized"), "401", "Unauthorized"),
    (streams(piece("x"), DEAD, END), "stream-error", "engine died"),
    (streams(piece("x", "abort"), END), "aborted", "stopped"),
    (streams(piece("x", "length")), "cut", "[DONE]"),
    (streams(END), "not-a-stream", "no token"),
    (streams("<html>"), "not-a-stream", "not JSON"),
    (hangs_up, "connection", ""),
]


@pytest.mark.parametrize(("handler", "outcome", "words"), FAILURES)
async def test_each_way_to_fail_has_a_name(handler: Handler, outcome: str, words: str) -> None:
    async with serving(FakeVllm(misbehaves={3: handler})) as fake:
        row = await send(fake)
    assert (row.outcome, row.is_answered) == (outcome, False)
    assert words in (row.error or "")


async def test_no_answer_in_time_is_a_timeout() -> None:
    async with serving(FakeVllm(misbehaves={3: never_answers})) as fake:
        row = await send(fake, timeout=0.05)
    assert (row.outcome, row.error) == ("timeout", "no whole answer within 0.05 s")


async def test_no_server() -> None:
    assert (await send(FakeVllm(url="http://127.0.0.1:1"))).outcome == "connection"


async def test_tokens_are_counted_by_the_server_else_by_pieces() -> None:
    """Several tokens may come in one piece: with speculative decoding they do."""
    async with serving(FakeVllm(misbehaves={3: streams(piece("a"), piece("b", "length"), END)})) as fake:
        row = await send(fake)
    assert (row.output_tokens, row.prompt_tokens) == (2, None)
    async with serving(FakeVllm(misbehaves={3: streams(piece("a", "length"), usage(4), END)})) as fake:
        assert (await send(fake)).output_tokens == 4


async def test_pieces_beyond_what_was_asked_for_are_not_followed() -> None:
    moments = iter(range(1000))
    async with serving(FakeVllm(misbehaves={3: streams(*[piece("x")] * 500, piece("x", "length"), END)})) as fake:
        row = await send(fake, clock=lambda: float(next(moments)))
    assert (list(row.pieces), row.last_token) == ([3.0, 4.0, 5.0, 6.0], 503.0)


async def test_a_servers_words_cannot_control_a_terminal() -> None:
    async with serving(FakeVllm(misbehaves={3: streams("\x1b[2Jgone")})) as fake:
        row = await send(fake)
    assert row.outcome == "not-a-stream"
    assert "\x1b" not in (row.error or "")


async def test_an_interrupted_request_leaves_a_row() -> None:
    reached = asyncio.Event()

    async def answer(request: Any, body: Any) -> Any:
        reached.set()
        return await never_answers(request, body)

    gathered = Gathered(Point(Discipline.CONTINUOUS, concurrency=1), 1)
    async with (
        serving(FakeVllm(misbehaves={3: answer})) as fake,
        httpx.AsyncClient(base_url=fake.url, timeout=None, trust_env=False) as http,
    ):
        player = Player(http, "chat", 10.0, time.monotonic, "salt", BATCHING)
        task = asyncio.create_task(player.play([PLANNED], gathered))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [row.outcome for row in gathered.rows] == ["interrupted"]
