"""Sockets: a port for each service, one HTTP server for all of them, and bounds of connections and of request heads.

The HTTP parser bounds lines and their number, neither a head nor all heads together. `Head` bounds one, and `Shares`
what a namespace, and an address of clients, may take of a total that all share.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader

from llmservice_activator.holding import answer
from llmservice_activator.holding.answer import Answer
from llmservice_activator.holding.limits import Limits

if TYPE_CHECKING:
    from llmservice_activator.holding.service import Service

ADDRESS_SHARE = 3
"""How many times what is left for others an address may have. An ingress gateway, or a node that masquerades, has one
address for all its clients: alone it gets three quarters."""


class Shares:
    """Bounds what each takes by what is left, so that something always is: a namespace may have as much as it leaves,
    an address ADDRESS_SHARE times as much as it leaves to others, of the total and of what its namespace may have.

    One namespace alone gets half of the total, two a third each, and so on; one address of one namespace three
    sevenths. The first that one takes needs twice its size to be left.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self.used = 0
        self._of: Counter[tuple[str | None, str | None]] = Counter()
        """By namespace (and None), by address (after None), by both."""

    def take(self, namespace: str, address: str, size: int = 1) -> bool:
        """Take so much more until `give_back`; False: it may not, and nothing is taken."""
        left = self._total - self.used - size
        room = left - self._of[namespace, None] - size
        """What is left for others of the namespace."""
        if (
            room < 0
            or self._of[namespace, address] + size > ADDRESS_SHARE * room
            or self._of[None, address] + size > ADDRESS_SHARE * left
        ):
            return False
        self._change(namespace, address, size)
        return True

    def give_back(self, namespace: str, address: str, size: int = 1) -> None:
        """Others may take it."""
        self._change(namespace, address, -size)

    def of_namespace(self, namespace: str) -> int:
        """What a namespace has."""
        return self._of.get((namespace, None), 0)

    def _change(self, namespace: str, address: str, size: int) -> None:
        self.used += size
        for each in ((namespace, None), (None, address), (namespace, address)):
            self._of[each] += size
            if not self._of[each]:
                del self._of[each]


END = b"\r\n\r\n"
"""The parser accepts no other: a single CR or LF in a head is an error."""
MOST_FIELDS = 128
"""Each takes some hundred bytes of memory beside its own."""


class Head:
    """What a connection has sent of the head of its one request; counted from its first byte until the connection
    ends: a request in progress keeps its head."""

    def __init__(self, heads: Shares, namespace: str, address: str, most: int) -> None:
        """`heads`: bytes of those of all connections."""
        self._heads, self._namespace, self._address, self._most = heads, namespace, address, most
        self._size, self._last, self._is_whole, self._lines = 0, b"", False, 0

    def add(self, data: bytes) -> Answer | None:
        """Count what of this belongs to the head. The answer (431, 503) where it is too much."""
        if self._is_whole:
            return None
        if not self._size:
            data = data.lstrip(b"\r\n")  # the parser skips empty lines before a request
        end = (self._last + data).find(END)
        self._is_whole = end >= 0
        size = end + len(END) - len(self._last) if self._is_whole else len(data)
        self._last = b"" if self._is_whole else (self._last + data)[1 - len(END) :]
        self._lines += data.count(b"\n", 0, size)
        if self._size + size > self._most or self._lines > MOST_FIELDS + 2:  # the first line and the empty one
            return answer.head_too_large(self._most, MOST_FIELDS)
        if not self._heads.take(self._namespace, self._address, size):
            return answer.TOO_MANY_CONNECTIONS
        self._size += size
        return None

    def close(self) -> None:
        """The connection ended."""
        self._heads.give_back(self._namespace, self._address, self._size)
        self._size = 0


READ_BUFFER = 16 << 10
"""Bytes of a body that are read ahead, once or twice; what is held is counted by its Ledger."""
SLICE = 16 << 10
"""Bytes that the parser gets at once."""
MOST_BEYOND = 64 << 10
"""Bytes of trailers, and of whatever else follows a head and is no body: the parser's limits allow megabytes."""
FRAMING = 16
"""Bytes around each byte of a body that are not counted: a chunk of one byte takes five more."""
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
            max_line_size=limits.largest_head,  # Head sees first what is beyond
            max_field_size=limits.largest_head,
            max_headers=MOST_FIELDS,
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
            keepalive_timeout=limits.idle_seconds,
            lingering_time=limits.linger_seconds,
        )
        self._answer, self._limits = handle, limits
        self._open: dict[web.RequestHandler, _Accepted] = {}
        self.last = 0.0
        """When the last connection came, by the loop's time."""
        self._shares, self._heads = Shares(limits.connections), Shares(limits.head_bytes)

    async def listen(self, service: Service, host: str, port: int) -> asyncio.Server:
        """Accept connections for a service. OSError where the port cannot be had."""
        loop = asyncio.get_running_loop()
        arriving = partial(_Arriving, self._accept, service)
        return await loop.create_server(arriving, sock=_listening(host, port), backlog=BACKLOG)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        accepted = self._open.pop(handler, None)
        if accepted is not None:
            self._shares.give_back(accepted.service.key.namespace, accepted.address)

    def _accept(self, service: Service, address: str) -> asyncio.Protocol | None:
        """What answers a connection from an address; None: it is one too many."""
        namespace = service.key.namespace
        self.last = service.last_connection = self._loop.time()
        if not self._shares.take(namespace, address):
            return None
        head = Head(self._heads, namespace, address, self._limits.largest_head)
        protocol = _Connection(self, head, self._limits.linger_seconds, loop=self._loop, **self._kwargs)
        self._open[protocol] = _Accepted(service, address)
        return protocol

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        accepted = self._open.get(request.protocol)
        if accepted is None:
            raise asyncio.CancelledError  # the connection ended meanwhile
        return await self._answer(accepted.service, request)


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A connection that is open."""

    service: Service
    address: str
    """Of its other end."""


class _Connection(web.RequestHandler):
    """One connection: bounds the head of its request and what is neither head nor body, and keeps nothing that follows
    the request."""

    __slots__ = ("_beyond", "_head", "_is_refused", "_linger_seconds", "_payload", "_rest")

    def __init__(self, server: Connections, head: Head, linger_seconds: float, **options: Any) -> None:
        super().__init__(server, **options)
        self._head, self._linger_seconds, self._is_refused = head, linger_seconds, False
        self._payload: StreamReader | None = None
        self._beyond, self._rest = 0, b""

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._rest = b""
        self._head.close()

    def data_received(self, data: bytes) -> None:
        # A second request shows that the first one is whole; it would wait here, with its head, and get no answer.
        if self._is_refused or self._request_count > 1:
            return
        refusal = self._head.add(data)
        if refusal is not None:
            self._refuse(refusal)
            return
        rest, self._rest = self._rest + data, b""
        if not data:  # the body was read: first comes what the parser has
            self._parse(data)
        for begin in range(0, len(rest), SLICE):
            if self._reading_paused:
                self._rest = rest[begin:]
                return
            if self._request_count > 1 or self._force_close:
                return
            self._parse(rest[begin : begin + SLICE])

    def _parse(self, data: bytes) -> None:
        """And end the connection where too much of it is neither head nor body."""
        before = self._payload.total_bytes if self._payload is not None else 0
        super().data_received(data)
        if self._payload is None and self._messages:
            self._payload = self._messages[0][1]
        elif self._payload is not None:
            body = self._payload.total_bytes - before
            self._beyond = max(0, self._beyond + len(data) - (FRAMING + 1) * body)
            if self._beyond > MOST_BEYOND:
                self._rest = b""
                self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to what is not HTTP, or to a request without a Host: aiohttp's, in OpenAI's shape."""
        response = super().handle_error(request, status, exc, message)
        assert isinstance(response, web.Response)
        given = answer.INTERNAL if status >= 500 else answer.malformed(status, str(exc or ""))
        response.body, response.content_type = given.body, "application/json"
        return response

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


class _Arriving(asyncio.Protocol):
    """A new connection, until its address is known: handed over, or one too many: answered before it is read, and
    closed."""

    def __init__(self, accept: Callable[[Service, str], asyncio.Protocol | None], service: Service) -> None:
        self._accept, self._service = accept, service

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        address, *_ = transport.get_extra_info("peername") or ("",)
        protocol = self._accept(self._service, address)
        if protocol is not None:
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
        else:
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
