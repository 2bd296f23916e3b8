"""A stand-in for vLLM's server: its routes, log lines and ways to end, in a tenth of a second instead of a minute.

The app is wrapped in the real DrainMiddleware, on a small ASGI server of its own. What it does is said by the variable
FAKE_ENGINE, a JSON object with the fields of Behaviour.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmservice_runtime.engine import read_flags
from llmservice_runtime.middleware import DrainMiddleware


@dataclass(frozen=True)
class Behaviour:
    """What goes differently from a good server."""

    log: str = ""  # a file that is printed while loading
    exit_loading: int | None = None
    load_seconds: float = 0.1
    swallowed_terms: int = 0  # SIGTERMs that are ignored while loading
    deaf: bool = False  # ignores every SIGTERM
    first_request: str = "answer"  # or "error", "die", "hang"
    frozen: bool = False  # counters stand still and requests are never answered after the first
    prefilling: bool = False  # requests are never answered, but the cache fills
    chunk_seconds: float = 0.05
    orphan: str = ""  # a file for the pid of a grandchild
    middleware: bool = True
    refused_adapter: str = ""  # an adapter that vLLM cannot load
    api_key: str = ""
    stop_seconds: float = 0.0


class Engine:
    """State of the fake server."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.answered = 0
        self.running = 0
        self.asked = 0
        self.tokens = 0
        self.adapters: dict[str, str] = {}
        self.stopping = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["path"]
        if path == "/health":
            await _reply(send, 200, "")
        elif path == "/metrics":
            await _reply(send, 200, self.metrics())
        elif path == "/v1/completions":
            await self.complete(json.loads(body), send)
        elif path.startswith("/v1/") and not self.is_authorized(scope):
            await _reply(send, 401, '{"error":"Unauthorized"}')
        elif path == "/v1/models":
            await _reply(send, 200, json.dumps({"data": self.cards()}))
        elif path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            await _reply(send, *self.change_adapters(path, json.loads(body)))
        elif path == "/exit":
            os._exit(int(json.loads(body)))
        else:
            await _reply(send, 404, '{"detail":"Not Found"}')

    def metrics(self) -> str:
        self.asked += 1
        cache = self.asked / 1000 if self.behaviour.prefilling else 0
        return "".join(
            f'vllm:{name}{{engine="0",model_name="m"}} {value}\n'
            for name, value in (
                ("num_requests_running", self.running if self.behaviour.prefilling else 0),
                ("generation_tokens_total", self.tokens),
                ("kv_cache_usage_perc", cache),
            )
        )

    def is_authorized(self, scope: Any) -> bool:
        wanted = f"Bearer {self.behaviour.api_key}".encode()
        return not self.behaviour.api_key or dict(scope["headers"]).get(b"authorization") == wanted

    def cards(self) -> list[dict[str, Any]]:
        base = {"id": "m", "root": "/models/m", "parent": None}
        return [base, *({"id": name, "root": path, "parent": "m"} for name, path in self.adapters.items())]

    def change_adapters(self, path: str, request: dict[str, str]) -> tuple[int, str]:
        """As vLLM answers: 400 for a name that is there already, 404 for one that is not."""
        name = request["lora_name"]
        if path == "/v1/unload_lora_adapter":
            if self.adapters.pop(name, None) is None:
                return 404, _error(f"The lora adapter '{name}' cannot be found.")
        elif name in self.adapters:
            return 400, _error(f"The lora adapter '{name}' has already been loaded.")
        elif name == self.behaviour.refused_adapter:
            return 500, _error("Call to add_lora method failed: expected target modules in {'q_proj'}")
        else:
            self.adapters[name] = request["lora_path"]
        return 200, "Success"

    async def complete(self, request: dict[str, Any], send: Any) -> None:
        first = self.answered == 0
        self.answered += 1
        if first and self.behaviour.first_request == "error":
            await _reply(send, 500, '{"error":{"message":"the engine is unwell"}}')
            return
        if first and self.behaviour.first_request == "die":
            print("(EngineCore pid=7) ERROR 11-21 02:37:37 [core.py:1] torch._inductor.exc.InductorError: no g++")
            sys.stdout.flush()
            os._exit(0)
        if first and self.behaviour.first_request == "hang":
            await asyncio.Event().wait()
        if not first and (self.behaviour.frozen or self.behaviour.prefilling):
            self.running += 1
            await asyncio.Event().wait()
        if not request.get("stream"):
            self.tokens += 1
            await _reply(send, 200, '{"choices":[{"text":"b"}]}')
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for number in range(request["max_tokens"]):
            if self.stopping.is_set():
                await send({"type": "http.response.body", "body": b"data: abort\n\n", "more_body": False})
                return
            self.tokens += 1
            await send({"type": "http.response.body", "body": f"data: {number}\n\n".encode(), "more_body": True})
            await asyncio.sleep(self.behaviour.chunk_seconds)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


def _error(message: str) -> str:
    return json.dumps({"error": {"message": message}})


async def _reply(send: Any, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def handler(app: Any) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A connection of the small ASGI server: keep-alive until a response says close."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _exchange(app, reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return handle


async def _exchange(app: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    keep = headers.get("connection", "") != "close"

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal keep
        if message["type"] == "http.response.start":
            fields = dict(message["headers"])
            if b"content-length" not in fields:
                fields[b"connection"] = b"close"  # the body ends with the connection
            keep = keep and fields.get(b"connection") != b"close"
            lines = b"".join(name + b": " + value + b"\r\n" for name, value in fields.items())
            writer.write(f"HTTP/1.1 {message['status']} X\r\n".encode() + lines + b"\r\n")
        else:
            writer.write(message.get("body", b""))
        await writer.drain()

    peer = writer.get_extra_info("peername")
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "method": method, "headers": raw, "client": peer}
    await app(scope, receive, send)
    return keep


def load(behaviour: Behaviour) -> None:
    """The part before the port opens."""
    left = behaviour.swallowed_terms

    def swallow(number: int, frame: object) -> None:
        nonlocal left
        if left == 0 and not behaviour.deaf:
            sys.exit(0)
        left -= 1

    signal.signal(signal.SIGTERM, swallow)
    if behaviour.orphan:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        Path(behaviour.orphan).write_text(str(child.pid))
        child.returncode = 0
    if behaviour.log:
        sys.stdout.write(Path(behaviour.log).read_text())
        sys.stdout.flush()
    import time

    deadline = time.monotonic() + behaviour.load_seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)
    if behaviour.exit_loading is not None:
        sys.exit(behaviour.exit_loading)


async def serve(behaviour: Behaviour, port: int) -> None:
    """From the open port to SIGTERM."""
    engine = Engine(behaviour)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if behaviour.deaf else engine.stopping.set)
    app = DrainMiddleware(engine) if behaviour.middleware else engine
    await asyncio.start_server(handler(app), "127.0.0.1", port)
    await engine.stopping.wait()
    await asyncio.sleep(0.1 + behaviour.stop_seconds)


def main() -> None:
    """Load, serve, end as a vLLM would."""
    behaviour = Behaviour(**json.loads(os.environ.get("FAKE_ENGINE", "{}")))
    load(behaviour)
    asyncio.run(serve(behaviour, read_flags(sys.argv[1:]).port))


if __name__ == "__main__":
    main()
