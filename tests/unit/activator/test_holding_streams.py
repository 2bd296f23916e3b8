"""`stream: true`: comments while the request waits, then the pod's stream; errors become events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from llmservice_activator.holding.interface import HoldingTarget, Refusal

from tests.support.patience import PATIENCE, until
from tests.unit.holding_world import World, chat, target, world

STREAM = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'
COMMENT = b": waiting for a replica\n\n"


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", "X-From": "pod"})
    await response.prepare(request)
    await response.write(STREAM)
    return response


async def waiting(w: World, service: HoldingTarget, path: str = "/v1/chat/completions") -> asyncio.StreamReader:
    """A stream whose client has read its head and two comments."""
    body = json.dumps(chat(stream=True)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    text = f"POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\nContent-Length: "
    writer.write(f"{text}{len(body)}\r\n\r\n".encode() + body)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    assert b" 200 OK" in head.partition(b"\r\n")[0]
    assert b"content-type: text/event-stream" in head.lower()
    assert await reader.readexactly(2 * len(COMMENT)) == 2 * COMMENT
    reader.writer = writer  # type: ignore[attr-defined]  # as long as the reader lives
    return reader


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What follows the comments."""
    got = await asyncio.wait_for(reader.read(), PATIENCE)
    reader.writer.close()  # type: ignore[attr-defined]
    return got.replace(COMMENT, b"")


async def test_comments_then_the_real_stream() -> None:
    async with world() as w:
        service, pod = target(), await w.pod(stream)
        await w.serve(service)
        reader = await waiting(w, service)
        await w.serve(replace(service, pods=(pod.url,)))
        assert await rest(reader) == STREAM
        assert "Accept-Encoding" not in pod.seen[0].headers
        assert w.counted.of == {"held": 1, "forwarded after it was held": 1}


async def test_released_before_the_first_comment_it_is_the_pods_answer_alone() -> None:
    async with world(comment_seconds=60) as w:
        service, pod = target(), await w.pod(stream)
        await w.serve(service)
        asked = w.asking(service, json=chat(stream=True))
        await until(lambda: w.held(service) == 1)
        await w.serve(replace(service, pods=(pod.url,)))
        answer = await asked
        assert answer.body == STREAM
        assert answer.headers["X-From"] == "pod"


PLAIN: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {}),
    ("/v1/chat/completions", {"stream": 1}),
    ("/tokenize", {"stream": True}),
]


@pytest.mark.parametrize(("path", "fields"), PLAIN)
async def test_no_comments_where_no_stream_is_expected(path: str, fields: dict[str, Any]) -> None:
    async with world() as w:
        service = target(timeout_seconds=1)
        await w.serve(service)
        assert (await w.ask(service, path, json=chat(**fields))).status == 503


async def bad_request(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "too\nlong", "code": 400}}, status=400)


async def plain(_: web.Request) -> web.StreamResponse:
    return web.json_response({"choices": [1]})


async def text(_: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="oops")


async def odd(_: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="oops", content_type="text/event-stream")


async def large(_: web.Request) -> web.StreamResponse:
    return web.Response(status=500, body=b'{"a":"' + b"x" * (1 << 20) + b'"}', content_type="application/json")


async def gone(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


Event = Callable[[Any], bool]
FAILED: Event = lambda event: event["error"]["code"] == 502  # noqa: E731
SCRIPTS: dict[str, tuple[Callable[[web.Request], Awaitable[web.StreamResponse]], Event]] = {
    "an error of the pod": (bad_request, lambda event: event["error"]["message"] == "too\nlong"),
    "an answer without streaming": (plain, lambda event: event == {"choices": [1]}),
    "an answer that is no JSON": (text, FAILED),
    "an error that calls itself a stream": (odd, FAILED),
    "an answer that is too large": (large, FAILED),
    "a pod that dies": (gone, FAILED),
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_after_the_head_anything_else_is_one_event(name: str) -> None:
    script, is_right = SCRIPTS[name]
    async with world() as w:
        service, pod = target(), await w.pod(script)
        await w.serve(service)
        reader = await waiting(w, service)
        await w.serve(replace(service, pods=(pod.url,)))
        got = await rest(reader)
        assert got.startswith(b"data: ")
        assert got.endswith(b"\n\n")
        assert got.count(b"\n") == 2
        assert is_right(json.loads(got.removeprefix(b"data: ")))


async def test_a_refusal_and_a_timeout_are_events_too() -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        reader = await waiting(w, service)
        await w.serve(replace(service, refusal=Refusal(503, "Paused", "later")))
        event = json.loads((await rest(reader)).removeprefix(b"data: "))
        assert event["error"] == {"message": "later", "type": "Paused", "param": None, "code": 503}
        await w.serve(replace(service, timeout_seconds=1))
        event = json.loads((await rest(await waiting(w, service))).removeprefix(b"data: "))
        assert event["error"]["type"] == "service_unavailable"


async def test_a_stream_that_breaks_off_has_no_end() -> None:
    """The client cannot take a part for the whole, whether its stream began here or at the pod."""

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(STREAM[:10])
        await sent.wait()
        assert request.transport is not None
        request.transport.close()
        return response

    sent = asyncio.Event()
    async with world() as w:
        service, pod = target(), await w.pod(half)
        await w.serve(service)
        reader = await waiting(w, service)
        await w.serve(replace(service, pods=(pod.url,)))
        await asyncio.wait_for(reader.readuntil(STREAM[:10]), PATIENCE)
        sent.set()
        with pytest.raises(ConnectionResetError):  # HTTP/1.0 has no other sign
            await rest(reader)
        assert w.counted.of["lost pod_failed"] == 1
