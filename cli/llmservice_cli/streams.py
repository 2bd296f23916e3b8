"""HTTP/1.1 over asyncio's streams, by h11: the requests of a command to the API server.

Importing aiohttp takes 0.1 s of CPU, as much as all the rest of `llmservice status`.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

import h11
from kubeloop.errors import Unreachable
from kubeloop.transport import CONNECT_TIMEOUT, METHODS, Answer, Request, Transport

CHUNK = 2**16
LARGEST_PART = 2**20
"""Bytes that are unpacked at a time."""
GZIP = 31
"""zlib's word for its format."""
EYEBALLS_SECONDS = 0.25
"""After which another address of the server is tried beside the first (RFC 8305)."""


class StreamTransport(Transport):
    """Connections are kept for the next request."""

    async def __aenter__(self) -> Self:
        self._tls, self._server = self.credentials.ssl_context(), urlsplit(self.credentials.server)
        self._proxy = urlsplit(self.credentials.proxy) if self.credentials.proxy else None
        self._idle: list[_Connection] = []
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._idle:
            await connection.close()

    @asynccontextmanager
    async def answer(self, request: Request) -> AsyncIterator[Answer]:
        """One exchange."""
        asked, connection = self._head(request), None
        try:
            async with asyncio.timeout(request.seconds):
                connection = await self._connected()
                head = await connection.exchange(asked, request.data, request.silence)
                headers = {name: value.decode(errors="replace") for name, value in head.headers}
                chunks = connection.body(request.silence, is_packed=headers.get(b"content-encoding") == "gzip")
                yield Answer(head.status_code, headers.get(b"retry-after"), chunks)
            if connection.is_reusable():
                self._idle.append(connection)
                connection = None
        except TimeoutError:  # an OSError, too
            raise
        except (OSError, h11.ProtocolError, zlib.error) as error:
            raise Unreachable(f"{request.verb} {request.path}: {error}") from error
        finally:
            if connection is not None:
                await connection.close()

    def _head(self, request: Request) -> h11.Request:
        target = quote(self._server.path + request.path, safe="/:@!$&'()*+,;=%~?")
        if request.params:
            target += f"{'&' if '?' in target else '?'}{urlencode(request.params)}"
        host = self._server.netloc.rpartition("@")[2]
        headers = {}
        if self._proxy and not self._tls:
            target, headers = f"http://{host}{target}", dict(_user_of(self._proxy))
        headers |= {
            "Host": host,
            "User-Agent": self._user_agent,
            "Accept": "application/json",
            "Accept-Encoding": "gzip",
            **({} if request.data is None else {"Content-Length": str(len(request.data))}),
            **request.headers,
        }
        try:
            return h11.Request(method=METHODS[request.verb], target=target, headers=[*headers.items()])
        except (h11.LocalProtocolError, UnicodeError):  # they quote what may be the token
            what = f"{request.verb} {request.path}"
            raise Unreachable(f"{what}: the token or the path has a character that HTTP does not allow") from None

    async def _connected(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof():
                return connection
            await connection.close()
        address, tls = (self._proxy, _tls_to(self._proxy)) if self._proxy else (self._server, self._tls)
        host, port = _host_and_port(address)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                streams = await asyncio.open_connection(host, port, ssl=tls, happy_eyeballs_delay=EYEBALLS_SECONDS)
                connection = _Connection(*streams)
                if self._proxy and self._tls:
                    await connection.tunnel(*_host_and_port(self._server), self._tls, _user_of(self._proxy))
        except TimeoutError:
            raise
        except OSError as error:
            raise OSError(f"cannot connect to {host}:{port}: {error}") from error
        return connection


def _host_and_port(address: SplitResult) -> tuple[str, int]:
    return address.hostname or "", address.port or (443 if address.scheme == "https" else 80)


def _user_of(proxy: SplitResult) -> list[tuple[str, str]]:
    """The header with a proxy's user; a kubeconfig may give no password."""
    user = b64encode(f"{unquote(proxy.username)}:".encode()).decode() if proxy.username else ""
    return [("Proxy-Authorization", f"Basic {user}")] if user else []


def _tls_to(proxy: SplitResult) -> ssl.SSLContext | None:
    return ssl.create_default_context() if proxy.scheme == "https" else None


class _Connection:
    """One request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer, self._state = reader, writer, h11.Connection(h11.CLIENT)

    async def tunnel(self, host: str, port: int, tls: ssl.SSLContext, headers: Iterable[tuple[str, str]]) -> None:
        """Go on inside of a proxy's CONNECT (RFC 9110, 9.3.6), with TLS to the server."""
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        asked = h11.Request(method="CONNECT", target=target, headers=[("Host", target), *headers])
        try:
            answer = await self.exchange(asked, None, None)
            if not 200 <= answer.status_code < 300:
                raise OSError(f"the proxy answered CONNECT {target} with {answer.status_code}")
            await self.writer.start_tls(tls, server_hostname=host)
        except BaseException:
            await self.close()
            raise
        self._state = h11.Connection(h11.CLIENT)

    async def exchange(self, head: h11.Request, data: bytes | None, silence: float | None) -> h11.Response:
        """The head of the answer to a request."""
        events = (head, *(() if data is None else (h11.Data(data=data),)), h11.EndOfMessage())
        self.writer.write(b"".join(self._state.send(event) or b"" for event in events))
        await self.writer.drain()
        while not isinstance(event := await self._next(silence), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the server closed the connection")
        return event

    async def body(self, silence: float | None, *, is_packed: bool) -> AsyncIterator[bytes]:
        """The rest of it."""
        unpacker = zlib.decompressobj(GZIP)
        while isinstance(event := await self._next(silence), h11.Data):
            left = bytes(event.data)
            if not is_packed:
                yield left
                continue
            while left:
                yield unpacker.decompress(left, LARGEST_PART)
                left = unpacker.unconsumed_tail

    def is_reusable(self) -> bool:
        """Whether it can take another request, which it then can."""
        is_done = self._state.our_state is h11.DONE and self._state.their_state is h11.DONE
        if is_done:
            self._state.start_next_cycle()
        return is_done

    async def close(self) -> None:
        """At once: a server that does not answer TLS's goodbye would hold the command up for half a minute."""
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def _next(self, silence: float | None) -> Any:
        while (event := self._state.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(silence):
                self._state.receive_data(await self.reader.read(CHUNK))
        return event
