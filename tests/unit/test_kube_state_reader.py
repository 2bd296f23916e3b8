"""Reading a pod's state: a supervisor, and everything else that may answer on its port."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from llmservice_operator.kube.state_reader import LIMIT, StateReader, Unreadable
from llmservice_runtime.contract import AdapterState, Measured, Phase, State, Transfer
from llmservice_runtime.supervisor import state_server

from tests.support.ports import free_port

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
STATE = State(Phase.SERVING, started=True, ready=True, measured=Measured(kv_cache_tokens=7))


@asynccontextmanager
async def answering(handle: Handler) -> AsyncIterator[int]:
    """The port of a server, whose connections have all ended afterwards."""
    tasks: list[asyncio.Task[None]] = []

    async def handled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await handle(reader, writer)

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(handled(reader, writer)))

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*tasks)


def saying(head: str, body: bytes = b"") -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + b"\r\n\r\n" + body)
        writer.close()

    return handle


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begins to answer and never ends; the reader must have had enough before its time is over."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    try:
        while True:
            writer.write(b" " * 65536)
            await writer.drain()
    except ConnectionError:
        writer.close()


async def trickling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says a little again and again, so that no single wait is long."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not reader.at_eof():
        writer.write(b" ")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.read()
    writer.close()


@pytest.mark.parametrize("whole", [False, True])
async def test_reads_what_a_supervisor_says(whole: bool) -> None:
    port, state = free_port(), WHOLE if whole else STATE
    server = await state_server.serve(port, lambda path: state_server.Reply(200, state.to_json()))
    async with server, StateReader(port=port) as reader:
        assert await reader.read("127.0.0.1") == state


def stating(**changes: Any) -> Handler:
    """A state of which some things are not as a supervisor says them."""
    return saying("HTTP/1.1 200 OK", json.dumps(json.loads(WHOLE.to_json()) | changes).encode())


BOMB = gzip.compress(bytes(100_000_000))
"""100 MB in 100 KB."""
SMALL_BOMB = gzip.compress(bytes(40_000_000))
assert len(SMALL_BOMB) < LIMIT
TRANSFER = {"artifact": "model", "step": "Downloading", "bytesDone": 1, "bytesTotal": 2}
WHOLE = replace(
    STATE, transfer=Transfer.from_document(TRANSFER), adapters=(AdapterState("a", True),), adapters_hash="h"
)

ANSWERS = [
    pytest.param(silent, "does not answer", id="slow"),
    pytest.param(endless, "not that of a supervisor", id="huge"),
    pytest.param(saying("HTTP/1.1 200 OK", b"x" * 70_000), "not that of a supervisor", id="too long"),
    pytest.param(saying("HTTP/1.1 200 OK", b"hello"), "is no state", id="no JSON"),
    pytest.param(saying("HTTP/1.1 200 OK", b'{"version":2}'), "another version", id="another version"),
    pytest.param(saying("HTTP/1.1 404 Not Found", b"{}"), "not that of a supervisor", id="not found"),
    pytest.param(saying("HTTP/1.1 200 OK", b"[" * 60_000), "is no state", id="deep"),
    pytest.param(stating(measured={"kvCacheTokens": "many"}), "is no state", id="no number"),
    pytest.param(stating(measured={"kvCacheTokens": 1.5}), "is no state", id="no whole number"),
    pytest.param(stating(measured={"kvCacheTokens": True}), "is no state", id="no number but a truth"),
    pytest.param(stating(measured={"maxConcurrency": -1}), "is no state", id="negative"),
    pytest.param(stating(measured={"startSeconds": float("nan")}), "is no state", id="NaN"),
    pytest.param(stating(measured={"vllmVersion": "1" * 2000}), "is no state", id="a long word"),
    pytest.param(stating(measured={"vllmVersion": 32}), "is no state", id="no word"),
    pytest.param(stating(transfer={**TRANSFER, "bytesTotal": "2"}), "is no state", id="bytes that are no number"),
    pytest.param(stating(adapters=[{"name": "a", "loaded": True}] * 65), "is no state", id="many adapters"),
    pytest.param(stating(usualStartSeconds="soon"), "usualStartSeconds is not a number", id="text for seconds"),
    pytest.param(stating(progress="\ud800"), "not valid Unicode", id="half of a surrogate pair"),
    pytest.param(
        saying("HTTP/1.1 200 OK", WHOLE.to_json().replace('"bytesDone":1', '"bytesDone":1e400').encode()),
        "out of range: 1e400",
        id="a number that no double holds",
    ),
    pytest.param(saying("HTTP/1.1 200 OK", b"\xff\xfe{}"), "not valid Unicode", id="bytes that are no text"),
    pytest.param(
        saying("HTTP/1.1 200 OK\r\nContent-Encoding: gzip", BOMB), "not that of a supervisor", id="compressed"
    ),
    pytest.param(saying("HTTP/1.1 200 OK\r\nContent-Encoding: gzip", b"x"), "is no state", id="compressed in name"),
    pytest.param(saying("HTTP/1.1 200 OK\r\n" + "X-A: b\r\n" * 60_000 + "X-B: c"), "cannot be reached", id="headers"),
    pytest.param(trickling, "does not answer", id="a byte at a time"),
    pytest.param(saying("garbage"), "cannot be reached", id="garbage"),
]


@pytest.mark.parametrize(("handle", "said"), ANSWERS)
async def test_says_why_there_is_no_state(handle: Handler, said: str) -> None:
    async with answering(handle) as port, StateReader(port=port, timeout=0.5) as reader:
        with pytest.raises(Unreadable, match=said):
            await reader.read("127.0.0.1")


async def test_what_is_compressed_is_not_unpacked() -> None:
    """A bomb that fits the limit on the wire."""
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(SMALL_BOMB)}"
    async with answering(saying(head, SMALL_BOMB)) as port, StateReader(port=port) as reader:
        tracemalloc.start()
        try:
            with pytest.raises(Unreadable) as refused:
                await reader.read("127.0.0.1")
            assert tracemalloc.get_traced_memory()[1] < 16 * LIMIT, "40 MB were unpacked"
        finally:
            tracemalloc.stop()
    assert refused.value.is_invalid


async def test_a_redirect_is_not_followed() -> None:
    asked = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(True)
        writer.close()

    async with answering(elsewhere) as other:
        head = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{other}/state\r\nContent-Length: 0"
        async with answering(saying(head)) as port, StateReader(port=port) as reader:
            with pytest.raises(Unreadable):
                await reader.read("127.0.0.1")
    assert asked == []


async def test_a_refused_connection() -> None:
    async with StateReader(port=free_port()) as reader:
        with pytest.raises(Unreadable, match="cannot be reached"):
            await reader.read("127.0.0.1")
        with pytest.raises(Unreadable):
            await reader.read("::1")
