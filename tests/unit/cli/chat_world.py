"""What tests of `llmservice chat` start from: a server of chat completions, and a pod whose port is forwarded to it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from tests.support.http_servers import application
from tests.unit.api_server import ApiServer
from tests.unit.cli.test_status import pod, service
from tests.unit.cli_world import PODS, SERVICES


def event(text: str = "", **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": None, **more}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


USAGE = f"data: {json.dumps({'choices': [], 'usage': {'prompt_tokens': 5, 'completion_tokens': 3}})}\n\n"
DONE = "data: [DONE]\n\n"
WHOLE = (event("Good "), event("day"), event(".", finish_reason="stop"), USAGE, DONE)


@dataclass
class Model:
    """A server of chat completions that answers with these events."""

    events: tuple[str, ...] = WHOLE
    status: int = 200
    url: str = ""
    asked: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    models: tuple[str, ...] = ("served", "adapter")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.keys.append(request.headers.get("Authorization", ""))
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": name} for name in self.models]})
        if request.method != "POST":
            return web.json_response({"version": "0.32.0"})
        self.asked.append(await request.json())
        if self.status != 200:
            error = {"error": {"message": f"no, {request.headers.get('Authorization', '')}\x1b[2J"}}
            return web.json_response(error, status=self.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for each in self.events:
            await response.write(each.encode())
        return response


def forwarding(url: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Carries connections to this server, as a kubelet does."""

    async def forward(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        port = int(request.query["ports"]).to_bytes(2, "little")
        await socket.send_bytes(b"\0" + port)
        await socket.send_bytes(b"\1" + port)
        host, _, number = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(number))

        async def down() -> None:
            while data := await reader.read(97):  # frames end anywhere
                await socket.send_bytes(b"\0" + data)
            await socket.close()

        answers = asyncio.create_task(down())
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                writer.write(message.data[1:])
        answers.cancel()
        writer.close()
        return socket

    return forward


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    made = Model()
    async with application(made.answer, 1) as url:
        made.url = url
        yield made


@pytest.fixture
def api(api_server: ApiServer, model: Model, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """`chat` with one ready pod."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    api_server.objects = {f"{SERVICES}/chat": service(), f"{PODS}/chat-1": pod("chat-1")}
    api_server.answers[f"{PODS}/chat-1/portforward"] = forwarding(model.url)
    return api_server
