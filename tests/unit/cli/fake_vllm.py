"""A server of the completions API on loopback: streams as vLLM does, and can be told to misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support import http_servers

Handler = Callable[[web.Request, dict[str, Any]], Any]
END = "[DONE]"


@dataclass
class FakeVllm:
    """Every answered request takes one `tick` a token. `log` has ("begin" | "end", index of the request).

    The index is that of the bench's salt, or else counts requests; those in `misbehaves` are answered by that instead.
    """

    models: Sequence[str] = ("chat",)
    api_key: str | None = None
    tick: float = 0.001
    misbehaves: dict[int, Handler] = field(default_factory=dict)
    log: list[tuple[str, int]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    connections: list[object] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    url: str = ""

    async def list_models(self, request: web.Request) -> web.Response:
        if self._refuses(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response({"object": "list", "data": [{"id": name} for name in self.models]})

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if self._refuses(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        body = await request.json()
        salt = body.get("cache_salt", "")
        index = int(salt.rsplit("-", 1)[1]) if salt else len(self.bodies)
        is_warm_up = "-warmup-" in salt
        self.bodies.append(body)
        self.connections.append(request.transport)
        self.paths.append(request.path)
        if not is_warm_up and index in self.misbehaves:
            answer: web.StreamResponse = await self.misbehaves[index](request, body)
            return answer
        if not is_warm_up:
            self.log.append(("begin", index))
        answer = await whole(request, body, self.tick)
        if not is_warm_up:
            self.log.append(("end", index))
        return answer

    def _refuses(self, request: web.Request) -> bool:
        return self.api_key is not None and request.headers.get("Authorization") != f"Bearer {self.api_key}"


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def usage(tokens: int) -> dict[str, Any]:
    counts = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": tokens + 7}
    return {"choices": [], "usage": counts}


async def whole(request: web.Request, body: dict[str, Any], tick: float = 0.0) -> web.StreamResponse:
    """As many tokens as were asked for, streamed or in one piece."""
    count = body["max_tokens"]
    if not body.get("stream"):
        return web.json_response({**usage(count), **piece("x" * count, "length")})
    pieces = [piece("x", "length" if number == count - 1 else None) for number in range(count)]
    return await stream(request, [*pieces, usage(count), END], tick)


async def stream(request: web.Request, events: Sequence[Any], tick: float = 0.0) -> web.StreamResponse:
    """Server-sent events; text is sent as it is, anything else as JSON."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await asyncio.sleep(tick)
        text = event if isinstance(event, str) else json.dumps(event)
        await response.write(f"data: {text}\n\n".encode())
    return response


def refuses(status: int, message: str, headers: Mapping[str, str] | None = None) -> Handler:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.json_response({"error": {"message": message, "code": status}}, status=status, headers=headers)

    return answer


def streams(*events: Any) -> Handler:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, events)

    return answer


async def hangs_up(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """In the middle of an answer, as a killed server does."""
    response = await stream(request, [piece("x")])
    assert request.transport is not None
    request.transport.abort()
    return response


async def never_answers(_: web.Request, __: dict[str, Any]) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets the event")


@asynccontextmanager
async def serving(fake: FakeVllm) -> AsyncIterator[FakeVllm]:
    app = web.Application()
    app.router.add_get("/v1/models", fake.list_models)
    app.router.add_get("/version", fake.version)
    app.router.add_post("/v1/completions", fake.complete)
    app.router.add_post("/v1/chat/completions", fake.complete)
    async with http_servers.serving(app) as runner:
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield fake
