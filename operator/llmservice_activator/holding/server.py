"""Listeners of all services that may be at zero: a port for each, one HTTP server for all, and limits of connections
and of request heads.

The HTTP parser limits lines and their number, but neither a whole head nor all heads together. `HeadLimit` limits one
head, and `FairShares` what a namespace and a client address may use of the total.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from kubeloop import log
from kubeloop.resources import Key
from llmservice_api.holding import LastUse

from llmservice_activator.holding import answer, forward
from llmservice_activator.holding.answer import Answer
from llmservice_activator.holding.exchange import Exchange, Shared
from llmservice_activator.holding.interface import Admits, HeldRequests, HoldingTarget, Refusal, Renews, RequestMetrics
from llmservice_activator.holding.limits import Ledger, Limits
from llmservice_activator.holding.service import Service, SlotQueue, Waiter

if TYPE_CHECKING:
    from llmservice_activator.holding.service import Service

logger = logging.getLogger(__name__)

ADDRESS_SHARE = 3
"""Times its remaining share that one address may use. An ingress gateway, or a node that masquerades, has one address
for all its clients: alone it gets three quarters."""


class FairShares:
    """Divides a total so that something always remains: a namespace may use as much as it leaves free, an address
    ADDRESS_SHARE times as much as it leaves free, of the total and of its namespace's share.

    A single namespace gets half of the total, two get a third each, and so on; a single address of a single namespace
    gets three sevenths. A first use needs twice its size to be free.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self.used = 0
        self._of: Counter[tuple[str | None, str | None]] = Counter()
        """By namespace (and None), by address (after None), and by both."""

    def take(self, namespace: str, address: str, size: int = 1) -> bool:
        """Use `size` more until `give_back`; returns whether that is allowed."""
        left = self._total - self.used - size
        room = left - self._of[namespace, None] - size
        """What remains for other addresses of the namespace."""
        if (
            room < 0
            or self._of[namespace, address] + size > ADDRESS_SHARE * room
            or self._of[None, address] + size > ADDRESS_SHARE * left
        ):
            return False
        self._change(namespace, address, size)
        return True

    def give_back(self, namespace: str, address: str, size: int = 1) -> None:
        self._change(namespace, address, -size)

    def of_namespace(self, namespace: str) -> int:
        return self._of.get((namespace, None), 0)

    def _change(self, namespace: str, address: str, size: int) -> None:
        self.used += size
        for each in ((namespace, None), (None, address), (namespace, address)):
            self._of[each] += size
            if not self._of[each]:
                del self._of[each]


END = b"\r\n\r\n"
"""The parser accepts no other end: a single CR or LF in a head is an error."""
MOST_FIELDS = 128
"""Each takes some hundred bytes of memory beside its own."""


class HeadLimit:
    """Limits the request head of one connection. Counted from its first byte until the connection ends, since a request
    in progress keeps its head."""

    def __init__(self, heads: FairShares, namespace: str, address: str, most: int) -> None:
        """`heads`: bytes of the heads of all connections. `most`: bytes of this one."""
        self._heads, self._namespace, self._address, self._most = heads, namespace, address, most
        self._size, self._last, self._is_whole, self._lines = 0, b"", False, 0

    def add(self, data: bytes) -> Answer | None:
        """Count the bytes that belong to the head; returns the response (431, 503) where they are too many."""
        if self._is_whole:
            return None
        if not self._size:
            data = data.lstrip(b"\r\n")  # the parser skips empty lines before a request
        end = (self._last + data).find(END)
        self._is_whole = end >= 0
        size = end + len(END) - len(self._last) if self._is_whole else len(data)
        self._last = b"" if self._is_whole else (self._last + data)[1 - len(END) :]
        self._lines += data.count(b"\n", 0, size)
        if self._size + size > self._most or self._lines > MOST_FIELDS + 2:  # the request line and the empty line
            return answer.head_too_large(self._most, MOST_FIELDS)
        if not self._heads.take(self._namespace, self._address, size):
            return answer.TOO_MANY_CONNECTIONS
        self._size += size
        return None

    def close(self) -> None:
        self._heads.give_back(self._namespace, self._address, self._size)
        self._size = 0


READ_BUFFER = 16 << 10
"""Bytes of a body that are read ahead, once or twice; held bytes are counted by the Ledger."""
SLICE = 16 << 10
"""Bytes that the parser gets at once."""
MAX_OUTSIDE_BODY = 64 << 10
"""Bytes of trailers and of other data after a head that is not the body: the parser's limits allow megabytes."""
FRAMING_PER_BYTE = 16
"""Bytes of framing per byte of a body that are not counted: a chunk of one byte takes five more."""
BACKLOG = 1024
NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)

Handle = Callable[["Service", web.BaseRequest], Awaitable[web.StreamResponse]]

_http_logger = logging.getLogger(f"{__name__}.http")
_http_logger.addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
)  # aiohttp answers invalid HTTP with 400; it is not an error of this process


class Connections(web.Server):
    """The HTTP server. The port of a connection determines its service."""

    def __init__(self, handle: Handle, limits: Limits) -> None:
        super().__init__(
            self._handle,
            handler_cancellation=True,  # a disconnected client cancels its request
            access_log=None,
            logger=_http_logger,
            max_line_size=limits.largest_head,  # `HeadLimit` checks larger heads first
            max_field_size=limits.largest_head,
            max_headers=MOST_FIELDS,
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
            keepalive_timeout=limits.idle_seconds,
            lingering_time=limits.linger_seconds,
        )
        self._answer, self._limits = handle, limits
        self._is_shut_down = False
        self._open: dict[web.RequestHandler, _Accepted] = {}
        self.last = 0.0
        """Time of the last connection, by the event loop's clock."""
        self._shares, self._heads = FairShares(limits.connections), FairShares(limits.head_bytes)

    async def listen(self, service: Service, host: str, port: int) -> asyncio.Server:
        """Accept connections for a service. OSError where the port cannot be opened."""
        loop = asyncio.get_running_loop()
        arriving = partial(_NewConnection, self._accept, service)
        return await loop.create_server(arriving, sock=_listening(host, port), backlog=BACKLOG)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        accepted = self._open.pop(handler, None)
        if accepted is not None:
            self._shares.give_back(accepted.service.key.namespace, accepted.address)

    async def shutdown(self, timeout: float | None = None) -> None:
        """Close all connections, and those that a listener accepted last and has not handed over yet."""
        self._is_shut_down = True
        try:
            await super().shutdown(timeout)
        finally:  # cancelled, it would leave those open on which no request came
            for handler in tuple(self._open):
                handler.force_close()

    def _accept(self, service: Service, address: str) -> asyncio.Protocol | Answer:
        """The protocol for a connection from an address, or the answer where none is taken."""
        if self._is_shut_down:
            return answer.refused(STOPPING)
        namespace = service.key.namespace
        self.last = service.last_connection = self._loop.time()
        if not self._shares.take(namespace, address):
            return answer.TOO_MANY_CONNECTIONS
        head = HeadLimit(self._heads, namespace, address, self._limits.largest_head)
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
    service: Service
    address: str
    """Address of its peer."""


class _Connection(web.RequestHandler):
    """One connection. Limits the head of its request and data outside head and body; drops further requests."""

    __slots__ = ("_head", "_is_refused", "_linger_seconds", "_outside_body", "_payload", "_rest")

    def __init__(self, server: Connections, head: HeadLimit, linger_seconds: float, **options: Any) -> None:
        super().__init__(server, **options)
        self._head, self._linger_seconds, self._is_refused = head, linger_seconds, False
        self._payload: StreamReader | None = None
        self._outside_body, self._rest = 0, b""

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._rest = b""
        self._head.close()

    def data_received(self, data: bytes) -> None:
        # A further request shows that the first is complete; it would never be answered.
        if self._is_refused or self._request_count > 1:
            return
        refusal = self._head.add(data)
        if refusal is not None:
            self._refuse(refusal)
            return
        rest, self._rest = self._rest + data, b""
        if not data:  # the body was read; the parser's data comes first
            self._parse(data)
        for begin in range(0, len(rest), SLICE):
            if self._reading_paused:
                self._rest = rest[begin:]
                return
            if self._request_count > 1 or self._force_close:
                return
            self._parse(rest[begin : begin + SLICE])

    def _parse(self, data: bytes) -> None:
        """Parse, and end the connection after MAX_OUTSIDE_BODY bytes outside head and body."""
        before = self._payload.total_bytes if self._payload is not None else 0
        super().data_received(data)
        if self._payload is None and self._messages:
            self._payload = self._messages[0][1]
        elif self._payload is not None:
            body = self._payload.total_bytes - before
            self._outside_body = max(0, self._outside_body + len(data) - (FRAMING_PER_BYTE + 1) * body)
            if self._outside_body > MAX_OUTSIDE_BODY:
                self._rest = b""
                self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The response to invalid HTTP, or to a request without a Host: aiohttp's, in OpenAI's shape."""
        response = super().handle_error(request, status, exc, message)
        assert isinstance(response, web.Response)
        given = answer.INTERNAL if status >= 500 else answer.malformed(status, str(exc or ""))
        response.body, response.content_type = given.body, "application/json"
        return response

    def close(self) -> None:
        """Answer the request in progress, and no further one."""
        super().close()
        self._messages.clear()
        if self._buffer_paused:  # otherwise the end of the connection would not be noticed
            self._resume_reading_if_drained()

    def _refuse(self, given: Answer) -> None:
        """Respond without a request. Further data is read and dropped for a while: a reset would lose the response."""
        self._is_refused = True
        if self.transport is not None:
            self.transport.write(_written(given))
            self.transport.write_eof()
            self._loop.call_later(self._linger_seconds, self.force_close)


class _NewConnection(asyncio.Protocol):
    """A new connection until its address is known; then it is handed over, or refused and closed unread."""

    def __init__(self, accept: Callable[[Service, str], asyncio.Protocol | Answer], service: Service) -> None:
        self._accept, self._service = accept, service

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        address, *_ = transport.get_extra_info("peername") or ("",)
        accepted = self._accept(self._service, address)
        if isinstance(accepted, Answer):
            transport.write(_written(accepted))
            transport.close()
        else:
            transport.set_protocol(accepted)
            accepted.connection_made(transport)


def _written(given: Answer) -> bytes:
    """A response with a document, serialized for a client whose request was not read."""
    fields = {**given.headers, "Content-Type": "application/json", "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    line = f"HTTP/1.1 {given.status} {HTTPStatus(given.status).phrase}\r\n"
    return f"{line}{head}Content-Length: {len(given.body)}\r\n\r\n".encode() + given.body


def _listening(host: str, port: int) -> socket.socket:
    """Listens on one address; if empty, on all of IPv6 and IPv4, or IPv4 alone on a node without IPv6."""
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    try:
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    except OSError as error:
        if error.errno not in NO_IPV6:
            raise
        return socket.create_server(("", port), backlog=BACKLOG)
    except ValueError:  # the system does not support dual-stack sockets
        return socket.create_server(("", port), backlog=BACKLOG)


GONE = Refusal(503, "Deleted", "The LLMService does not exist any longer, or it always has a replica now. Try again.")
STOPPING = Refusal(503, "Stopping", "The process that holds requests ends. Try again.")
CUT_SECONDS = 2.0
"""In which held requests are answered after `stop` is cancelled."""


class HoldingServer:
    """Answers, holds and forwards requests. Call start, then update; stop at the end.

    `wake` is called when a request starts to wait, and every `wake_seconds` while one of its service waits; it must not
    block. `held_by_others` returns the requests of a service that other activators hold; they count towards its limit.
    """

    def __init__(
        self,
        *,
        wake: Callable[[Key], None],
        count: RequestMetrics,
        held_by_others: Callable[[Key], Awaitable[int]],
        admits: Admits,
        renews: Renews,
        limits: Limits | None = None,
        host: str = "",
    ) -> None:
        self._wake, self._count, self._limits, self._host = wake, count, limits or Limits(), host
        self._held_by_others = held_by_others
        self._admits, self._renews = admits, renews
        self._services: dict[Key, Service] = {}
        self._ledger = Ledger(self._limits.held_bytes)
        self._checks: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By namespace, while it has a service."""
        self._slots: SlotQueue[Waiter] = SlotQueue(self._limits.slots, self._limits.slots_of_one_namespace)
        self._change = asyncio.Lock()
        self._requests = 0
        self._no_requests = asyncio.Event()
        self._no_requests.set()
        self._shared: Shared | None = None
        self._connections: Connections | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopping = False

    async def start(self) -> None:
        """Call before the first update."""
        session = forward.new_session(self._limits)
        self._shared = Shared(
            session,
            self._ledger,
            self._slots,
            self._wake,
            self._held_by_others,
            self._release_waiting,
            self._count,
            self._limits,
            self._admits,
            self._renews,
        )
        self._connections = Connections(self._handle, self._limits)
        self._wake_again()

    async def update(self, target: HoldingTarget) -> None:
        """Add or change a service. OSError where its port cannot be opened: all else is applied, and the next update
        retries."""
        async with self._change:
            shared = self._started()
            service = self._services.get(target.key)
            if service is not None and service.uid != target.uid:
                await self._remove(target.key)
                service = None
            if service is None:
                checks = self._checks.setdefault(
                    target.key.namespace, asyncio.Semaphore(self._limits.checks_of_one_namespace)
                )
                service = Service(
                    target, shared.session, self._ledger, self._slots, self._release_waiting, self._limits, checks
                )
                self._services[target.key] = service
            service.update(target)
            await self._listen(service, target.port)

    async def remove(self, key: Key) -> None:
        """Answer the held requests and close the port. Requests at pods are finished."""
        async with self._change:
            await self._remove(key)

    async def stop(self) -> None:
        """Accept no more connections; return when no request is in progress. If cancelled, held requests get 503 and
        the others end; if cancelled again, they are cut."""
        self._is_stopping = True
        try:
            async with self._change:
                for service in self._services.values():
                    service.close_listener()
            await self._no_requests.wait()
        finally:
            try:
                await self._end()
            finally:
                if self._shared is not None:
                    await self._shared.session.close()

    async def _end(self) -> None:
        for key in list(self._services):
            await self._remove(key, STOPPING)
        if self._timer is not None:
            self._timer.cancel()
        if self._connections is not None:
            await self._connections.shutdown(CUT_SECONDS)

    def held(self, key: Key) -> HeldRequests:
        service = self._services.get(key)
        return HeldRequests() if service is None else service.held()

    def all_held(self) -> Mapping[Key, HeldRequests]:
        return {key: service.held() for key, service in self._services.items() if service.waiting}

    def last_held(self) -> Mapping[Key, LastUse]:
        return {key: found for key, service in self._services.items() if (found := service.last_held) is not None}

    def in_progress(self) -> int:
        """Requests that are received, held, forwarded or answered."""
        return self._requests

    def last_connection(self, key: Key | None = None) -> float:
        """Time of the last connection to a service, or to any, by the event loop's clock; 0: none came."""
        if key is not None:
            return self._services[key].last_connection if key in self._services else 0
        return self._connections.last if self._connections is not None else 0

    def is_listening(self, uid: str, port: int) -> bool:
        """Whether connections to this port are accepted for this uid."""
        return any(service.uid == uid and service.port == port for service in self._services.values()) and bool(port)

    def _started(self) -> Shared:
        if self._shared is None:
            raise RuntimeError("start it first")
        return self._shared

    async def _listen(self, service: Service, port: int) -> None:
        if service.port == port or self._is_stopping:
            return
        service.close_listener()
        assert self._connections is not None
        service.listener = await self._connections.listen(service, self._host, port)
        service.port = port
        logger.info("holding at port %d", port, extra={log.KEY: service.key})

    async def _remove(self, key: Key, refusal: Refusal = GONE) -> None:
        service = self._services.pop(key, None)
        if service is not None:
            await service.close(refusal)

    async def _handle(self, service: Service, request: web.BaseRequest) -> web.StreamResponse:
        self._requests += 1
        self._no_requests.clear()
        try:
            return await Exchange(self._started(), service, request).run()
        finally:
            self._requests -= 1
            if not self._requests:
                self._no_requests.set()

    def _release_waiting(self) -> None:
        while (waiter := self._slots.next()) is not None:
            waiter.release()

    def _wake_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._limits.wake_seconds, self._wake_again)
        for key in self.all_held():
            self._wake(key)
