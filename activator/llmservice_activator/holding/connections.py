"""Sockets: a port for each service, one HTTP server for all of them, and bounds of connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from llmservice_activator.holding import answer
from llmservice_activator.holding.answer import Answer
from llmservice_activator.holding.heads import Head, Heads
from llmservice_activator.holding.limits import Limits

if TYPE_CHECKING:
    from llmservice_activator.holding.service import Service

LONGEST_LINE = 8 << 10
LONGEST_FIELD = 8 << 10
MOST_FIELDS = 64
READ_BUFFER = 16 << 10
"""Bytes of a body that are read ahead, once or twice; what is held is counted by its Ledger."""
BACKLOG = 1024
NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)

Handle = Callable[["Service", web.BaseRequest], Awaitable[web.StreamResponse]]

_logger = logging.getLogger(__name__)
_logger.addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
)  # what clients send in violation of HTTP is answered 400 by aiohttp and is no error of ours


class Connections(web.Server):
    """The HTTP server; which service a connection is for is decided by the port at which it was accepted."""

    def __init__(self, handle: Handle, limits: Limits) -> None:
        super().__init__(
            self._handle,
            handler_cancellation=True,  # a client that is gone ends its request
            access_log=None,
            logger=_logger,
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_FIELD,
            max_headers=MOST_FIELDS,
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
            keepalive_timeout=limits.idle_seconds,
            lingering_time=limits.linger_seconds,
        )
        self._answer, self._limits, self._heads = handle, limits, Heads(limits)
        self._services: dict[web.RequestHandler, Service] = {}
        self._by_namespace: Counter[str] = Counter()

    async def listen(self, service: Service, host: str, port: int) -> asyncio.Server:
        """Accept connections for a service. OSError where the port cannot be had."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(partial(self._accept, service), sock=_listening(host, port), backlog=BACKLOG)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        service = self._services.pop(handler, None)
        if service is not None:
            self._by_namespace[service.key.namespace] -= 1

    def _accept(self, service: Service) -> asyncio.Protocol:
        namespace = service.key.namespace
        if (
            len(self._services) >= self._limits.connections
            or self._by_namespace[namespace] >= self._limits.connections_of_one_namespace
        ):
            return _Refusing()
        head = Head(self._heads, namespace, self._limits.largest_head)
        protocol = _Connection(self, head, self._limits.linger_seconds, loop=self._loop, **self._kwargs)
        self._services[protocol] = service
        self._by_namespace[namespace] += 1
        return protocol

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        service = self._services.get(request.protocol)
        if service is None:
            raise asyncio.CancelledError  # the connection ended meanwhile
        return await self._answer(service, request)


class _Connection(web.RequestHandler):
    """One connection: bounds the head of its request, and keeps nothing that follows the request."""

    __slots__ = ("_head", "_is_refused", "_linger_seconds")

    def __init__(self, server: Connections, head: Head, linger_seconds: float, **options: Any) -> None:
        super().__init__(server, **options)
        self._head, self._linger_seconds, self._is_refused = head, linger_seconds, False

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._head.close()

    def data_received(self, data: bytes) -> None:
        # A second request shows that the first one is whole; it would wait here, with its head, and get no answer.
        if self._is_refused or self._request_count > 1:
            return
        refusal = self._head.add(data)
        if refusal is None:
            super().data_received(data)
        else:
            self._refuse(refusal)

    def close(self) -> None:
        """Answer the request in progress, and no further one."""
        super().close()
        self._messages.clear()
        if self._buffer_paused:  # else the end of the connection would not be seen
            self._resume_reading_if_drained()

    def _refuse(self, given: Answer) -> None:
        """Without a request. What still comes is read and dropped for a while: a reset would lose the answer."""
        self._is_refused = True
        if self.transport is not None:
            self.transport.write(_written(given))
            self.transport.write_eof()
            self._loop.call_later(self._linger_seconds, self.force_close)


class _Refusing(asyncio.Protocol):
    """One connection too many: answered before it is read, and closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(_written(answer.TOO_MANY_CONNECTIONS))
        transport.close()


def _written(given: Answer) -> bytes:
    """An answer with a document, as it is sent to a client whose request was not read."""
    fields = {**given.headers, "Content-Type": "application/json", "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    line = f"HTTP/1.1 {given.status} {HTTPStatus(given.status).phrase}\r\n"
    return f"{line}{head}Content-Length: {len(given.body)}\r\n\r\n".encode() + given.body


def _listening(host: str, port: int) -> socket.socket:
    """At one address, or, where it is empty, at all of IPv6 and IPv4 (only of the latter on a node without IPv6)."""
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    try:
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    except OSError as error:
        if error.errno not in NO_IPV6:
            raise
        return socket.create_server(("", port), backlog=BACKLOG)
    except ValueError:  # the system has no sockets for both
        return socket.create_server(("", port), backlog=BACKLOG)
