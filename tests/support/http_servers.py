"""HTTP servers on loopback for the tests: an application's, which may be a kubeconfig's cluster, and a handler's."""

from __future__ import annotations

import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.kubeconfig import kubeconfig

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def application(answer: Answer, shutdown_timeout: float = 60) -> AsyncIterator[str]:
    """The URL of a server that answers every request with this."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app, shutdown_timeout=shutdown_timeout) as server:
        yield str(server.make_url("")).rstrip("/")


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
    handler: type[BaseHTTPRequestHandler], address: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """The port of a server with this handler, in threads and without a log."""
    quiet = type(handler.__name__, (handler,), {"log_message": lambda *_: None})
    server = ThreadingHTTPServer((address, 0), quiet)
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
