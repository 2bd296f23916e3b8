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
from llmservice_operator.kube.pod_port import LIMIT, Unreadable
from llmservice_operator.kube.state_reader import StateReader
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
    """Sends a little again and again, so that no single wait is long."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while not reader.at_eof():
            writer.write(b" ")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await reader.read()
    writer.close()


BOMB = gzip.compress(bytes(100_000_000))
"""100 MB in 100 KB."""
SMALL_BOMB = gzip.compress(bytes(40_000_000))
assert len(SMALL_BOMB) < LIMIT
OK = "HTTP/1.1 200 OK"
GZIP = f"{OK}\r\nContent-Encoding: gzip"
TRANSFER = {"artifact": "model", "step": "Downloading", "bytesDone": 1, "bytesTotal": 2}
WHOLE = replace(
    STATE, transfer=Transfer.from_document(TRANSFER), adapters=(AdapterState("a", True),), adapters_hash="h"
)
HUGE = WHOLE.to_json().replace('"bytesDone":1', '"bytesDone":1e400').encode()


@pytest.mark.parametrize("state", [STATE, WHOLE], ids=["small", "whole"])
async def test_reads_the_state_of_a_supervisor(state: State) -> None:
    port = free_port()
    server = await state_server.serve(port, lambda path: state_server.Reply(200, state.to_json()))
    async with server, StateReader(port=port) as reader:
        assert await reader.read("127.0.0.1") == state


def stating(**changes: Any) -> Handler:
    """A state with some invalid values."""
    return saying(OK, json.dumps(json.loads(WHOLE.to_json()) | changes).encode())


def measuring(**values: Any) -> Handler:
    return stating(measured=values)


ANSWERS: dict[str, tuple[Handler, str]] = {
    "slow": (silent, "does not answer"),
    "a byte at a time": (trickling, "does not answer"),
    "huge": (endless, "not that of a supervisor"),
    "too long": (saying(OK, b"x" * 70_000), "not that of a supervisor"),
    "not found": (saying("HTTP/1.1 404 Not Found", b"{}"), "not that of a supervisor"),
    "compressed": (saying(GZIP, BOMB), "not that of a supervisor"),
    "compressed in name": (saying(GZIP, b"x"), "is no state"),
    "no JSON": (saying(OK, b"hello"), "is no state"),
    "deep": (saying(OK, b"[" * 60_000), "is no state"),
    "another version": (saying(OK, b'{"version":2}'), "another version"),
    "no number": (measuring(kvCacheTokens="many"), "is no state"),
    "no integer": (measuring(kvCacheTokens=1.5), "is no state"),
    "a boolean": (measuring(kvCacheTokens=True), "is no state"),
    "negative": (measuring(maxConcurrency=-1), "is no state"),
    "NaN": (measuring(startSeconds=float("nan")), "is no state"),
    "a long text": (measuring(vllmVersion="1" * 2000), "is no state"),
    "no text": (measuring(vllmVersion=32), "is no state"),
    "bytes that are no number": (stating(transfer={**TRANSFER, "bytesTotal": "2"}), "is no state"),
    "many adapters": (stating(adapters=[{"name": "a", "loaded": True}] * 65), "is no state"),
    "text for seconds": (stating(usualStartSeconds="soon"), "usualStartSeconds is not a number"),
    "half of a surrogate pair": (stating(progress="\ud800"), "not valid Unicode"),
    "bytes that are no text": (saying(OK, b"\xff\xfe{}"), "not valid Unicode"),
    "a number that no double holds": (saying(OK, HUGE), "out of range: 1e400"),
    "headers": (saying(OK + "\r\n" + "X-A: b\r\n" * 60_000 + "X-B: c"), "cannot be reached"),
    "garbage": (saying("garbage"), "cannot be reached"),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_the_cause_why_there_is_no_state(case: str) -> None:
    handle, cause = ANSWERS[case]
    timeout = 0.2 if cause == "does not answer" else 5.0
    async with answering(handle) as port, StateReader(port=port, timeout=timeout) as reader:
        with pytest.raises(Unreadable, match=cause):
            await reader.read("127.0.0.1")


async def test_compressed_answers_are_not_decompressed() -> None:
    """A bomb that fits the limit on the wire."""
    head = f"{GZIP}\r\nContent-Length: {len(SMALL_BOMB)}"
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
