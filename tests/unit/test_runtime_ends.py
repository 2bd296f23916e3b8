"""How a start or a server may end, each through a real supervisor: its own reason, evidence, and what to do."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from llmservice_runtime.contract import Failure, FailureReason, Phase
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.health.start_watch import StallLimits

from tests.support.stand_in.behaviour import Behaviour, Fate
from tests.unit.runtime_harness import Server, supervised

STARTS: list[tuple[str, FailureReason, str, str]] = [
    ("bad-flag", R.INVALID_FLAG, "--no-such-flag", "extraArgs"),
    ("bad-value", R.INVALID_FLAG, "--max-num-seqs", "extraArgs"),
    ("model-missing", R.MODEL_NOT_FOUND, "/models/absent", "spec.model.uri"),
    ("gated-model", R.MODEL_ACCESS_DENIED, "401", "hfTokenSecretRef"),
    ("unreadable-weights", R.WEIGHTS_UNREADABLE, "model.safetensors", "readable"),
    ("unsupported-architecture", R.UNSUPPORTED_ARCHITECTURE, "NoSuchModelForCausalLM", "spec.runtime.image"),
    ("kv-cache-too-small", R.KV_CACHE_TOO_SMALL, "maximum model length", "maxModelLen"),
    ("gpu-out-of-memory", R.GPU_OUT_OF_MEMORY, "CUDA out of memory", "maxModelLen"),
    ("cpu-feature", R.CPU_FEATURE_MISSING, "requires x86 with AVX-512 or AMX", "spec.precision.kvCache"),
    ("exit-0", R.STARTUP_FAILED, "exit code 0", "log"),
]


async def failure_of(server: Server) -> Failure:
    """What it left when it ended, which is never with 0."""
    try:
        code = await server.ended(30)
    except TimeoutError:
        raise AssertionError(f"it goes on: {await server.state()}\n" + "".join(server.log)) from None
    assert code != 0
    failure = server.failure()
    assert failure is not None
    return failure


@pytest.mark.parametrize(("name", "reason", "words", "remedy"), STARTS, ids=[row[0] for row in STARTS])
async def test_a_start_that_fails(tmp_path: Path, name: str, reason: FailureReason, words: str, remedy: str) -> None:
    async with supervised(tmp_path, Behaviour(fails=name)) as server:
        failure = await failure_of(server)
    assert (failure.reason, failure.phase) == (reason, Phase.LOADING)
    assert words in failure.message
    assert remedy in failure.remedy
    assert failure.evidence or name == "exit-0"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        pytest.param(signal.SIGILL, R.ILLEGAL_INSTRUCTION, id="SIGILL"),
        pytest.param(signal.SIGBUS, R.SHARED_MEMORY_TOO_SMALL, id="SIGBUS"),
        pytest.param(signal.SIGSEGV, R.ACCELERATOR_FAULT, id="SIGSEGV"),
        pytest.param(signal.SIGKILL, R.ENGINE_DIED, id="SIGKILL"),
    ],
)
async def test_a_signal(tmp_path: Path, number: signal.Signals, reason: FailureReason) -> None:
    async with supervised(tmp_path) as server:
        await server.ready()
        os.kill(server.engine(), number)
        failure = await failure_of(server)
        assert server.process.returncode == 128 + number
    assert (failure.reason, failure.phase, failure.signal) == (reason, Phase.SERVING, number)
    assert failure.remedy


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        pytest.param("die", R.ENGINE_DIED, id="the engine dies of it"),
        pytest.param("exit0", R.ENGINE_DIED, id="with exit code 0"),
        pytest.param("sigill", R.ILLEGAL_INSTRUCTION, id="SIGILL of a worker"),
        pytest.param("no-compiler", R.COMPILATION_FAILED, id="no compiler"),
        pytest.param("error", R.SMOKE_REQUEST_FAILED, id="an error"),
        pytest.param("hang", R.SMOKE_REQUEST_FAILED, id="no answer"),
    ],
)
async def test_the_first_request(tmp_path: Path, fate: Fate, reason: FailureReason) -> None:
    """Without an answer to it nobody is told that the server started."""
    stalls, told = StallLimits(stall_seconds=5), set[int]()
    async with supervised(tmp_path, Behaviour(first_request=fate), stall_limits=stalls, start_seconds=1) as server:
        while server.process.returncode is None:
            told |= {await server.probe("/startupz"), await server.probe("/readyz")}
            await asyncio.sleep(0.02)
        assert told == {0, 503}, "0: nobody listens yet, or any more"
        failure = await failure_of(server)
        assert server.process.returncode != 0
    assert (failure.reason, failure.phase) == (reason, Phase.SMOKE)


@pytest.mark.parametrize(("prompt", "reason"), [("@die", R.ENGINE_DIED), ("@sigill", R.ILLEGAL_INSTRUCTION)])
async def test_an_engine_that_dies_while_it_serves(tmp_path: Path, prompt: str, reason: FailureReason) -> None:
    async with supervised(tmp_path) as server:
        await server.ready()
        waiting = server.hold(prompt)
        failure = await failure_of(server)
        waiting.cancel()
    assert (failure.reason, failure.phase) == (reason, Phase.SERVING)


# Starts that take long


async def test_a_start_past_its_budget_goes_on_while_it_moves_and_says_so(tmp_path: Path) -> None:
    slow = Behaviour(start_seconds=7, shards=60)
    async with supervised(
        tmp_path, slow, stall_limits=StallLimits(stall_seconds=5), start_seconds=0.5, usual_seconds=2
    ) as it:
        state = await it.until(lambda state: state.slow)
        assert (state.phase, state.started, state.ready) == (Phase.LOADING, False, False)
        assert (state.start_budget_seconds, state.usual_start_seconds) == (0.5, 2)
        assert await it.probe("/startupz") == 503
        reading = await it.until(lambda state: state.slow and state.progress.startswith("loading the weights: "))
        assert reading.failure is None
        ready = await it.ready()
        assert (ready.slow, ready.start_budget_seconds, ready.usual_start_seconds) == (False, None, None)
        assert "start exceeds its budget of 0.5 s but makes progress: continuing" in "".join(it.log)


async def test_a_start_that_stopped_says_where(tmp_path: Path) -> None:
    stalled = Behaviour(start_seconds=0.5, shards=4, stalls_at=2)
    async with supervised(tmp_path, stalled, stall_limits=StallLimits(stall_seconds=3), start_seconds=0.5) as server:
        failure = await failure_of(server)
    assert (failure.reason, failure.phase) == (R.START_TIMEOUT, Phase.LOADING)
    assert "Last step: loading the weights: 50%." in failure.message
    assert "storage" in failure.remedy
    assert failure.evidence


async def test_a_start_that_only_reads_or_computes_is_no_failure(tmp_path: Path) -> None:
    """No word in the log for longer than anything may stand still."""
    (tmp_path / "weights").write_bytes(bytes(1 << 20))
    (tmp_path / "engine.py").write_text(
        "import pathlib, sys, time\n"
        "until = time.monotonic() + 5\n"
        "while time.monotonic() < until: pathlib.Path(sys.argv[1]).read_bytes()\n"
        "sys.exit(3)\n"
    )
    command = (sys.executable, str(tmp_path / "engine.py"), str(tmp_path / "weights"))
    async with supervised(
        tmp_path, command=command, stall_limits=StallLimits(stall_seconds=3), start_seconds=0.2
    ) as server:
        await server.until(lambda state: state.slow)
        failure = await failure_of(server)
    assert (failure.reason, failure.exit_code) == (R.STARTUP_FAILED, 3)


async def test_a_process_that_does_nothing_at_all(tmp_path: Path) -> None:
    nothing = (sys.executable, "-c", "import time; time.sleep(60)")
    async with supervised(
        tmp_path, command=nothing, stall_limits=StallLimits(stall_seconds=0.5), start_seconds=0.2
    ) as server:
        failure = await failure_of(server)
    assert failure.reason is R.START_TIMEOUT
    assert "Last step: starting vLLM." in failure.message


async def test_the_pods_environment_may_say_what_a_start_may_take(tmp_path: Path) -> None:
    told = {"LLMSERVICE_START_SECONDS": "0.3", "LLMSERVICE_STALL_SECONDS": "0.3"}
    async with supervised(tmp_path, Behaviour(stalls_at=0), variables=told) as server:
        failure = await failure_of(server)
    assert failure.reason is R.START_TIMEOUT
    assert "budget of 0.3 s" in failure.message


async def test_a_variable_that_makes_no_sense_is_named(tmp_path: Path) -> None:
    async with supervised(tmp_path, variables={"LLMSERVICE_START_SECONDS": "soon"}) as server:
        assert await server.ended() == 1
    assert "LLMSERVICE_START_SECONDS in spec.runtime.env is 'soon': give a number of seconds" in "".join(server.log)
