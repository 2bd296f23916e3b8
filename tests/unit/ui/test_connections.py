"""The web page: connections on which nothing comes, or nothing is taken, end; no number of them stops the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from llmservice_ui import __main__, guard
from llmservice_ui.__main__ import Impatient
from llmservice_ui.guard import Guard
from uvicorn.server import ServerState

from tests.support.patience import PATIENCE
from tests.unit.ui.ui_world import world

TICK = 0.1
LARGE = 2**26
HEAD = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once; by its path late, or with more than a connection takes by itself."""
    if scope["path"] == "/late":
        await asyncio.sleep(6 * TICK)
    body = b"a" * (LARGE if scope["path"] == "/large" else 1)
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(__main__, "HEAD_SECONDS", TICK)
    config = uvicorn.Config(app, http=Impatient, lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(lambda: Impatient(config, state, {}), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for connection in tuple(state.connections):
        assert connection.transport is not None
        connection.transport.close()


STUCK: dict[str, tuple[bytes, bytes]] = {
    "silent": (b"", b""),
    "half a head": (HEAD[:20], b""),
    "half a head after an answer": (HEAD % b"/", HEAD[:20]),
    "a body that nobody reads": (POST, b"b"),
}


@pytest.mark.parametrize(("first", "then"), STUCK.values(), ids=STUCK)
async def test_a_connection_without_a_request_ends(first: bytes, then: bytes, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first)
    if first.endswith(b"\r\n\r\n"):
        assert (await reader.readuntil(b"\r\n\r\na")).startswith(b"HTTP/1.1 200")
    writer.write(then)
    try:
        assert await asyncio.wait_for(reader.read(), 3) == b""  # uvicorn's own patience is 5 s
    except ConnectionResetError:
        pass
    finally:
        writer.close()


async def test_an_answer_that_is_not_taken_ends_its_connection(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(HEAD % b"/large")
    await asyncio.sleep(10 * TICK)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await asyncio.wait_for(reader.readexactly(LARGE), PATIENCE)
    writer.close()


async def test_an_answer_may_be_late_and_connections_are_kept_between_requests(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for path in (b"/late", b"/", b"/late"):
        writer.write(HEAD % path)
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\na"), PATIENCE)).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(6 * TICK)
    writer.close()


def test_the_pages_server_has_no_limit_that_counts_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: dict[str, Any] = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: ran.update(options))
    assert __main__.main(["--api-server", "https://127.0.0.1:1"]) == 0
    assert (ran["http"], ran.get("limit_concurrency")) == (Impatient, None)


async def test_requests_are_bounded_but_for_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "AT_ONCE", 1)
    begun, may_end = asyncio.Event(), asyncio.Event()
    async with world() as found, found.browser() as browser:
        inner = found.app._app

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/sign-in":
                begun.set()
                await may_end.wait()
            await inner(scope, receive, send)

        found.app = Guard(slow, found.app._hosts)
        async with found.browser() as other:
            first = asyncio.create_task(other.get("/sign-in"))
            await begun.wait()
            busy, healthy = [await asyncio.create_task(_get(found, path)) for path in ("/static/page.css", "/healthz")]
            may_end.set()
            assert (await first).status_code == 200
        assert (busy, healthy) == (503, 200)
        assert (await browser.get("/static/page.css")).status_code == 200


async def _get(found: Any, path: str) -> int:
    async with found.browser() as browser:
        code: int = (await browser.get(path)).status_code
        return code
