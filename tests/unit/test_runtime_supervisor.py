"""The supervisor's life with a server that is well, and with one that ends by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest
from llmservice_runtime.contract import FailureReason, Phase
from llmservice_runtime.supervisor.dependencies import Dependencies

from tests.support.stand_in.behaviour import Behaviour, Fate
from tests.unit.runtime_harness import children, supervised

LOGS = Path(__file__).parent / "fixtures" / "vllm_logs"


async def test_becomes_ready_after_a_first_request(tmp_path: Path) -> None:
    behaviour = Behaviour(log=str(LOGS / "start.log"), start_seconds=0.5)
    async with supervised(tmp_path, behaviour) as server:
        loading = await server.until(lambda state: state.phase is Phase.LOADING)
        assert not loading.started
        assert await server.probe("/startupz") == 503
        assert await server.probe("/livez") == 200
        state = await server.ready()
        assert state.phase is Phase.SERVING
        assert state.model_names == ("m",)
        assert state.measured.vllm_version == "0.32.0"
        assert state.measured.kv_cache_tokens == 524_288
        assert state.measured.max_concurrency == 256.0
        assert state.measured.start_seconds is not None
        assert [await server.probe(path) for path in ("/startupz", "/readyz", "/livez", "/other")] == [
            200,
            200,
            200,
            404,
        ]
        assert (await server.complete()).status == 200


async def test_passes_the_log_through(tmp_path: Path) -> None:
    async with supervised(tmp_path, Behaviour(log=str(LOGS / "start.log"))) as server:
        await server.ready()
        assert (LOGS / "start.log").read_text() in "".join(server.log)


@pytest.mark.parametrize(
    ("log", "code", "reason", "exit_code"),
    [
        pytest.param("bad_flag", 2, FailureReason.INVALID_FLAG, 2, id="bad flag"),
        pytest.param("max_model_len", 1, FailureReason.MAX_MODEL_LEN_TOO_LARGE, 1, id="too long"),
        pytest.param("start", 0, FailureReason.STARTUP_FAILED, 1, id="exit 0 is no success"),
    ],
)
async def test_end_while_loading(tmp_path: Path, log: str, code: int, reason: FailureReason, exit_code: int) -> None:
    behaviour = Behaviour(log=str(LOGS / f"{log}.log"), exit_loading=code)
    async with supervised(tmp_path, behaviour) as server:
        assert await server.ended() == exit_code
        failure = server.failure()
        assert failure is not None
        assert (failure.reason, failure.phase, failure.exit_code) == (reason, Phase.LOADING, code)


async def test_a_server_that_dies_while_serving_is_a_failure_even_with_exit_code_0(tmp_path: Path) -> None:
    async with supervised(tmp_path) as server:
        await server.ready()
        with pytest.raises(OSError):
            await server.complete(prompt="@exit0")
        assert await server.ended() == 1
        failure = server.failure()
        assert failure is not None
        assert (failure.reason, failure.phase) == (FailureReason.ENGINE_DIED, Phase.SERVING)


@pytest.mark.parametrize(
    ("first_request", "reason", "words"),
    [
        pytest.param("error", FailureReason.SMOKE_REQUEST_FAILED, "the engine is unwell", id="answers 500"),
        pytest.param("no-compiler", FailureReason.COMPILATION_FAILED, "No working C++ compiler", id="dies of it"),
    ],
)
async def test_a_first_request_that_fails_is_never_ready(
    tmp_path: Path, first_request: Fate, reason: FailureReason, words: str
) -> None:
    async with supervised(tmp_path, Behaviour(first_request=first_request)) as server:
        seen = []
        while server.process.returncode is None:
            seen.append(await server.probe("/readyz"))
            await asyncio.sleep(0.02)
        assert 200 not in seen
        failure = server.failure()
        assert failure is not None
        assert failure.reason is reason
        assert words in failure.message
        assert failure.phase is Phase.SMOKE


async def test_leaves_no_orphans(tmp_path: Path) -> None:
    async with supervised(tmp_path) as server:
        await server.ready()
        (orphan,) = children(server.engine())
        assert _lives(orphan)
        os.kill(server.engine(), signal.SIGKILL)
        assert await server.ended() == 128 + signal.SIGKILL
        assert not _lives(orphan)


async def test_the_preflight_ends_it_before_vllm_starts(tmp_path: Path) -> None:
    async with supervised(tmp_path, preflight=Dependencies().preflight, expected_version="0.1.0") as server:
        assert await server.ended(30) == 1
        failure = server.failure()
        assert failure is not None
        assert failure.phase is Phase.PREFLIGHT
        assert failure.reason in (FailureReason.VERSION_MISMATCH, FailureReason.ENGINE_MISSING)


@pytest.mark.parametrize(
    "preflight", [pytest.param(("false",), id="fails"), pytest.param(("echo", "no JSON"), id="talks nonsense")]
)
async def test_a_broken_preflight_keeps_no_server_from_starting(tmp_path: Path, preflight: tuple[str, ...]) -> None:
    async with supervised(tmp_path, preflight=preflight) as server:
        await server.ready()


async def test_a_missing_engine_is_a_failure(tmp_path: Path) -> None:
    async with supervised(tmp_path, command=("/no/such/python",)) as server:
        assert await server.ended() == 1
        failure = server.failure()
        assert failure is not None
        assert failure.reason is FailureReason.ENGINE_MISSING


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, ""), (socket.AF_INET6, "::")], ids=["IPv4", "IPv6 alone"]
)
async def test_a_port_that_another_container_has_is_a_failure(
    tmp_path: Path, family: socket.AddressFamily, address: str
) -> None:
    with socket.create_server((address, 0), family=family) as taken:
        port = taken.getsockname()[1]
        async with supervised(tmp_path, state_port=port) as server:
            assert await server.ended() == 1
            failure = server.failure()
            assert failure is not None, "".join(server.log)
            assert failure.reason is FailureReason.INVALID_CONFIGURATION
            assert str(port) in failure.message
            assert "podTemplate" in failure.remedy
            assert not any("Traceback" in line for line in server.log)


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    os.kill(pid, 0)
    return stat.rpartition(")")[2].split()[0] != "Z"
