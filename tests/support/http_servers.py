"""HTTP servers on loopback for the tests: of an application, of a kubeconfig's cluster, of a handler, of answers."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import ssl
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

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
    server = TestServer(app)
    await server.start_server(ssl=tls, shutdown_timeout=shutdown_timeout)
    async with server:
        yield str(server.make_url("")).rstrip("/")
        await accepted()


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
