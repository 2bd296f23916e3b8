"""A service at zero for the tests of the activator: its objects, a pod with a real port, and a client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp
from aiohttp import web
from kubeloop.resources import Key
from llmservice_runtime.contract import HTTP_PORT

from tests.support.http_servers import serving
from tests.unit.scaler_world import World, service

Json = dict[str, Any]

CHAT = Key("ns", "chat")
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
ASKED = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def at_zero(
    name: str = "chat",
    *,
    port: int = 0,
    replicas: int = 0,
    version: int = 10,
    spec: Json | None = None,
    status: Json | None = None,
    scaling: Json | None = None,
    idle: int = 600,
    **metadata: Any,
) -> Json:
    """An LLMService that may be at zero; `port` is recorded where it is not 0."""
    autoscaling = {"minReplicas": 0, "maxReplicas": 8, "scaleDown": {"idleSeconds": idle}}
    made = service(name, version=version, replicas=replicas, autoscaling=autoscaling, **metadata)
    made["spec"] |= spec or {}
    made["spec"]["scaling"] |= scaling or {}
    made["status"] |= ({"holding": {"port": port}} if port else {}) | (status or {})
    return made


@dataclass
class Server:
    """A pod's server at an address of its own on loopback."""

    address: str
    bodies: list[Json] = field(default_factory=list)
    now: int = 0
    most: int = 0
    healthy: bool = True
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Answers wait for it."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response(status=200 if self.healthy else 503)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            self.bodies.append(await request.json())
            await self.released.wait()
            return web.json_response({"served": len(self.bodies)})
        finally:
            self.now -= 1


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[Server]:
    """One that listens."""
    number = os.getpid() * 8 + random.randrange(8)
    made = Server(f"127.{1 + number // 65536 % 250}.{number // 256 % 256}.{1 + number % 250}")
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    async with serving(app, made.address, HTTP_PORT, shutdown_timeout=0.1):
        yield made


@dataclass
class Answer:
    """What a client got."""

    status: int
    body: Json
    headers: dict[str, str]


async def ask(port: int, *, path: str = "/v1/chat/completions", key: str = "", **changes: Any) -> Answer:
    """A request over a connection of its own."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{path}", json=ASKED | changes, headers=headers) as response,
    ):
        return Answer(response.status, json.loads(await response.read()), dict(response.headers))


def follow_scale(world: World) -> None:
    """The watch brings what is written to /scale."""

    def written(scale: Json) -> None:
        obj = world.api.find("LLMService", scale["metadata"]["name"], scale["metadata"]["namespace"])
        assert obj is not None
        world.api.bring("MODIFIED", obj)

    world.api.then["patch LLMService"] = written
