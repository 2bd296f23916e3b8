"""One 8B through the product's own runtime, then its second start, and eager beside compiled."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from llmservice_cli.bench.traffic import LoadOptions
from llmservice_runtime.contract import State

from benchmarks.gpu.served import cases, engine_log, traffic
from benchmarks.gpu.served.cases import LLAMA, Case
from benchmarks.gpu.served.server import Server, StepFailed, started
from benchmarks.gpu.served.steps import Context, Group, Step, Values

START_SECONDS = 150.0
LENGTH = {"batching": {"maxModelLen": 8192}}
COMPILED = {"compilation": {"enforceEager": False}}
START_CACHE = "8b"
DRAIN_SECONDS = 60
PROPAGATION_SECONDS = 3


def eight_billion(**spec: Any) -> Case:
    """The model that most steps serve."""
    return Case(LLAMA, cases.merged(LENGTH, spec))


@dataclass
class Serving:
    """A server with its start."""

    server: Server
    state: State
    seconds: float
    """From the start of the process until it was ready."""


async def serving(server: Server) -> Serving:
    """Waits until it is ready; StepFailed where it ends before."""
    state = await server.until_ready()
    return Serving(server, state, round(time.monotonic() - server.process.began, 2))


def start_values(ready: Serving) -> dict[str, Any]:
    """What every start says."""
    return {
        "seconds": ready.seconds,
        "phases": engine_log.phases(ready.server.process.lines),
        "smoke": next((text for text in ready.server.process.texts if "; serving after" in text), ""),
        "state": ready.state.measured.to_document(),
        "log": ready.server.figures(),
    }


@asynccontextmanager
async def _one(context: Context) -> AsyncIterator[Serving]:
    options = {"drain_seconds": DRAIN_SECONDS, "propagation_seconds": PROPAGATION_SECONDS}
    async with started(context.place, eight_billion(), START_CACHE, options) as server:
        yield await serving(server)


async def _start(context: Context, ready: Serving) -> Values:
    values = start_values(ready)
    made = cases.startup(f"{context.machine.product}-8b", ready.server.case, context.machine, values["log"], "served")
    return values | {"plan": cases.planned(ready.server.case, context.machine), "startup": made}


async def _batching(context: Context, ready: Serving) -> Values:
    load = LoadOptions(
        requests=context.sized(96, 8),
        rate=context.sized(12, 4),
        seed=1,
        prompt_words=(8, 32, 128) if not context.machine.is_cpu else (4,),
        output_tokens=(16, 64, 256) if not context.machine.is_cpu else (4, 16),
    )
    return await traffic.by_discipline(ready.server, load, batch=context.sized(16, 4), window=0.5)


async def _prefix(context: Context, ready: Serving) -> Values:
    return await traffic.chat(ready.server, turns=context.sized(6, 3), turn_tokens=context.sized(1000, 200))


async def _samples(context: Context, ready: Serving) -> Values:
    return await traffic.samples(ready.server, 8, context.sized(6000, 1000), context.sized(64, 64))


async def _drain(context: Context, ready: Serving) -> Values:
    return await traffic.drain(ready.server, 8, context.sized(1500, 64), DRAIN_SECONDS + 30)


ONE = Group(
    "one-server",
    (
        Step("server-start", "one 8B: plan beside measured, start by phase", 15, _start),
        Step("server-batching", "continuous beside dynamic and static batching", 90, _batching),
        Step("server-prefix", "a chat of several turns with and without the prefix cache", 45, _prefix),
        Step("server-samples", "KV cache of eight samples beside eight requests", 45, _samples),
        Step("server-drain", "a drain with streams", DRAIN_SECONDS + 60, _drain),
    ),
    START_SECONDS,
    _one,
    eight_billion(),
)


async def _compiled_start(context: Context, ready: Serving) -> Values:
    return start_values(ready)


async def _throughput(context: Context, ready: Serving) -> Values:
    found = await traffic.throughput(ready.server, context.sized(32, 2), context.sized(256, 32), context.sized(128, 16))
    return found | {"start_seconds": ready.seconds}


def _again(case: Case) -> Callable[[Context], AbstractAsyncContextManager[Serving]]:
    @asynccontextmanager
    async def shared(context: Context) -> AsyncIterator[Serving]:
        """The second start of this command line; the first is made where no step before has made it."""
        for _ in range(2):
            async with started(context.place, case, START_CACHE, {"propagation_seconds": 0}) as server:
                ready = await serving(server)
                if ready.state.measured.start_cache == "Reused" or _is_reused(server):
                    yield ready
                    return
                await _end(server)
        raise StepFailed("a second start did not find the files of the first", server.process.last_lines)

    return shared


def _is_reused(server: Server) -> bool:
    return any("start cache" in text and text.endswith("Reused") for text in server.process.texts)


async def _end(server: Server) -> None:
    """As a pod ends, so that its files count as those of a server that ended well."""
    await traffic.one(server, traffic.text(16), 4)
    server.process.popen.terminate()
    await server.process.ended(60)


def served(case: Case, **options: float) -> Callable[[Context], AbstractAsyncContextManager[Serving]]:
    """A server of the case, ready, for all steps of a group. Its drain waits for nobody: each step has its answers."""

    @asynccontextmanager
    async def shared(context: Context) -> AsyncIterator[Serving]:
        async with started(context.place, case, options={"propagation_seconds": 0, **options}) as server:
            yield await serving(server)

    return shared


SECOND = Group(
    "second-start",
    (
        Step("start-second", "the second start, with the start cache", 15, _compiled_start),
        Step("compiled", "throughput compiled, with CUDA graphs", 45, _throughput),
    ),
    2 * START_SECONDS,
    _again(eight_billion(**COMPILED)),
    eight_billion(**COMPILED),
)
EAGERLY = eight_billion(compilation={"enforceEager": True})
EAGER = Group("eager", (Step("eager", "throughput eager", 60, _throughput),), START_SECONDS, served(EAGERLY), EAGERLY)
GROUPS: tuple[Group, ...] = (ONE, SECOND, EAGER)
