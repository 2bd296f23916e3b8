"""Runs in vLLM's own process (--middleware): nothing but counting until the server drains.

Draining, as the supervisor sets it on the board: CLOSING has responses carry `Connection: close`, so that pooled
connections come back through the Service. REFUSING answers new connections 503 with Retry-After, since vLLM itself
would answer them 200 with an aborted, empty completion; a connection that was there before is served once more, for
nobody has told its client yet. STOPPING refuses every request, for vLLM is about to be told.

Endpoints that manage the server are closed to everyone outside of the pod: whoever may send a prompt may not choose
files to be loaded, run code in the workers or put the model to sleep.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from llmservice_runtime.board import (
    ARRIVED,
    ATTACHED,
    AWAITING,
    IN_FLIGHT,
    LEVEL,
    OPEN,
    REFUSED,
    REFUSING,
    SENT,
    SLOTS,
    STOPPING,
    UNTOLD,
    Board,
    peers_file,
)
from llmservice_runtime.contract import DRAIN_FILE_ENV, EXEMPT_PATHS

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ADAPTER_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters")
# What vLLM adds with VLLM_SERVER_DEV_MODE=1 (tests/unit/test_runtime_closed_paths.py reads its sources), and what it
# has for administrators without.
DEV_PATHS = (
    *("/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory"),
    *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/collective_rpc", "/server_info"),
    *("/pause", "/resume", "/is_paused", "/abort_requests", "/init_weight_transfer_engine"),
    *("/shutdown_weight_transfer_engine", "/start_weight_update", "/start_draft_weight_update", "/update_weights"),
    *("/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker", "/get_world_size"),
)
ADMIN_PATHS = ("/start_profile", "/stop_profile", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/fault_tolerance")
CLOSED_PATHS = (*ADAPTER_PATHS, *DEV_PATHS, *ADMIN_PATHS)
RETRY_AFTER = b"1"
# Not all of 127.0.0.0/8: a service mesh hands its clients' requests over from 127.0.0.6.
_LOOPBACK = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
_FORWARDED = (b"forwarded", b"x-forwarded-", b"x-real-ip", b"x-envoy-", b"via")


Client = tuple[str, int]


class DrainMiddleware:
    """Pure ASGI: no task, no queue and no copy of a body is added to a request."""

    def __init__(self, app: App) -> None:
        self._app = app
        path = os.environ.get(DRAIN_FILE_ENV)
        # Without a supervisor there is no board, and nobody to drain for: slots of our own, which stay 0.
        self._board = Board(path) if path else None
        self._slots = self._board.slots if self._board else memoryview(bytearray(SLOTS * 8)).cast("Q")
        self._peers = peers_file(path) if path else None
        self._known: set[Client] | None = None
        self._untold: set[Client] = set()
        self._slots[ATTACHED] = 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._session(scope, receive, send)
        elif scope["type"] != "http" or scope["path"] in EXEMPT_PATHS:
            await self._app(scope, receive, send)
        elif _path(scope).startswith(CLOSED_PATHS) and not _is_from_the_pod(scope):
            await _refuse(send, 403, _why_closed(_path(scope)))
        elif self._refuses(_client(scope)):
            self._slots[REFUSED] += 1
            await _read_whole(receive)
            await _refuse(send, 503, "This replica is being replaced; please try again.")
        else:
            await self._counted(scope, receive, send)

    def _refuses(self, client: Client | None) -> bool:
        level = self._slots[LEVEL]
        if level < REFUSING:
            return False
        if self._known is None:
            self._known = _read_peers(self._peers)
        if level == STOPPING or client not in self._known:
            return True
        # Its answer will say that the connection ends; whoever comes from there next is somebody else.
        self._known.discard(client)
        return False

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, client = _Request(self._slots, receive, send), _client(scope)
        self._slots[IN_FLIGHT] += 1
        if self._slots[LEVEL] != OPEN:
            self._slots[ARRIVED] += 1
        self._tell(client, told=True)
        try:
            await self._app(scope, request.receive, request.send)
        finally:
            request.answered()
            if self._slots[LEVEL] != OPEN:
                self._tell(client, told=request.told or _says_close(scope))
            self._slots[IN_FLIGHT] -= 1

    def _tell(self, client: Client | None, *, told: bool) -> None:
        """Whether a client knows that its connection ends. One that comes again will be told now."""
        if client is None or (told and not self._untold):
            return
        (self._untold.discard if told else self._untold.add)(client)
        self._slots[UNTOLD] = len(self._untold)

    async def _session(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A websocket is in flight for as long as it is open; it is nobody's hang."""
        if self._slots[LEVEL] >= REFUSING:
            self._slots[REFUSED] += 1
            await receive()
            await send({"type": "websocket.close", "code": 1013})
            return
        self._slots[IN_FLIGHT] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._slots[IN_FLIGHT] -= 1


class _Request:
    """Counts as awaiting from the end of its body to the first byte of its answer.

    That is the time in which a hung engine shows. A client that uploads or reads slowly is nobody's hang.
    """

    def __init__(self, slots: memoryview, receive: Receive, send: Send) -> None:
        self._slots, self._receive, self._send = slots, receive, send
        self._awaiting = self._answered = False
        self.told = False
        """Whether the answer says that the connection ends."""

    async def receive(self) -> Message:
        message = await self._receive()
        whole = message["type"] == "http.request" and not message.get("more_body", False)
        if whole and not self._awaiting and not self._answered:
            self._awaiting = True
            self._slots[AWAITING] += 1
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._slots[LEVEL] != OPEN:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
                self.told = True
        else:
            self._slots[SENT] += 1
            if not self._answered:
                self.answered()
        await self._send(message)

    def answered(self) -> None:
        """Stop awaiting; harmless when repeated."""
        self._answered = True
        if self._awaiting:
            self._awaiting = False
            self._slots[AWAITING] -= 1


def _path(scope: Scope) -> str:
    """As vLLM's routes see it, behind its --root-path."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path") or "")


def _is_from_the_pod(scope: Scope) -> bool:
    """Straight from the supervisor, or from kubectl port-forward.

    uvicorn takes the client's address from X-Forwarded-For where FORWARDED_ALLOW_IPS tells it to, and a proxy in the
    pod is on loopback itself: what was forwarded is from outside, whoever it says that it is from.
    """
    client = scope.get("client")
    is_forwarded = any(name.lower().startswith(_FORWARDED) for name, _ in scope.get("headers") or ())
    return client is not None and client[0] in _LOOPBACK and not is_forwarded


def _why_closed(path: str) -> str:
    if path.startswith(ADAPTER_PATHS):
        return "Adapters are set in spec.adapters of the LLMService."
    return "This endpoint is open inside of the pod only: use kubectl port-forward."


def _client(scope: Scope) -> Client | None:
    """Address and port, as the kernel's table of connections is read by the supervisor."""
    client = scope.get("client")
    return None if client is None else (client[0].removeprefix("::ffff:"), client[1])


def _says_close(scope: Scope) -> bool:
    """Whether the client itself ends the connection with this request."""
    return scope.get("http_version") == "1.0" or any(
        name.lower() == b"connection" and b"close" in value.lower() for name, value in scope.get("headers") or ()
    )


def _read_peers(path: Path | None) -> set[Client]:
    """None of them where the supervisor could not tell: all are newcomers then."""
    try:
        return {(host, port) for host, port in json.loads(path.read_text(encoding="utf-8"))} if path else set()
    except (OSError, ValueError):
        return set()


async def _read_whole(receive: Receive) -> None:
    """The rest of a request: a connection that is closed with bytes unread is reset, and the answer lost with it."""
    while (await receive()).get("more_body", False):
        pass


async def _refuse(send: Send, status: int, text: str) -> None:
    """An error in the OpenAI shape, on a connection that ends with it."""
    kind = "service_unavailable" if status == 503 else "forbidden"
    body = f'{{"error":{{"message":"{text}","type":"{kind}","code":{status}}}}}'.encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if status == 503:
        headers.append((b"retry-after", RETRY_AFTER))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
