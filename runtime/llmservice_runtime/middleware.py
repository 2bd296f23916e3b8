"""Runs in vLLM's own process (--middleware): who may ask, and nothing but counting until the server drains.

Where keys are asked for, every path needs one but health and metrics: vLLM's own check covers four prefixes, reads one
key once, and is off.

Draining, as the supervisor sets it on the board: CLOSING has responses carry `Connection: close`, so that pooled
connections come back through the Service. REFUSING answers new connections 503 with Retry-After, since vLLM itself
would answer them 200 with an aborted, empty completion; a connection that was there before is served once more, for
nobody has told its client yet. STOPPING refuses every request, for vLLM is about to be told.

Endpoints that manage the server are closed to whoever does not show the pod's own token: who may send a prompt may not
choose files to be loaded, run code in the workers or put the model to sleep. The token stands for a key, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from llmservice_runtime.access import pod_token
from llmservice_runtime.access.api_keys import KeyFile
from llmservice_runtime.contract import (
    API_KEYS_FILE_ENV,
    DRAIN_FILE_ENV,
    EXEMPT_PATHS,
    KEYLESS_PATHS,
    POD_TOKEN_FILE,
    POD_TOKEN_HEADER,
)
from llmservice_runtime.drain.shared_counters import (
    ARRIVED,
    ATTACHED,
    AWAITING,
    CALLED,
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
_KINDS = {401: "invalid_api_key", 403: "forbidden", 503: "service_unavailable"}

Client = tuple[str, int]
Headers = list[tuple[bytes, bytes]]


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
        keys = os.environ.get(API_KEYS_FILE_ENV)
        self._keys = KeyFile(keys) if keys else None
        self._token = pod_token.read(path) if path else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        self._slots[CALLED] += 1
        if status := self._forbids(scope):
            await self._forbid(scope, receive, send, status)
        elif kind == "websocket":
            await self._session(scope, receive, send)
        elif routed(scope) in EXEMPT_PATHS:
            await self._app(scope, receive, send)
        elif self._refuses(_client(scope)):
            self._slots[REFUSED] += 1
            await _read_whole(receive)
            await _refuse(send, 503, "This replica is being replaced; please try again.")
        else:
            await self._counted(scope, receive, send)

    def _forbids(self, scope: Scope) -> int:
        """The status by which a request is turned away for who sent it; 0 where it is not."""
        path = routed(scope)
        is_closed = path.startswith(CLOSED_PATHS)
        if not is_closed and (self._keys is None or (path in KEYLESS_PATHS and scope["type"] == "http")):
            return 0
        headers: Headers = scope.get("headers") or []
        if pod_token.shows(headers, self._token):
            return 0
        if self._keys is not None and not self._keys.accepts(_header(headers, b"authorization")):
            # What a browser asks beforehand carries no key, and vLLM's CORS middleware answers it by itself.
            return 0 if _is_preflight(scope, headers) else 401
        return 403 if is_closed else 0

    async def _forbid(self, scope: Scope, receive: Receive, send: Send, status: int) -> None:
        text = "Incorrect API key provided." if status == 401 else _why_closed(routed(scope))
        more: Headers = [(b"www-authenticate", b"Bearer")] if status == 401 else []
        if scope["type"] == "websocket":
            await _refuse_session(scope, receive, send, status, text, more)
        else:
            # The connection stays: one that is closed with a body unread is reset, and the answer lost with it. The
            # server throws the rest of the body away.
            await _refuse(send, status, text, more, close=self._slots[LEVEL] != OPEN)

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


def routed(scope: Scope) -> str:
    """The path as vLLM's routes see it, behind its --root-path: starlette.routing.get_route_path."""
    path: str = scope["path"]
    root: str = scope.get("root_path") or ""
    return path[len(root) :] if path == root or path.startswith(f"{root}/") else path


def _header(headers: Headers, wanted: bytes) -> bytes | None:
    return next((value for name, value in headers if name.lower() == wanted), None)


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    """As Starlette's CORS middleware tells it."""
    is_asked = (
        _header(headers, b"origin") is not None and _header(headers, b"access-control-request-method") is not None
    )
    return is_asked and scope["type"] == "http" and scope["method"] == "OPTIONS"


def _why_closed(path: str) -> str:
    if path.startswith(ADAPTER_PATHS):
        return "Adapters are set in spec.adapters of the LLMService."
    return (
        f"This endpoint is closed to clients. Send the header {POD_TOKEN_HEADER} with the content of {POD_TOKEN_FILE} "
        "in the pod."
    )


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


async def _refuse_session(scope: Scope, receive: Receive, send: Send, status: int, text: str, more: Headers) -> None:
    """An answer to the request for a websocket; a server that cannot send one closes, which clients see as 403."""
    await receive()
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await _refuse(send, status, text, more, close=False, kind="websocket.http")
    else:
        await send({"type": "websocket.close", "code": 1008})


async def _refuse(
    send: Send, status: int, text: str, more: Headers | None = None, *, close: bool = True, kind: str = "http"
) -> None:
    """An error in the OpenAI shape; with `close` on a connection that ends with it."""
    body = f'{{"error":{{"message":"{text}","type":"{_KINDS[status]}","code":{status}}}}}'.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *(more or ())]
    if close:
        headers.append((b"connection", b"close"))
    if status == 503:
        headers.append((b"retry-after", RETRY_AFTER))
    await send({"type": f"{kind}.response.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body})
