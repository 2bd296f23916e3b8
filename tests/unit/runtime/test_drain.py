"""SIGTERM in every phase: whole streams, no newcomer answered wrongly, and an end in time."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from llmservice_runtime.contract import DrainReport, Phase

from tests.support.stand_in.behaviour import Behaviour
from tests.unit.runtime.runtime_harness import NEVER, QUICK, supervised

LOGS = Path(__file__).parents[1] / "fixtures" / "vllm_logs"


async def test_a_stream_in_flight_is_delivered_whole(tmp_path: Path) -> None:
    async with supervised(tmp_path) as server:
        await server.ready()
        stream = await server.stream()
        server.signal()
        draining = await server.until(lambda state: state.phase is Phase.DRAINING)
        assert not draining.ready
        assert draining.started
        server.release()
        answer = await stream
        assert answer.body.count("data: ") == 21
        assert answer.body.endswith("data: [DONE]\n\n")
        assert await server.ended() == 0
    assert not (tmp_path / "termination-log").exists()


async def test_newcomers_are_served_first_and_refused_later(tmp_path: Path) -> None:
    async with supervised(tmp_path, propagation_seconds=NEVER) as server:
        await server.ready()
        stream = await server.stream()
        server.signal()
        await server.until(lambda state: not state.ready)
        assert (await server.complete()).status == 200
        server.jump(NEVER)
        await server.until(lambda state: state.progress == "waiting for the requests in flight")
        late = await server.complete()
        assert late.status == 503
        assert "try again" in late.body
        assert await server.probe("/livez") == 200
        server.release()
        assert (await stream).body.endswith("data: [DONE]\n\n")
        assert await server.ended() == 0


async def test_pooled_connections_are_closed_while_draining(tmp_path: Path) -> None:
    async with supervised(tmp_path, propagation_seconds=NEVER) as server:
        await server.ready()
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            assert b"connection: close" not in await asyncio.to_thread(_request, connection)
            server.signal()
            await server.until(lambda state: state.phase is Phase.DRAINING)
            assert b"connection: close" in await asyncio.to_thread(_request, connection)
            assert await asyncio.to_thread(connection.recv, 1) == b""


async def test_streams_that_take_too_long_are_ended_and_counted(tmp_path: Path) -> None:
    async with supervised(tmp_path) as server:
        await server.ready()
        stream = await server.stream()
        server.signal()
        await server.until(lambda state: state.progress == "waiting for the requests in flight")
        server.jump(2 * NEVER)
        ended = await stream
        assert '"finish_reason":"abort"' in ended.body
        assert ended.body.endswith("data: [DONE]\n\n")
        assert await server.ended() == 0
        assert "requests cut by the drain timeout: 1" in "".join(server.log)
        assert server.failure() is None
    assert DrainReport.from_json((tmp_path / "termination-log").read_text()) == DrainReport(cut=1)


async def test_a_second_sigterm_cuts_nothing(tmp_path: Path) -> None:
    """A kubelet that was restarted meanwhile tells every pod again."""
    async with supervised(tmp_path) as server:
        await server.ready()
        stream = await server.stream()
        server.signal()
        await server.until(lambda state: state.progress == "waiting for the requests in flight")
        server.signal()
        await server.logged("received SIGTERM again")
        server.release()
        assert (await stream).body.endswith("data: [DONE]\n\n")
        assert await server.ended() == 0


async def test_a_sigint_hurries(tmp_path: Path) -> None:
    async with supervised(tmp_path, propagation_seconds=NEVER) as server:
        await server.ready()
        stream = await server.stream()
        server.signal()
        await server.until(lambda state: state.phase is Phase.DRAINING)
        server.signal(signal.SIGINT)
        assert await server.ended() == 0
        await stream


@pytest.mark.parametrize("swallowed", [0, 1])
async def test_sigterm_while_loading(tmp_path: Path, swallowed: int) -> None:
    loading = Behaviour(start_seconds=NEVER, swallowed_terms=swallowed, log=str(LOGS / "start.log"))
    timing = replace(QUICK, stop_loading_seconds=NEVER)
    async with supervised(tmp_path, loading, timing=timing) as server:
        await server.until(lambda state: state.measured.vllm_version is not None)
        server.signal()
        if swallowed:
            await server.logged("swallowed a SIGTERM")
            server.jump(2 * NEVER)
        assert await server.ended() == 0
        assert server.failure() is None
        assert "was killed" not in "".join(server.log)


async def test_sigterm_during_the_preflight(tmp_path: Path) -> None:
    async with supervised(tmp_path, preflight=(sys.executable, "-c", "import signal; signal.pause()")) as server:
        await server.until(lambda state: state.phase is Phase.PREFLIGHT)
        server.signal()
        assert await server.ended() == 0


async def test_sigterm_during_the_first_request(tmp_path: Path) -> None:
    async with supervised(tmp_path, Behaviour(first_request="hang")) as server:
        await server.until(lambda state: state.phase is Phase.SMOKE)
        server.signal(signal.SIGINT)
        assert await server.ended() == 0


async def test_a_server_deaf_to_sigterm_is_killed_in_time(tmp_path: Path) -> None:
    async with supervised(tmp_path, Behaviour(deaf=True)) as server:
        await server.ready()
        server.signal()
        assert await server.ended() == 0
        assert "was killed" in "".join(server.log)


async def test_without_the_middleware_vllms_own_drain_is_waited_for(tmp_path: Path) -> None:
    async with supervised(tmp_path, Behaviour(stop_seconds=2.5), middleware=False) as server:
        await server.ready()
        server.signal()
        assert await server.ended() == 0
        assert "was killed" not in "".join(server.log)


def _request(connection: socket.socket) -> bytes:
    body = b'{"model":"m","prompt":"a"}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    connection.sendall(head + body)
    received = b""
    while b"choices" not in received:
        received += connection.recv(4096)
    return received
