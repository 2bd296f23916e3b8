"""An ASGI server on asyncio: HTTP/1.1 with keep-alive, chunked streams and the habits of uvicorn that clients feel."""

from __future__ import annotations

import asyncio
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_TOO_LARGE = 64 << 20
_INVALID = b"Invalid HTTP request received."


class HttpServer:
    """The open connections of one listening socket."""

    def __init__(self, app: App, keep_alive_seconds: float, unlogged: Collection[str] | None) -> None:
        self.app = app
        self.unlogged = unlogged
        self.keep_alive_seconds = keep_alive_seconds
        self.is_closing = False
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()

    async def listen(self, host: str, port: int) -> None:
        """One socket, of the family of `host`, as vLLM opens it. OSError when the port is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Named as TCP: otherwise asyncio would wait for a client's ACK, up to 40 ms, before each next small part.
        opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), sock=opened, backlog=2048)

    async def close(self) -> None:
        """No newcomers; then every response in progress is awaited, however long it takes."""
        self.is_closing = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_when_idle()
        if self.connections:
            print("INFO:     Waiting for connections to close. (CTRL+C to force quit)", flush=True)
            await self._empty.wait()

    def left(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if self.is_closing and not self.connections:
            self._empty.set()


class Connection(asyncio.Protocol):
    """One client: its requests one after the other."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._buffer = b""
        self._exchange: Exchange | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.connections.add(self)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self.writable.set()
        if self._exchange is not None:
            self._exchange.disconnected.set()
        self._server.left(self)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _TOO_LARGE:
            self._refuse()
        elif self._exchange is None:
            self._next()

    def close_when_idle(self) -> None:
        """Now, or as soon as the response in progress is whole."""
        if self._exchange is None:
            self.transport.close()

    def _next(self) -> None:
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        try:
            request = Request.parse(head)
        except ValueError:
            self._refuse()
            return
        try:
            found = request.body(rest)
        except ValueError:
            self._refuse()
            return
        if found is None:
            if request.expects_continue:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        self._stop_clock()
        body, self._buffer = found
        self._exchange = Exchange(self, request, body)
        self._exchange.task = asyncio.ensure_future(self._serve(self._exchange))

    async def _serve(self, exchange: Exchange) -> None:
        try:
            await self._server.app(exchange.scope(), exchange.receive, exchange.send)
        except ConnectionError:
            exchange.keeps = False
        except Exception:  # noqa: BLE001 - as uvicorn: one request's failure is not the server's
            traceback.print_exc(file=sys.stderr)
            await exchange.fail()
        self._exchange = None
        if self.transport.is_closing():
            return
        if not exchange.keeps or not exchange.is_whole or self._server.is_closing:
            self.transport.close()
        elif self._buffer:
            self._next()
        else:
            self._await_request()

    def _await_request(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle = loop.call_later(self._server.keep_alive_seconds, self.transport.close)

    def _stop_clock(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    @property
    def unlogged(self) -> Collection[str] | None:
        """Paths that the access log leaves out; None: all."""
        return self._server.unlogged

    @property
    def is_server_closing(self) -> bool:
        """Whether responses should say that the connection ends with them."""
        return self._server.is_closing

    def _refuse(self) -> None:
        print("WARNING:  Invalid HTTP request received.", flush=True)
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {len(_INVALID)}"
        self.transport.write(head.encode() + b"\r\nconnection: close\r\n\r\n" + _INVALID)
        self.transport.close()


class Request:
    """The head of a request."""

    def __init__(self, method: str, target: str, version: str, headers: Headers) -> None:
        self.method, self.target, self.version, self.headers = method, target, version, headers
        fields = dict(headers)
        self.is_chunked = b"transfer-encoding" in fields
        self.length = int(fields.get(b"content-length", 0))
        self.expects_continue = fields.get(b"expect", b"").lower() == b"100-continue"
        connection = fields.get(b"connection", b"").lower()
        self.keeps = connection == b"keep-alive" if version == "1.0" else connection != b"close"

    def body(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The body, and what comes after it; None: it is not whole. ValueError where it is none."""
        if not self.is_chunked:
            return None if len(data) < self.length else (data[: self.length], data[self.length :])
        parts: list[bytes] = []
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:end], 16)
            at = end + 2 + size + 2
            if len(data) < at:
                return None
            if data[at - 2 : at] != b"\r\n":
                raise ValueError("no end of a chunk")
            if size == 0:
                return b"".join(parts), data[at:]
            parts.append(data[end + 2 : at - 2])
        return None

    @classmethod
    def parse(cls, head: bytes) -> Request:
        """ValueError when it is none."""
        first, *lines = head.split(b"\r\n")
        method, target, protocol = first.decode("ascii").split(" ")
        if not protocol.startswith("HTTP/1."):
            raise ValueError(protocol)
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        return cls(method, target, protocol.removeprefix("HTTP/"), headers)


class Exchange:
    """A request and its response, as ASGI has them."""

    def __init__(self, connection: Connection, request: Request, body: bytes) -> None:
        self._connection, self._request, self._body = connection, request, body
        self._received = self._chunked = False
        self.is_whole = False
        self.keeps = request.keeps
        self.started = False
        self.disconnected = asyncio.Event()
        self.task: asyncio.Future[None] | None = None

    def scope(self) -> Message:
        """The ASGI scope."""
        path, _, query = self._request.target.partition("?")
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": self._request.version,
            "method": self._request.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": self._request.headers,
            "client": self._connection.transport.get_extra_info("peername")[:2],
            "server": self._connection.transport.get_extra_info("sockname")[:2],
        }

    async def receive(self) -> Message:
        """The whole body first, and later the client's end."""
        if not self._received:
            self._received = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """A client that is gone is nobody's error: what is sent to it is dropped, as uvicorn does."""
        if self.disconnected.is_set():
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], list(message.get("headers", ())))
        else:
            self._write(message.get("body", b""), is_last=not message.get("more_body", False))
        await self._connection.writable.wait()

    async def fail(self) -> None:
        """What uvicorn makes of an exception."""
        self.keeps = False
        if not self.started:
            text = b"Internal Server Error"
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(text))]
            await self.send({"type": "http.response.start", "status": 500, "headers": headers})
            await self.send({"type": "http.response.body", "body": text})

    def _start(self, status: int, headers: Headers) -> None:
        fields = dict(headers)
        if fields.get(b"connection", b"").lower() == b"close":
            self.keeps = False
        elif not self.keeps or self._connection.is_server_closing:
            self.keeps = False
            headers.append((b"connection", b"close"))
        if b"content-length" not in fields and self._request.version != "1.0":
            self._chunked = True
            headers.append((b"transfer-encoding", b"chunked"))
        date = formatdate(usegmt=True).encode()
        head = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode()), b"date: " + date, b"server: uvicorn"]
        head += [name + b": " + value for name, value in headers]
        self._connection.transport.write(b"\r\n".join([*head, b"", b""]))
        self.started = True
        self._log(status)

    def _write(self, body: bytes, *, is_last: bool) -> None:
        if self._request.method == "HEAD":
            body = b""
        if self._chunked:
            chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            body = chunk + (b"0\r\n\r\n" if is_last else b"")
        if body:
            self._connection.transport.write(body)
        self.is_whole = is_last

    def _log(self, status: int) -> None:
        quiet = self._connection.unlogged
        if quiet is None or self._request.target.partition("?")[0] in quiet:
            return
        host, port = self._connection.transport.get_extra_info("peername")[:2]
        first = f'"{self._request.method} {self._request.target} HTTP/{self._request.version}"'
        print(f"INFO:     {host}:{port} - {first} {status} {HTTPStatus(status).phrase}", flush=True)
