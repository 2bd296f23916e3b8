"""What tests of held requests start from: a server on loopback, pods that are told how to answer, and clients."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import aiohttp
from aiohttp import web
from kubeloop.resources import Key
from llmservice_activator.holding.interface import Admits, HoldingTarget, Reason, Refusal, Renews
from llmservice_activator.holding.limits import Limits
from llmservice_activator.holding.server import HoldingServer
from yarl import URL

from tests.support.http_servers import accepted, application
from tests.support.patience import PATIENCE, until
from tests.support.ports import free_port


async def nowhere(key: Key) -> int:
    """No other activator holds anything."""
    return 0


async def everybody(target: HoldingTarget, address: str) -> Refusal | None:
    """Admits all addresses."""
    return None


KEY = Key("team", "llama")
CHAT = "/v1/chat/completions"
LIMITS = Limits(
    linger_seconds=0.05,
    comment_seconds=0.01,
    retry_health_seconds=0.01,
    wake_seconds=0.02,
    connect_seconds=2,
    draining_check_seconds=0.05,
)


def target(key: Key = KEY, **changes: Any) -> HoldingTarget:
    """A service of the model `llama` that holds up to 100 requests, without a pod, at a port of its own."""
    made = HoldingTarget(
        key=key,
        uid=f"uid-of-{key.name}",
        port=0,
        model_names=frozenset({"llama", "adapter"}),
        max_requests=100,
        max_bytes=1 << 20,
        timeout_seconds=60,
        at_once=100,
        pods=(),
        keys=None,
        refusal=None,
    )
    return replace(made, **{"port": free_port(), **changes})


def chat(name: str = "", **fields: Any) -> dict[str, Any]:
    """A request's JSON; `name` tells it from others."""
    return {"model": "llama", "messages": [{"role": "user", "content": name}], **fields}


@dataclass
class Counted:
    """Metrics of the tests."""

    of: Counter[str] = field(default_factory=Counter)

    def held(self, key: Key) -> None:
        self.of["held"] += 1

    def answered(self, key: Key, reason: Reason) -> None:
        self.of[f"answered {reason}"] += 1

    def forwarded(self, key: Key, held_seconds: float) -> None:
        self.of["forwarded after it was held" if held_seconds else "forwarded"] += 1

    def lost(self, key: Key, reason: Reason) -> None:
        self.of[f"lost {reason}"] += 1


@dataclass
class Seen:
    """A request that a pod got."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def name(self) -> str:
        return str(json.loads(self.body)["messages"][0]["content"])


Script = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Pod:
    """A server that answers as `script` says, requests one by one where `gate` is closed."""

    url: str = ""
    is_healthy: bool = True
    seen: list[Seen] = field(default_factory=list)
    checks: int = 0
    at_once: int = 0
    most_at_once: int = 0
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1_000_000))
    script: Script | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            self.checks += 1
            return web.Response(status=200 if self.is_healthy else 503)
        self.seen.append(Seen(request.raw_path, request.headers.copy(), await request.read()))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.acquire()
            return await self.script(request) if self.script else web.json_response({"answer": self.seen[-1].path})
        finally:
            self.at_once -= 1

    def close_gate(self) -> None:
        """Requests wait until `gate.release()`."""
        self.gate = asyncio.Semaphore(0)

    @property
    def names(self) -> list[str]:
        return [seen.name for seen in self.seen]


@asynccontextmanager
async def running_pod(script: Script | None = None) -> AsyncIterator[Pod]:
    pod = Pod(script=script)
    async with application(pod.answer, shutdown_timeout=0) as pod.url:
        yield pod


@dataclass
class Answered:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Of an error in OpenAI's shape."""
        assert set(self.json) == {"error"}
        assert set(self.json["error"]) == {"message", "type", "param", "code"}
        return dict(self.json["error"])


async def nothing_new(key: Key) -> frozenset[str]:
    """Has read no API keys."""
    return frozenset()


class World:
    """A HoldingServer and a client."""

    def __init__(self, limits: Limits, admits: Admits = everybody, renews: Renews = nothing_new) -> None:
        self.woken: list[Key] = []
        self.counted = Counted()
        self.held_by_others: Counter[Key] = Counter()
        """Held by other activators."""
        self.server = HoldingServer(
            wake=self.woken.append,
            count=self.counted,
            held_by_others=self._elsewhere,
            admits=admits,
            renews=renews,
            limits=limits,
            host="127.0.0.1",
        )
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Self:
        await self.server.start()
        connector = aiohttp.TCPConnector(limit=0)
        self._session = await self._stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
        async with asyncio.timeout(PATIENCE):
            await accepted()
            await self.server.stop()
        # A transport that is closed lets go of its socket in the loop's next turn.
        await asyncio.sleep(0)

    async def _elsewhere(self, key: Key) -> int:
        return self.held_by_others[key]

    async def serve(self, *targets: HoldingTarget) -> None:
        for each in targets:
            await self.server.update(each)

    async def pod(self, script: Script | None = None) -> Pod:
        return await self._stack.enter_async_context(running_pod(script))

    async def ask(self, of: HoldingTarget, path: str = CHAT, method: str = "POST", **how: Any) -> Answered:
        """The whole answer; `json`, `data` and `headers` as aiohttp has them."""
        if method == "POST" and not {"json", "data"} & set(how):
            how["json"] = chat()
        url = URL(f"http://127.0.0.1:{of.port}{path}", encoded=True)
        async with asyncio.timeout(PATIENCE), self._session.request(method, url, **how) as response:
            return Answered(response.status, response.headers.copy(), await response.read())

    def asking(self, of: HoldingTarget, name: str = "", **how: Any) -> asyncio.Task[Answered]:
        """A request in the background."""
        task = asyncio.create_task(self.ask(of, **({"json": chat(name)} | how)))
        self._tasks.append(task)
        return task

    async def holding(self, of: HoldingTarget, names: list[str]) -> list[asyncio.Task[Answered]]:
        """These requests, held in this order."""
        tasks = []
        for name in names:
            before = self.held(of)
            tasks.append(self.asking(of, name))
            await until(lambda before=before: self.held(of) == before + 1)  # type: ignore[misc]
        return tasks

    def held(self, of: HoldingTarget) -> int:
        return self.server.held(of.key).requests

    async def ready(self, of: HoldingTarget) -> None:
        """Until a pod of it passed its check."""
        await until(lambda: self.server._services[of.key].pods.any_answers)

    def believe(self, of: HoldingTarget, url: str) -> None:
        """The pod at this URL passed its check, and is gone since."""
        pods = self.server._services[of.key].pods
        pod = pods._pods[url]
        assert pod.check is not None
        pod.check.cancel()
        pod.answers = True
        pods._changed()

    async def raw(self, of: HoldingTarget, text: bytes) -> bytes:
        """All that is answered to these bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", of.port)
        try:
            writer.write(text)
            return await asyncio.wait_for(reader.read(), PATIENCE)
        finally:
            writer.close()


@asynccontextmanager
async def world(admits: Admits = everybody, /, **limits: Any) -> AsyncIterator[World]:
    async with World(replace(LIMITS, **limits), admits) as made:
        yield made


def head(text: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (lower case) and the rest of a raw answer."""
    first, _, rest = text.partition(b"\r\n\r\n")
    status, *lines = first.decode().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(status.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, rest
