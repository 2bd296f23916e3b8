"""What goes wrong on a GPU, made on purpose, and what the product says of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace

from llmservice_runtime.contract import Failure

from benchmarks.gpu.served import traffic
from benchmarks.gpu.served.cases import SMALL, Case
from benchmarks.gpu.served.server import Place, Process, Server, StepFailed, bare, started
from benchmarks.gpu.served.serving import START_SECONDS, Serving, eight_billion, served
from benchmarks.gpu.served.steps import Context, Group, Step, Values, alone
from benchmarks.gpu.served.without_vllm import classified, recorded, said

EAGER = {"compilation": {"enforceEager": True}}
_HOLD = """
import sys, torch
held = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("held", flush=True)
sys.stdin.readline()
"""
_HUNG_SECONDS = 6
HELD = eight_billion(**EAGER)
TOO_HIGH = eight_billion(**EAGER, accelerator={"gpuMemoryUtilization": 0.999})
TOO_LONG = eight_billion(
    **EAGER,
    batching={"maxModelLen": 131072},
    runtime={"extraArgs": ["--kv-cache-memory-bytes", str(2**30)]},
)
SMALL_ONE = Case(SMALL, {"batching": {"maxModelLen": 8192}, **EAGER})


async def _refusal(server: Server) -> Failure:
    """Why it does not start; StepFailed where it does, or says nothing."""
    try:
        await server.until_ready()
    except StepFailed:
        if (failure := server.failure()) is not None:
            return failure
        raise
    raise StepFailed("it started", server.process.last_lines)


async def _refused(place: Place, case: Case) -> Values:
    """The reason of the supervisor's preflight, and that of vLLM's own log without it."""
    async with started(place, case) as server:
        preflight = said(await _refusal(server))
        seconds = round(time.monotonic() - server.process.began, 1)
    failure, _ = await bare(place, case, 60)
    return {"preflight": preflight, "seconds": seconds, "vllm": said(failure)}


async def _held(context: Context, _: object) -> Values:
    """Another process holds half of the GPU."""
    half = int(context.machine.memory_gib * 2**30 / 2)
    process = Process.start((sys.executable, "-c", _HOLD, str(half)), os.environ, context.place.log)
    try:
        while "held" not in process.texts:
            if process.popen.poll() is not None:
                raise StepFailed("the memory could not be held", process.last_lines)
            await asyncio.sleep(0.1)
        return await _refused(context.place, HELD)
    finally:
        process.kill()


async def _too_high(context: Context, _: object) -> Values:
    """A utilization that the driver's own share leaves no room for."""
    return await _refused(context.place, TOO_HIGH)


def _replayed_refusal(_: Context) -> Values:
    return {"vllm": classified(1, recorded("free-memory"))}


async def _too_long(context: Context, _: object) -> Values:
    """A request of the greatest length does not fit the cache that is left."""
    # On CPUs a cache has whole GiB, so that the tiny model needs more layers to be too large for one.
    deep = replace(TOO_LONG, flags=("--hf-overrides", '{"num_hidden_layers": 32}'))
    async with started(context.place, deep if context.machine.is_cpu else TOO_LONG) as server:
        failure = await _refusal(server)
        return {**said(failure), "estimated_max_len": server.figures().get("estimated_max_len")}


async def _hang(context: Context, ready: Serving) -> Values:
    """SIGSTOP to the engine under a request, and SIGCONT once the server is unready."""
    server, engine = ready.server, ready.server.engine()
    running = asyncio.create_task(traffic.one(server, traffic.text(32), 800))
    await traffic.until_running(server, 1)
    os.kill(engine, signal.SIGSTOP)
    began = time.monotonic()
    try:
        await _until(server, ready_is=False)
        unready = time.monotonic() - began
    finally:
        os.kill(engine, signal.SIGCONT)
    began = time.monotonic()
    await _until(server, ready_is=True)
    again = time.monotonic() - began
    await running
    return {"limit": _HUNG_SECONDS, "unready_after": round(unready, 1), "ready_again_after": round(again, 1)}


async def _until(server: Server, *, ready_is: bool) -> None:
    while (state := await server.state()) is None or state.ready is not ready_is:
        if server.process.popen.poll() is not None:
            raise StepFailed("the supervisor ended", server.process.last_lines)
        await asyncio.sleep(0.1)


async def _killed(context: Context, ready: Serving) -> Values:
    """SIGKILL to the engine under a request."""
    server = ready.server
    waiting = asyncio.create_task(traffic.quietly(traffic.one(server, traffic.text(32), 2000)))
    await traffic.until_running(server, 1)
    os.kill(server.engine(), signal.SIGKILL)
    began = time.monotonic()
    code = await server.process.ended(45)
    waiting.cancel()
    failure = server.failure()
    if failure is None:
        raise StepFailed(f"no reason was written; exit code {code}", server.process.last_lines)
    return {
        "reason": str(failure.reason),
        "message": failure.message,
        "exit_code": code,
        "seconds": round(time.monotonic() - began, 1),
    }


GROUPS: tuple[Group, ...] = (
    alone(Step("held-memory", "another process holds half of the memory", 100, _held, _replayed_refusal), HELD),
    alone(Step("utilization", "a utilization of 0.999", 100, _too_high, _replayed_refusal), TOO_HIGH),
    Group(
        "small-server",
        (
            Step("hang", "the engine stopped with SIGSTOP, and continued", 60, _hang),
            Step("killed", "the engine killed", 60, _killed),
        ),
        START_SECONDS,
        served(SMALL_ONE, hang_unready_seconds=_HUNG_SECONDS, hang_restart_seconds=120),
        SMALL_ONE,
    ),
    alone(Step("too-long", "a request longer than the cache", 120, _too_long), TOO_LONG),
)
