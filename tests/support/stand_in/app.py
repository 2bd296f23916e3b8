"""The server's routes, as an ASGI application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.stand_in import exposition, protocol
from tests.support.stand_in.adapters import Adapters
from tests.support.stand_in.command_line import Arguments
from tests.support.stand_in.engine import Aborted, Engine, EngineDead, RequestEnded
from tests.support.stand_in.protocol import Answer, Ask, Refused

Json = dict[str, Any]
Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

VERSION = "0.32.0"
_GENERATING = ("/v1/completions", "/v1/chat/completions")
_METHODS = {
    **dict.fromkeys(("/health", "/metrics", "/version", "/load", "/v1/models"), ("GET",)),
    **dict.fromkeys((*_GENERATING, "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/tokenize"), ("POST",)),
    **dict.fromkeys((f"{path}/render" for path in _GENERATING), ("POST",)),
    "/ping": ("GET", "POST"),
}
_BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class Server:
    """vLLM's API server, as far as the product and its clients use it."""

    def __init__(self, engine: Engine, arguments: Arguments, adapters: Adapters) -> None:
        self._engine, self._arguments, self._adapters = engine, arguments, adapters
        self.broken = asyncio.Event()
        """A request was answered with the engine's death: vLLM's server then ends at once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        methods = _METHODS.get(path)
        if path.startswith("/v1/") and not self._is_authorized(scope):
            await _reply_json(send, 401, {"error": "Unauthorized"})
        elif methods is None:
            await _reply_json(send, 404, {"detail": "Not Found"})
        elif scope["method"] not in methods:
            allow = (b"allow", ", ".join(methods).encode())
            await _reply_json(send, 405, {"detail": "Method Not Allowed"}, allow)
        elif path in _GENERATING:
            await self._generate(scope, receive, send)
        else:
            await self._look(path, receive, send)

    def _is_authorized(self, scope: Scope) -> bool:
        key = self._arguments.api_key
        return not key or dict(scope["headers"]).get(b"authorization") == f"Bearer {key}".encode()

    async def _look(self, path: str, receive: Receive, send: Send) -> None:
        """What takes no engine."""
        if path in ("/health", "/ping"):
            await _reply(send, 503 if self._engine.dead.is_set() else 200, b"")
        elif path == "/metrics":
            text = exposition.page(self._engine, self._names()[0]).encode()
            await _reply(send, 200, text, (b"content-type", exposition.CONTENT_TYPE))
        elif path.endswith("/render"):  # without --enable-scale-out
            await _reply_json(send, 403, {"error": {"type": "PermissionDeniedError", "code": 403}})
        elif path == "/tokenize":
            try:
                tokens = protocol.tokens(await _body(receive), self._engine.limits.max_model_len)
            except Refused as refused:
                await _reply_json(send, refused.status, refused.body)
            else:
                await _reply_json(send, 200, tokens)
        elif path == "/version":
            await _reply_json(send, 200, {"version": VERSION})
        elif path == "/load":
            await _reply_json(send, 200, {"server_load": 0})
        elif path == "/v1/models":
            given = self._arguments
            listed = self._adapters.loaded
            await _reply_json(
                send, 200, protocol.cards(given.served_model_names, given.model, given.limits.max_model_len, listed)
            )
        else:
            status, answer = self._adapters.change(path, await _body(receive))
            await _reply(send, status, answer)

    def _names(self) -> tuple[str, ...]:
        return (*self._arguments.served_model_names, *self._adapters.loaded)

    # Generating

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        try:
            ask = self._admitted(scope, body)
        except Refused as refused:
            await _reply_json(send, refused.status, refused.body)
            return
        work = asyncio.ensure_future(self._stream(ask, send) if ask.is_stream else self._whole(ask, send))
        gone = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            # Of a client that hung up, the engine is relieved at once.
            gone.cancel()
            work.cancel()
            await asyncio.wait((work,))

    def _admitted(self, scope: Scope, body: bytes) -> Ask:
        kind = dict(scope["headers"]).get(b"content-type", b"").decode("latin-1")
        limits = self._engine.limits
        is_chat = scope["path"].endswith("/chat/completions")
        ask = protocol.parse(body, kind, is_chat=is_chat, names=self._names(), max_model_len=limits.max_model_len)
        most, unfinished = limits.max_num_queued_reqs, len(self._engine.running) + self._engine.waiting
        if most is not None and unfinished + 1 > most:
            self._engine.counts.rejected += 1
            raise Refused(503, _BUSY, "Service Unavailable")
        return ask

    async def _whole(self, ask: Ask, send: Send) -> None:
        answer, pieces, finish = Answer(ask), [], ask.finish
        try:
            async for text in self._engine.generate(ask.prompt, ask.prompt_tokens, ask.tokens):
                pieces.append(text)
        except Aborted:
            finish = "abort"
        except RequestEnded as ended:
            await _reply_json(send, 500, self._failure(ended))
            if isinstance(ended, EngineDead):
                self.broken.set()
            return
        await _reply_json(send, 200, answer.whole("".join(pieces), len(pieces), finish))

    async def _stream(self, ask: Ask, send: Send) -> None:
        answer, generated = Answer(ask), 0
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"vary", b"Origin")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if (first := answer.first()) is not None:
            await _event(send, first)
        try:
            async for text in self._engine.generate(ask.prompt, ask.prompt_tokens, ask.tokens):
                generated += 1
                await _event(send, answer.piece(text, generated, ask.finish if generated == ask.tokens else None))
        except Aborted:
            await _event(send, answer.piece("", generated, "abort"))
        except RequestEnded as ended:
            await _send(send, f"data: {json.dumps(self._failure(ended))}\n\n")
        else:
            if ask.with_usage:
                await _event(send, answer.usage(generated))
        await _send(send, "data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    @staticmethod
    def _failure(ended: RequestEnded) -> Json:
        message = _DEAD if isinstance(ended, EngineDead) else str(ended)
        return Refused(500, message, "InternalServerError").body


async def _body(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


async def _event(send: Send, document: Json) -> None:
    await _send(send, f"data: {_compact(document)}\n\n")


async def _send(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _reply_json(send: Send, status: int, document: Json, *headers: tuple[bytes, bytes]) -> None:
    await _reply(send, status, _compact(document).encode(), *headers, (b"content-type", b"application/json"))


async def _reply(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    fields = [(b"content-length", b"%d" % len(body)), *headers, (b"vary", b"Origin")]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


def _compact(document: Json) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
