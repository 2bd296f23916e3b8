"""Runs in vLLM's own process (--middleware): nothing but counting until the server drains.

Draining, as the supervisor sets it on the board: CLOSING has responses carry `Connection: close`, so that pooled
connections come back through the Service; REFUSING answers newcomers 503 with Retry-After, since vLLM itself would
answer them 200 with an aborted, empty completion. Endpoints that manage the server are closed to everyone
outside of the pod: whoever may send a prompt may not choose files to be loaded, run code in the workers or put the
model to sleep.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from llmservice_runtime.board import ATTACHED, AWAITING, IN_FLIGHT, LEVEL, OPEN, REFUSED, REFUSING, SLOTS, Board
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


class DrainMiddleware:
    """Pure ASGI: no task, no queue and no copy of a body is added to a request."""

    def __init__(self, app: App) -> None:
        self._app = app
        path = os.environ.get(DRAIN_FILE_ENV)
        # Without a supervisor there is no board, and nobody to drain for: slots of our own, which stay 0.
        self._board = Board(path) if path else None
        self._slots = self._board.slots if self._board else memoryview(bytearray(SLOTS * 8)).cast("Q")
        self._slots[ATTACHED] = 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in EXEMPT_PATHS:
            await self._app(scope, receive, send)
        elif _path(scope).startswith(CLOSED_PATHS) and not _is_from_the_pod(scope):
            await _refuse(send, 403, _why_closed(_path(scope)))
        elif self._slots[LEVEL] == REFUSING:
            self._slots[REFUSED] += 1
            await _refuse(send, 503, "This replica is being replaced; please try again.")
        else:
            await self._counted(scope, receive, send)

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(self._slots, receive, send)
        self._slots[IN_FLIGHT] += 1
        try:
            await self._app(scope, request.receive, request.send)
        finally:
            request.answered()
            self._slots[IN_FLIGHT] -= 1


class _Request:
    """Counts as awaiting from the end of its body to the first byte of its answer.

    That is the time in which a hung engine shows. A client that uploads or reads slowly is nobody's hang.
    """

    def __init__(self, slots: memoryview, receive: Receive, send: Send) -> None:
        self._slots, self._receive, self._send = slots, receive, send
        self._awaiting = self._answered = False

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
        elif not self._answered:
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
