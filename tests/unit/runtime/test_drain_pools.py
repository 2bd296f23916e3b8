"""Pooled connections through a drain: none is refused or cut before its client was told that it ends.

What these tests are about happens on connections, so they hold connections: of a pool as OpenAI's client has it, and
bare ones.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from llmservice_runtime import contract, shared_counters
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor import drain
from llmservice_runtime.supervisor.vllm_process import Flags, environment

from tests.support.patience import PATIENCE, until
from tests.support.stand_in.fates import HELD
from tests.unit.runtime.runtime_harness import NEVER, QUICK, Server, supervised

REFUSING = "waiting for the requests in flight"


class Connection:
    """One keep-alive connection, whose client reads each answer to its end before it asks again."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, **fields: object) -> None:
        body = json.dumps({"model": "m", "prompt": "a", "max_tokens": 2, **fields}).encode()
        lines = ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json")
        self._writer.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        await self._writer.drain()

    async def head(self) -> str:
        """Of the next answer."""
        return (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()

    async def rest(self, head: str) -> bytes:
        """Of the answer whose head was read."""
        if "transfer-encoding: chunked" not in head:
            return await self._reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
        return await self._reader.readuntil(b"0\r\n\r\n")

    async def ask(self, **fields: object) -> str:
        """The head of the answer to a request; the answer is read whole."""
        await self.send(**fields)
        head = await self.head()
        await self.rest(head)
        return head

    async def ended(self) -> bool:
        """Whether the server ends it now."""
        return await asyncio.wait_for(self._reader.read(1), PATIENCE) == b""

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


class Clients:
    """Connections that are closed when a test ends."""

    def __init__(self) -> None:
        self._made: list[Connection] = []

    async def to(self, server: Server) -> Connection:
        self._made.append(Connection(*await asyncio.open_connection("127.0.0.1", server.port)))
        return self._made[-1]

    async def leave(self) -> None:
        for connection in self._made:
            await connection.close()


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    made = Clients()
    yield made
    await made.leave()


async def test_a_connection_that_was_idle_is_served_once_more_when_newcomers_are_refused(
    tmp_path: Path, clients: Clients
) -> None:
    async with supervised(tmp_path) as server:
        await server.ready()
        idle, silent = await clients.to(server), await clients.to(server)
        assert "connection: close" not in await idle.ask()
        stream = await clients.to(server)
        await stream.send(prompt=HELD, stream=True)
        await stream.head()
        server.signal()
        await server.until(lambda state: state.progress == REFUSING)
        newcomer = await clients.to(server)
        assert (await newcomer.ask()).startswith("http/1.1 503")
        for connection in (idle, silent):
            head = await connection.ask()
            assert head.startswith("http/1.1 200")
            assert "connection: close" in head
            assert await connection.ended()
        server.release()


async def test_after_an_answer_that_began_before_the_drain_the_connection_is_good_for_another(
    tmp_path: Path, clients: Clients
) -> None:
    """Its head said nothing of an end, so the client asks again at once."""
    async with supervised(tmp_path, timing=replace(QUICK, linger_seconds=NEVER)) as server:
        await server.ready()
        connection = await clients.to(server)
        await connection.send(prompt=HELD, stream=True)
        head = await connection.head()
        assert "connection: close" not in head
        server.signal()
        await server.until(lambda state: state.progress == REFUSING)
        server.release()
        assert b"[DONE]" in await connection.rest(head)
        head = await connection.ask()
        assert head.startswith("http/1.1 200")
        assert "connection: close" in head
        assert await connection.ended()
        # And nobody lingers once all are told.
        assert await server.ended() == 0


async def test_a_client_that_hung_up_is_not_waited_for(tmp_path: Path, clients: Clients) -> None:
    async with supervised(tmp_path, timing=replace(QUICK, linger_seconds=NEVER)) as server:
        await server.ready()
        connection = await clients.to(server)
        await connection.send(stream=True, max_tokens=10)
        head = await connection.head()
        server.signal()
        await connection.rest(head)
        await connection.close()
        assert await server.ended() == 0


@pytest.mark.parametrize("tokens", [1, 30], ids=["short answers", "streams of more than a second"])
async def test_a_pool_as_openais_client_has_it_loses_nothing(tmp_path: Path, tokens: int) -> None:
    """Eight users who ask again as soon as they are answered; as at a Service, nobody connects to a pod that goes."""
    lost: list[str] = []
    served = 0
    async with supervised(tmp_path, propagation_seconds=1) as server:
        await server.ready()
        url = f"http://127.0.0.1:{server.port}/v1/completions"
        stopped = asyncio.Event()

        async def user() -> None:
            nonlocal served
            async with httpx.AsyncClient(timeout=PATIENCE, verify=False) as client:
                while not stopped.is_set():
                    body = {"model": "m", "prompt": "a", "max_tokens": tokens, "stream": True}
                    try:
                        answer = await client.post(url, json=body)
                        whole = answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
                        lost.extend([] if whole and '"finish_reason":"abort"' not in answer.text else [answer.text])
                    except httpx.HTTPError as error:
                        lost.append(repr(error))
                    served += 1
                    if answer.headers.get("connection") == "close":
                        return

        users = [asyncio.create_task(user()) for _ in range(8)]
        await until(lambda: served >= 16)
        server.signal()
        assert await server.ended() == 0
        stopped.set()
        await asyncio.gather(*users)
    assert lost == []


async def test_what_slips_in_before_the_last_refusal_is_answered(tmp_path: Path, clients: Clients) -> None:
    """vLLM would answer it 200 with an empty, aborted completion."""
    async with supervised(tmp_path) as server:
        await server.ready()
        stopping = asyncio.create_task(server.until(lambda state: state.progress == "stopping vLLM"))
        connections = [await clients.to(server) for _ in range(20)]
        server.signal()
        answered = []
        for connection in connections:
            await server.passed(0.02)
            try:
                answered.append((await connection.ask(max_tokens=3)).partition("\r\n")[0])
            except (asyncio.IncompleteReadError, ConnectionError):
                break
        await stopping
        assert set(answered) <= {"http/1.1 200 ok", "http/1.1 503 service unavailable"}
        assert await server.ended() == 0
        assert '"finish_reason":"abort"' not in "".join(server.log)


def test_the_time_before_newcomers_are_refused_outlasts_common_pools() -> None:
    assert contract.PROPAGATION_SECONDS > contract.POOL_SECONDS > 5


def test_vllm_keeps_idle_connections_longer_than_any_pool() -> None:
    made = environment(ServeOptions(), Flags(), {}, print)
    assert int(made["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]) > 3600
    assert (
        environment(ServeOptions(), Flags(), {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "7"}, print)[
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
        ]
        == "7"
    )


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_kernels_table_names_who_is_connected(family: socket.AddressFamily, host: str) -> None:
    """Those among them that nobody has accepted yet; an IPv4 client of a socket for both families as what it is."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        with socket.socket(family) as client:
            client.connect((host, port))
            assert drain.established(port) == {(host, client.getsockname()[1])}


def test_a_machine_without_ipv6_has_one_table(tmp_path: Path) -> None:
    row = "   0: 0100007F:1F40 0700F40A:C350 01 00000000:00000000 00:00000000 00000000  1000"
    other = row.replace(" 01 ", " 06 ").replace("C350", "C351")
    (tmp_path / "tcp").write_text("\n".join(["  sl  local_address rem_address   st", row, other, ""]))
    assert drain.established(8000, tmp_path) == {("10.244.0.7", 50000)}


def test_a_board_forgets_the_connections_of_its_predecessor(tmp_path: Path) -> None:
    path = str(tmp_path / "board")
    drain.record_peers(path, frozenset({("10.0.0.1", 1)}))
    assert shared_counters.peers_file(path).exists()
    shared_counters.create(path).close()
    assert not shared_counters.peers_file(path).exists()
