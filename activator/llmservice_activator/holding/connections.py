"""Sockets: a port for each service, one HTTP server for all of them, and bounds of connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from llmservice_activator.holding import answer
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
        self._answer, self._limits = handle, limits
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
        protocol = self()
        self._services[protocol] = service
        self._by_namespace[namespace] += 1
        return protocol

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        service = self._services.get(request.protocol)
        if service is None:
            raise asyncio.CancelledError  # the connection ended meanwhile
        return await self._answer(service, request)


class _Refusing(asyncio.Protocol):
    """One connection too many: answered before it is read, and closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        body = answer.TOO_MANY_CONNECTIONS.body
        fields = {**answer.TOO_MANY_CONNECTIONS.headers, "Content-Type": "application/json", "Connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        text = f"HTTP/1.1 503 Service Unavailable\r\n{head}Content-Length: {len(body)}\r\n\r\n"
        transport.write(text.encode() + body)
        transport.close()


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
