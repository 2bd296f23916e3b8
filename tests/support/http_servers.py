"""HTTP servers on loopback for the tests: of an application, of a kubeconfig's cluster, of a handler, of answers."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import ssl
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from localcluster import pki
from localcluster.paths import ClusterPaths
from tests.support.kubeconfig import kubeconfig

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def application(
    answer: Answer, shutdown_timeout: float = 60, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """The URL of a server that answers every request with this."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with serving(app, tls=tls, shutdown_timeout=shutdown_timeout) as runner:
        scheme = "http" if tls is None else "https"
        yield f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"


@asynccontextmanager
async def serving(
    app: web.Application, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[web.AppRunner]:
    """A server of this application; its connections have ended afterwards. `options`: aiohttp's."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, **options)
    await runner.setup()
    await web.TCPSite(runner, host, port, ssl_context=tls).start()
    try:
        yield runner
    finally:
        await accepted()
        assert runner.server is not None
        for connection in runner.server.connections:
            # One that is closed stays open until the other side has said that it ends it, perhaps beyond this loop.
            if tls is not None and connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()


@asynccontextmanager
async def streams(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """The port of a server on loopback that handles connections so, and closes them; all have ended afterwards."""
    tasks: list[asyncio.Task[None]] = []

    async def handled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):  # of a client that read no further
                await writer.wait_closed()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(handled(reader, writer)))

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await accepted()
        await asyncio.gather(*tasks)


async def accepted() -> None:
    """Until a server of this loop knows the connections that it has accepted: asyncio leaves those open that it learns
    of after it was closed (CPython's `_accept_connection2`)."""
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def cluster(
    answer: Answer, folder: Path, monkeypatch: pytest.MonkeyPatch, shutdown_timeout: float = 60
) -> AsyncIterator[None]:
    """The same, as the cluster of KUBECONFIG with the namespace `team`."""
    async with application(answer, shutdown_timeout) as url:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(folder, {"token": "t0ken"}, namespace="team", server=url)))
        yield


@contextmanager
def threaded(
    handler: type[BaseHTTPRequestHandler], address: str = "127.0.0.1", tls: ssl.SSLContext | None = None, port: int = 0
) -> Iterator[int]:
    """The port of a server with this handler, in threads and without a log."""
    quiet = type(handler.__name__, (handler,), {"log_message": lambda *_: None})
    server = ThreadingHTTPServer((address, port), quiet)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass(frozen=True)
class Reply:
    """What a site answers."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"ok"


@dataclass
class Site:
    """A server that answers by path; `seen` has the paths and headers (lower case) of its requests."""

    answer: Callable[[str], Reply] = lambda _: Reply()
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""


@contextmanager
def site(answer: Callable[[str], Reply] = lambda _: Reply()) -> Iterator[Site]:
    """Serve GET, HEAD and PUT until the end of the block."""
    found = Site(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            reply = found.answer(self.path)
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        do_HEAD = do_PUT = do_GET  # noqa: N815 - the standard library's names

    with threaded(Handler) as port:
        found.url = f"http://127.0.0.1:{port}"
        yield found


@cache
def loopback_tls() -> tuple[ssl.SSLContext, str]:
    """A certificate for 127.0.0.1 and localhost, and the file of its authority; made once per process."""
    folder = tempfile.mkdtemp(prefix="llmservice-pki-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    paths = ClusterPaths(Path(folder) / "clone")
    pki.ensure(paths)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(paths.pki / "apiserver.crt", paths.pki / "apiserver.key")
    return context, str(paths.pki / "ca.crt")
