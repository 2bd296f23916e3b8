"""What a step is, and how the process of a group takes some of its steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.served import results
from benchmarks.gpu.served.cases import Case, Machine
from benchmarks.gpu.served.results import Outcome, Result
from benchmarks.gpu.served.run import Planned
from benchmarks.gpu.served.server import Place, StepFailed

REPLAYED = "it needs CUDA: a log made from vLLM 0.26's source was read instead, and its figures are invented"
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Context:
    """What steps run with."""

    place: Place

    @property
    def machine(self) -> Machine:
        return self.place.machine

    @property
    def patience(self) -> float:
        """By which limits are longer: a rehearsal's CPUs are slow, and may be busy."""
        return patience(self.machine.is_cpu)

    def sized(self, gpu: int, cpu: int) -> int:
        """A size of a load: a rehearsal has its own."""
        return cpu if self.machine.is_cpu else gpu


def patience(is_rehearsal: bool) -> float:
    """The factor of all limits."""
    return 3.0 if is_rehearsal else 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement."""

    name: str
    title: str
    """On the page."""
    seconds: float
    """Its limit."""
    work: Callable[[Context, Any], Awaitable[Values]]
    """Takes what its group's steps share; StepFailed where there are no figures."""
    replay: Callable[[Context], Values] | None = None
    """Of a step that needs CUDA: what a rehearsal does instead."""


@asynccontextmanager
async def _nothing(context: Context) -> AsyncIterator[None]:
    yield None


@dataclass(frozen=True, slots=True)
class Group:
    """Steps of one process, one after the other."""

    name: str
    steps: tuple[Step, ...]
    start_seconds: float = 10.0
    """Limit of what they share, imports included."""
    shared: Callable[[Context], AbstractAsyncContextManager[Any]] = _nothing
    case: Case | None = None
    """What is served; tests compare its command line with vLLM's parser."""

    def planned(self, patience: float) -> Planned:
        """For the schedule."""
        steps = tuple((step.name, patience * step.seconds) for step in self.steps)
        return Planned(self.name, patience * self.start_seconds, steps)


def alone(step: Step, case: Case | None = None) -> Group:
    """A step with a process of its own, which its limit can end wherever it stands."""
    return Group(step.name, (step,), case=case)


async def take(group: Group, names: Collection[str], context: Context, file: Path) -> None:
    """Take these steps of a group. Each has its result in `file` afterwards, and no step's failure ends another's."""
    steps = [step for step in group.steps if step.name in names]
    if context.machine.is_cpu:
        for step in steps:
            if step.replay is not None:
                results.append(
                    file, await _attempt(step, context, _replayed(step, context), Outcome.REPLAYED, REPLAYED)
                )
        steps = [step for step in steps if step.replay is None]
    if not steps:
        return
    began = time.monotonic()
    try:
        async with group.shared(context) as shared:
            for step in steps:
                results.append(file, await _attempt(step, context, step.work(context, shared)))
                began = time.monotonic()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the remaining steps have for a result
        have = {result.step for result in results.read(file)}
        for step in steps:
            if step.name not in have:
                results.append(file, _failed(step.name, error, time.monotonic() - began))


async def _replayed(step: Step, context: Context) -> Values:
    assert step.replay is not None
    return step.replay(context)


async def _attempt(
    step: Step, context: Context, work: Awaitable[Values], outcome: Outcome = Outcome.MEASURED, why: str = ""
) -> Result:
    began = time.monotonic()
    try:
        async with asyncio.timeout(context.patience * step.seconds):
            values = await work
    except Exception as error:  # noqa: BLE001 - a failure is a result
        return _failed(step.name, error, time.monotonic() - began)
    return Result(step.name, outcome, round(time.monotonic() - began, 1), values, why)


def _failed(name: str, error: Exception, seconds: float) -> Result:
    log = error.log if isinstance(error, StepFailed) else ()
    what = "its limit" if isinstance(error, TimeoutError) else ""
    why = f"{what or type(error).__name__}: {error}".rstrip(": ")
    return Result(name, Outcome.FAILED, round(seconds, 1), why=why, log=log)
