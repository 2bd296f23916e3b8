"""The state's port: versioned JSON that comes back the same, and a server that nothing upsets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from llmservice_runtime.contract import Failure, FailureReason, Measured, Phase, State, grace_period_seconds
from llmservice_runtime.supervisor.client import http_request
from llmservice_runtime.supervisor.state_server import Reply, serve

from tests.support.http_servers import streams
from tests.support.patience import PATIENCE
from tests.support.ports import free_port

STATE = State(
    Phase.SERVING,
    started=True,
    ready=True,
    progress="p",
    phase_seconds=1.5,
    model_names=("a", "b"),
    measured=Measured(kv_cache_tokens=7, start_seconds=3.5),
    failure=Failure(FailureReason.ENGINE_DIED, "m", "r", ("e",), Phase.LOADING, 1),
)


@pytest.mark.parametrize("state", [STATE, State(Phase.PREFLIGHT)], ids=["full", "first"])
def test_round_trip(state: State) -> None:
    assert State.from_json(state.to_json()) == state


def test_shape() -> None:
    document = json.loads(STATE.to_json())
    assert document["version"] == 1
    assert document["measured"] == {"kvCacheTokens": 7, "startSeconds": 3.5}
    assert document["failure"]["reason"] == "EngineDied"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version":2,"phase":"Serving"}', '{"version":1,"phase":"New"}'])
def test_another_versions_state_is_unknown(text: str) -> None:
    assert State.from_json(text) is None


def test_fields_of_a_later_version_are_ignored() -> None:
    document = json.loads(STATE.to_json())
    document["more"] = 1
    document["measured"]["more"] = 1
    assert State.from_json(json.dumps(document)) == STATE


NEW_FAILURE = {"reason": "EngineDied", "message": "m", "remedy": "r", "phase": "Warming"}
LATER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a phase, once started": ({"phase": "Warming"}, {"phase": Phase.SERVING}),
    "a phase, before": ({"phase": "Warming", "started": False}, {"phase": Phase.LOADING, "started": False}),
    "a step": ({"transfer": {"artifact": "model", "step": "Unpacking"}}, {"transfer": None}),
    "a failure's phase": ({"failure": NEW_FAILURE}, {"failure": Failure(FailureReason.ENGINE_DIED, "m", "r")}),
    "a reason": (
        {"failure": {"reason": "New", "message": "m", "remedy": "r"}},
        {"failure": Failure(FailureReason.ENGINE_DIED, "m", "r")},
    ),
}


@pytest.mark.parametrize("case", LATER)
def test_words_of_a_later_runtime_leave_the_rest_readable(case: str) -> None:
    changes, expected = LATER[case]
    state = State.from_json(json.dumps(json.loads(STATE.to_json()) | changes))
    assert state == replace(STATE, **expected)


def test_grace_period() -> None:
    assert grace_period_seconds(120) == 150
    assert grace_period_seconds(0, propagation_seconds=1) == 21


@asynccontextmanager
async def listening() -> AsyncIterator[int]:
    port = free_port()
    server = await serve(port, lambda path: Reply(200, f"path {path}"))
    try:
        yield port
    finally:
        server.close()


async def test_answers_get() -> None:
    async with listening() as port:
        answer = await http_request(port, "/a?b=c", timeout=PATIENCE)
        assert (answer.status, answer.body) == (200, "path /a")
        assert (await http_request(port, "/a", method="POST", body="x", timeout=PATIENCE)).status == 405


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"\r\n\r\n", b"GET", b"x" * 100_000], ids=range(4))
async def test_survives(sent: bytes) -> None:
    async with listening() as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.close()
        assert (await http_request(port, "/a", timeout=PATIENCE)).status == 200


@pytest.mark.parametrize(
    ("reply", "body"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", "ab", id="length"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nab", "ab", id="until the end"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n", "ab", id="chunks"
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", None, id="cut"),
        pytest.param(b"nonsense\r\n\r\n", None, id="no HTTP"),
        pytest.param(b"", None, id="nothing"),
    ],
)
async def test_reads(reply: bytes, body: str | None) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)

    async with streams(handle) as port:
        if body is None:
            with pytest.raises(OSError):
                await http_request(port, "/", timeout=PATIENCE)
        else:
            assert (await http_request(port, "/", timeout=PATIENCE)).body == body


async def test_a_silent_server_is_no_answer() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with streams(handle) as port:
        with pytest.raises(OSError, match="no answer to GET /"):
            await http_request(port, "/", timeout=0.1)
