"""A server of the completions API on loopback: streams as vLLM does, and can be told to misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Handler = Callable[[web.Request, dict[str, Any]], Any]
END = "[DONE]"


@dataclass
class FakeVllm:
    """Every answered request takes one `tick` a token. `log` has ("begin" | "end", index of the request)."""

    models: Sequence[str] = ("chat",)
    api_key: str | None = None
    tick: float = 0.001
    misbehaves: dict[int, Handler] = field(default_factory=dict)
    log: list[tuple[str, int]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    salts: set[str] = field(default_factory=set)
    url: str = ""

    async def list_models(self, request: web.Request) -> web.Response:
        if self.api_key is not None and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response({"object": "list", "data": [{"id": name} for name in self.models]})

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        index = int(body["cache_salt"].rsplit("-", 1)[1])
        is_warm_up = "-warmup-" in body["cache_salt"]
        self.bodies.append(body)
        if not is_warm_up and index in self.misbehaves:
            answer: web.StreamResponse = await self.misbehaves[index](request, body)
            return answer
        if not is_warm_up:
            self.log.append(("begin", index))
        answer = await stream(request, [*self._pieces(body["max_tokens"]), usage(body["max_tokens"]), END], self.tick)
        if not is_warm_up:
            self.log.append(("end", index))
        return answer

    @staticmethod
    def _pieces(count: int) -> list[dict[str, Any]]:
        return [piece("x", "length" if number == count - 1 else None) for number in range(count)]


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}}


async def stream(request: web.Request, events: Sequence[Any], tick: float = 0.0) -> web.StreamResponse:
    """Server-sent events; text is sent as it is, anything else as JSON."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await asyncio.sleep(tick)
        text = event if isinstance(event, str) else json.dumps(event)
        await response.write(f"data: {text}\n\n".encode())
    return response


def refuses(status: int, message: str) -> Handler:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.json_response({"error": {"message": message, "code": status}}, status=status)

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
    async with TestServer(app) as server:
        fake.url = str(server.make_url("")).rstrip("/")
        yield fake
