"""ASGI middleware in vLLM's process (--middleware): access control, request counters, refusals during a drain.

API keys: if required, every path except health and metrics needs one. vLLM's own check, which covers four prefixes and
reads one key once, is off.

Drain levels, set by the supervisor in the shared counters. CLOSING: responses carry `Connection: close`, so that
clients reconnect through the Service. REFUSING: new connections get 503 with Retry-After, because vLLM would return 200
with an aborted, empty completion; established connections whose client has not seen `Connection: close` are served once
more. STOPPING: every request gets 503.

Management endpoints need the pod token: clients that send prompts must not load files, run code in the workers or put
the model to sleep. The token also replaces an API key.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from llmservice_vllm.paths import ADAPTER_PATHS, ADMIN_PATHS, DEV_PATHS

from llmservice_runtime import access
from llmservice_runtime.access import KeyFile
from llmservice_runtime.contract import (
    API_KEYS_FILE_ENV,
    DRAIN_FILE_ENV,
    DRAINING_HEADER,
    EXEMPT_PATHS,
    KEYLESS_PATHS,
    POD_TOKEN_FILE,
    POD_TOKEN_HEADER,
)
from llmservice_runtime.shared_counters import (
    ABORTED,
    ARRIVED,
    ATTACHED,
    AWAITING,
    BEGUN,
    IN_FLIGHT,
    KEPT_ALIVE,
    LAST,
    LEVEL,
    OPEN,
    RECEIVED,
    REFUSED,
    REFUSING,
    SENT,
    SLOTS,
    STOPPING,
    SharedCounters,
    pack_use,
    peers_file,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CLOSED_PATHS = (*ADAPTER_PATHS, *DEV_PATHS, *ADMIN_PATHS)
RETRY_AFTER = b"1"
_MAPPED = "::ffff:"
_LOOKS = frozenset({"GET", "HEAD", "OPTIONS"})
_DRAINING = (DRAINING_HEADER.lower().encode(), b"true")
_KINDS = {401: "invalid_api_key", 403: "forbidden", 503: "service_unavailable"}

Client = tuple[str, int]
Headers = list[tuple[bytes, bytes]]


class DrainMiddleware:
    """Pure ASGI: adds no task, queue or copy of a body to a request."""

    def __init__(self, app: App) -> None:
        self._app = app
        path = os.environ.get(DRAIN_FILE_ENV)
        # Without a supervisor there are no shared counters and no drain: private slots, whose LEVEL stays 0.
        self._counters = SharedCounters(path) if path else None
        self._slots = self._counters.slots if self._counters else memoryview(bytearray(SLOTS * 8)).cast("Q")
        self._peers = peers_file(path) if path else None
        self._known: set[Client] | None = None
        self._kept_alive: set[Client] = set()
        self._slots[ATTACHED] = 1
        keys = os.environ.get(API_KEYS_FILE_ENV)
        self._keys = KeyFile(keys) if keys else None
        self._token = access.read_pod_token(path) if path else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        _show_ipv4(scope)
        self._slots[RECEIVED] += 1
        if status := self._denied_status(scope):
            await self._deny(scope, receive, send, status)
        elif kind == "websocket":
            await self._websocket(scope, receive, send)
        elif routed(scope) in EXEMPT_PATHS:
            await self._app(scope, receive, send)
        elif self._should_refuse(_client(scope)):
            self._slots[REFUSED] += 1
            await _read_whole(receive)
            await _refuse(send, 503, "This replica is being replaced; please try again.", [_DRAINING])
        else:
            await self._counted(scope, receive, send)

    def _denied_status(self, scope: Scope) -> int:
        """401 or 403 for a request without the required key or token; 0 for an allowed one."""
        path = routed(scope)
        is_closed = path.startswith(CLOSED_PATHS)
        if not is_closed and (self._keys is None or (path in KEYLESS_PATHS and scope["type"] == "http")):
            return 0
        headers: Headers = scope.get("headers") or []
        if access.shows_pod_token(headers, self._token):
            return 0
        if self._keys is not None and not self._keys.accepts(_header(headers, b"authorization")):
            # A browser's CORS preflight has no key; vLLM's CORS middleware handles it.
            return 0 if _is_preflight(scope, headers) else 401
        return 403 if is_closed else 0

    async def _deny(self, scope: Scope, receive: Receive, send: Send, status: int) -> None:
        text = "Incorrect API key provided." if status == 401 else _why_closed(routed(scope))
        more: Headers = [(b"www-authenticate", b"Bearer")] if status == 401 else []
        if scope["type"] == "websocket":
            await _deny_websocket(scope, receive, send, status, text, more)
        else:
            # Keep the connection: closing it with an unread body resets it, and the response is lost. The server
            # discards the rest of the body.
            await _refuse(send, status, text, more, close=self._slots[LEVEL] != OPEN)

    def _should_refuse(self, client: Client | None) -> bool:
        level = self._slots[LEVEL]
        if level < REFUSING:
            return False
        if self._known is None:
            self._known = _read_peers(self._peers)
        if level == STOPPING or client not in self._known:
            return True
        # Its response will have `Connection: close`; a later connection from that address is a new one.
        self._known.discard(client)
        return False

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, client = _Request(self._slots, receive, send), _client(scope)
        self._slots[IN_FLIGHT] += 1
        if self._slots[LEVEL] != OPEN:
            self._slots[ARRIVED] += 1
        self._track(client, closes=True)
        try:
            await self._app(scope, request.receive, request.send)
        finally:
            request.answered()
            if request.is_use(scope["method"]) and not self._is_of_the_pod(scope):
                self._used(scope["method"], scope)
            if request.is_aborted:
                self._slots[ABORTED] += 1
            if self._slots[LEVEL] != OPEN:
                self._track(client, closes=request.closes or _says_close(scope))
            self._slots[IN_FLIGHT] -= 1

    def _track(self, client: Client | None, *, closes: bool) -> None:
        """Update KEPT_ALIVE. `closes`: the client sees `Connection: close` with this response."""
        if client is None or (closes and not self._kept_alive):
            return
        (self._kept_alive.discard if closes else self._kept_alive.add)(client)
        self._slots[KEPT_ALIVE] = len(self._kept_alive)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A websocket counts as in flight while it is open, but never as awaiting."""
        if self._slots[LEVEL] >= REFUSING:
            self._slots[REFUSED] += 1
            await receive()
            await send({"type": "websocket.close", "code": 1013})
            return
        is_accepted = False

        async def noticing(message: Message) -> None:
            nonlocal is_accepted
            is_accepted = is_accepted or message["type"] == "websocket.accept"
            await send(message)

        self._slots[IN_FLIGHT] += 1
        try:
            await self._app(scope, receive, noticing)
        finally:
            self._slots[IN_FLIGHT] -= 1
            if is_accepted and not self._is_of_the_pod(scope):
                self._used("WEBSOCKET", scope)

    def _is_of_the_pod(self, scope: Scope) -> bool:
        """Whether it is the supervisor's or a management request, which does not keep a service from zero."""
        return access.shows_pod_token(scope.get("headers") or [], self._token)

    def _used(self, method: str, scope: Scope) -> None:
        self._slots[BEGUN] += 1
        self._slots[LAST] = pack_use(time.time(), method, routed(scope))


class _Request:
    """Counts a request as awaiting from the end of its body to the first byte of its response.

    Only this interval depends on the engine; a client that uploads or reads slowly does not indicate a hang.
    """

    def __init__(self, slots: memoryview, receive: Receive, send: Send) -> None:
        self._slots, self._receive, self._send = slots, receive, send
        self._awaiting = self._answered = False
        self._ended = False
        self.is_aborted = False
        """Whether the client disconnected before the response ended. vLLM does not count these requests."""
        self.closes = False
        """Whether the response has `Connection: close`."""
        self._status = 0

    def is_use(self, method: str) -> bool:
        """Whether it keeps a service from zero, as requests do that could wake it. Evaluate it after the request.

        Clients that list models, poll pages or try methods do not use the model.
        """
        return method not in _LOOKS and self._status not in (404, 405)

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._ended:
            self.is_aborted = True
        whole = message["type"] == "http.request" and not message.get("more_body", False)
        if whole and not self._awaiting and not self._answered:
            self._awaiting = True
            self._slots[AWAITING] += 1
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if self._slots[LEVEL] != OPEN:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
                self.closes = True
        else:
            self._slots[SENT] += 1
            self._ended = not message.get("more_body", False)
            if not self._answered:
                self.answered()
        await self._send(message)

    def answered(self) -> None:
        """Stop counting as awaiting; idempotent."""
        self._answered = True
        if self._awaiting:
            self._awaiting = False
            self._slots[AWAITING] -= 1


def routed(scope: Scope) -> str:
    """The path without vLLM's --root-path, as in starlette.routing.get_route_path."""
    path: str = scope["path"]
    root: str = scope.get("root_path") or ""
    return path[len(root) :] if path == root or path.startswith(f"{root}/") else path


def _header(headers: Headers, name_wanted: bytes) -> bytes | None:
    return next((value for name, value in headers if name.lower() == name_wanted), None)


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    """The condition of Starlette's CORS middleware."""
    has_headers = (
        _header(headers, b"origin") is not None and _header(headers, b"access-control-request-method") is not None
    )
    return has_headers and scope["type"] == "http" and scope["method"] == "OPTIONS"


def _why_closed(path: str) -> str:
    if path.startswith(ADAPTER_PATHS):
        return "Adapters are set in spec.adapters of the LLMService."
    return (
        f"This endpoint is closed to clients. Send the header {POD_TOKEN_HEADER} with the content of {POD_TOKEN_FILE} "
        "in the pod."
    )


def _show_ipv4(scope: Scope) -> None:
    """Replace an IPv4-mapped IPv6 address by the IPv4 address, which logs and applications expect."""
    client = scope.get("client")
    if client is not None and client[0].startswith(_MAPPED):
        scope["client"] = (client[0].removeprefix(_MAPPED), client[1])


def _client(scope: Scope) -> Client | None:
    """Address and port in the form of access.peers."""
    client = scope.get("client")
    return None if client is None else (client[0], client[1])


def _says_close(scope: Scope) -> bool:
    """Whether the client closes the connection after this request."""
    return scope.get("http_version") == "1.0" or any(
        name.lower() == b"connection" and b"close" in value.lower() for name, value in scope.get("headers") or ()
    )


def _read_peers(path: Path | None) -> set[Client]:
    """The established connections; empty where the file is missing, so that all connections count as new."""
    try:
        return {(host, port) for host, port in json.loads(path.read_text(encoding="utf-8"))} if path else set()
    except (OSError, ValueError):
        return set()


async def _read_whole(receive: Receive) -> None:
    """Read the rest of a request: closing a connection with unread bytes resets it, and the response is lost."""
    while (await receive()).get("more_body", False):
        pass


async def _deny_websocket(scope: Scope, receive: Receive, send: Send, status: int, text: str, more: Headers) -> None:
    """Deny a websocket with a response; a server without that extension closes it, which clients see as 403."""
    await receive()
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await _refuse(send, status, text, more, close=False, kind="websocket.http")
    else:
        await send({"type": "websocket.close", "code": 1008})


async def _refuse(
    send: Send, status: int, text: str, more: Headers | None = None, *, close: bool = True, kind: str = "http"
) -> None:
    """Send an error in the OpenAI shape; with `close` it ends the connection."""
    body = f'{{"error":{{"message":"{text}","type":"{_KINDS[status]}","code":{status}}}}}'.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *(more or ())]
    if close:
        headers.append((b"connection", b"close"))
    if status == 503:
        headers.append((b"retry-after", RETRY_AFTER))
    await send({"type": f"{kind}.response.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body})
