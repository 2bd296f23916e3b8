"""A real supervisor from start to end: a server that is well, and each way in which one fails or ends by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from llmservice_runtime.contract import GPU, Phase
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.health.start_watch import StallLimits
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.preflight.preflight import reported
from llmservice_runtime.supervisor.dependencies import Dependencies
from llmservice_runtime.supervisor.starting import with_environment

from tests.support.patience import PATIENCE
from tests.support.stand_in.behaviour import Behaviour, Fate
from tests.unit.runtime.runtime_harness import QUICK, WELL, children, supervised

LOGS = Path(__file__).parents[1] / "fixtures" / "vllm_logs"


async def test_becomes_ready_after_a_first_request(tmp_path: Path) -> None:
    behaviour = Behaviour(log=str(LOGS / "start.log"), start_seconds=2)
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
        probes = {path: await server.probe(path) for path in ("/startupz", "/readyz", "/livez", "/other")}
        assert probes == {"/startupz": 200, "/readyz": 200, "/livez": 200, "/other": 404}
        assert (await server.complete()).status == 200
        assert (LOGS / "start.log").read_text() in "".join(server.log)
        assert server.peak_mib() < 80, "the supervisor stays small"


async def test_says_that_no_probe_arrives(tmp_path: Path) -> None:
    timing = replace(QUICK, unprobed_seconds=0.3)
    async with supervised(tmp_path, WELL, timing=timing) as server:
        assert (await server.until(lambda state: state.unprobed)).ready
        async with asyncio.timeout(PATIENCE):
            while (await server.until(lambda state: state.ready)).unprobed:
                assert await server.probe("/readyz") == 200


@pytest.mark.parametrize(
    ("log", "code", "reason", "exit_code"),
    [
        pytest.param("bad_flag", 2, R.INVALID_FLAG, 2, id="bad flag"),
        pytest.param("max_model_len", 1, R.MAX_MODEL_LEN_TOO_LARGE, 1, id="too long"),
        pytest.param("start", 0, R.STARTUP_FAILED, 1, id="exit 0 is no success"),
    ],
)
async def test_end_while_loading(tmp_path: Path, log: str, code: int, reason: R, exit_code: int) -> None:
    behaviour = Behaviour(log=str(LOGS / f"{log}.log"), exit_loading=code)
    async with supervised(tmp_path, behaviour) as server:
        failure = await server.failed(exit_code)
    assert (failure.reason, failure.phase, failure.exit_code) == (reason, Phase.LOADING, code)


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
        failure = await server.failed()
    assert failure.phase is Phase.PREFLIGHT
    assert failure.reason in (R.VERSION_MISMATCH, R.ENGINE_MISSING)


@pytest.mark.parametrize(
    "preflight", [pytest.param(("false",), id="fails"), pytest.param(("echo", "no JSON"), id="talks nonsense")]
)
async def test_a_broken_preflight_keeps_no_server_from_starting(tmp_path: Path, preflight: tuple[str, ...]) -> None:
    async with supervised(tmp_path, preflight=preflight) as server:
        await server.ready()


async def test_a_failed_start_names_the_gpu_that_the_preflight_found(tmp_path: Path) -> None:
    gpu = GPU("Tesla T4", 14.56)
    behaviour = Behaviour(log=str(LOGS / "kv_cache_too_small.log"), exit_loading=1)
    preflight = ("sh", "-c", f"echo '{reported(None, gpu)}'")
    async with supervised(tmp_path, behaviour, preflight=preflight) as server:
        assert (await server.failed()).gpu == gpu


async def test_a_missing_engine_is_a_failure(tmp_path: Path) -> None:
    async with supervised(tmp_path, engine=("/no/such/python",)) as server:
        assert (await server.failed()).reason is R.ENGINE_MISSING


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, ""), (socket.AF_INET6, "::")], ids=["IPv4", "IPv6 alone"]
)
async def test_a_port_that_another_container_has_is_a_failure(
    tmp_path: Path, family: socket.AddressFamily, address: str
) -> None:
    with socket.create_server((address, 0), family=family) as taken:
        port = taken.getsockname()[1]
        async with supervised(tmp_path, state_port=port) as server:
            failure = await server.failed()
            assert failure.reason is R.INVALID_CONFIGURATION
            assert str(port) in failure.message
            assert "podTemplate" in failure.remedy
            assert not any("Traceback" in line for line in server.log)


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        pytest.param("die", R.ENGINE_DIED, id="the engine dies of it"),
        pytest.param("no-compiler", R.COMPILATION_FAILED, id="no compiler"),
        pytest.param("error", R.SMOKE_REQUEST_FAILED, id="an error"),
        pytest.param("hang", R.SMOKE_REQUEST_FAILED, id="no answer"),
    ],
)
async def test_the_first_request(tmp_path: Path, fate: Fate, reason: R) -> None:
    """Without an answer to it nobody is told that the server started."""
    statuses = set[int]()
    timing = replace(QUICK, stop_serving_seconds=0.5)
    async with supervised(tmp_path, Behaviour(first_request=fate), timing=timing, start_seconds=1) as server:
        while server.process.returncode is None:
            state = await server.state() if fate == "hang" and not server.clock.ahead else None
            if state is not None and state.phase is Phase.SMOKE:
                server.jump(StallLimits().stall_seconds)
            statuses |= {await server.probe("/startupz"), await server.probe("/readyz")}
            await asyncio.sleep(0.02)
        statuses.add(await server.probe("/startupz"))
        assert statuses == {0, 503}, "0: nobody listens any more"
        failure = await server.failed()
    assert (failure.reason, failure.phase) == (reason, Phase.SMOKE)


@pytest.mark.parametrize(
    ("how", "reason", "code"),
    [("@die", R.ENGINE_DIED, 1), ("@exit0", R.ENGINE_DIED, 1), ("SIGSEGV", R.ENGINE_DIED, 128 + signal.SIGSEGV)],
)
async def test_an_engine_that_dies_while_it_serves(tmp_path: Path, how: str, reason: R, code: int) -> None:
    async with supervised(tmp_path) as server:
        await server.ready()
        waiting = server.hold(how)
        if how == "SIGSEGV":
            os.kill(server.engine(), signal.SIGSEGV)
        failure = await server.failed(code)
        waiting.cancel()
    assert (failure.reason, failure.phase) == (reason, Phase.SERVING)
    assert failure.remedy


async def test_a_start_past_its_budget_goes_on_while_it_moves_and_says_so(tmp_path: Path) -> None:
    slow = Behaviour(start_seconds=0.5, shards=4, stalls_at=2)
    async with supervised(tmp_path, slow, start_seconds=0.5, usual_seconds=2) as it:
        state = await it.until(lambda state: state.slow)
        assert (state.phase, state.started, state.ready) == (Phase.LOADING, False, False)
        assert (state.start_budget_seconds, state.usual_start_seconds) == (0.5, 2)
        assert await it.probe("/startupz") == 503
        reading = await it.until(lambda state: state.slow and state.progress.startswith("loading the weights: "))
        assert reading.failure is None
        it.release()
        ready = await it.ready()
        assert (ready.slow, ready.start_budget_seconds, ready.usual_start_seconds) == (False, None, None)
        assert "start exceeds its budget of 0.5 s but makes progress: continuing" in "".join(it.log)


async def test_a_start_that_stopped_says_where(tmp_path: Path) -> None:
    stalled = Behaviour(start_seconds=0.5, shards=4, stalls_at=2)
    async with supervised(tmp_path, stalled, start_seconds=0.5) as server:
        await server.until(lambda state: state.slow and state.progress.startswith("loading the weights: 50%"))
        server.jump(StallLimits().stall_seconds)
        failure = await server.failed()
    assert (failure.reason, failure.phase) == (R.START_TIMEOUT, Phase.LOADING)
    assert "Last step: loading the weights: 50%." in failure.message
    assert "storage" in failure.remedy
    assert failure.evidence


def test_the_pods_environment_overrides_the_plans_times() -> None:
    names = ("START", "STALL", "HANG_UNREADY", "HANG_RESTART")
    given = Dependencies(environment={f"LLMSERVICE_{name}_SECONDS": str(n) for n, name in enumerate(names, 1)})
    options, dependencies = with_environment(ServeOptions(), given)
    assert (options.start_seconds, dependencies.stall_limits.stall_seconds) == (1, 2)
    assert (options.hang_unready_seconds, options.hang_restart_seconds) == (3, 4)


async def test_a_variable_that_makes_no_sense_is_named(tmp_path: Path) -> None:
    async with supervised(tmp_path, variables={"LLMSERVICE_START_SECONDS": "soon"}) as server:
        assert await server.ended() == 1
    assert "LLMSERVICE_START_SECONDS in spec.runtime.env is 'soon': give a number of seconds" in "".join(server.log)


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    os.kill(pid, 0)
    return stat.rpartition(")")[2].split()[0] != "Z"
