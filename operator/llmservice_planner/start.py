"""Duration of a start: the usual one, and the budget after which a server has to show progress.

A start beyond its budget is slow, not failed, so that the budget may be inaccurate; it has to be generous. In seconds,
with the formula of each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmservice_runtime.contract import START_CEILING_SECONDS, START_SECONDS

MIB = 2**20
USUAL_PACE = 250 * MIB
"""Bytes per second of a cloud's network volume; a local NVMe disk is several times as fast."""
SLOW_PACE = 40 * MIB
"""Bytes per second of shared file systems, and of volumes that are first read from a snapshot."""
ENGINE_SECONDS = 45
"""vLLM's imports and processes, profiling, KV cache, warm-up. Measured in pods: 26 to 46 s on two cores."""
RANKS_SECONDS = 20
"""In addition for several ranks. Measured: 62 to 70 s with two ranks, 46 s with one."""
CPU_COMPILE_SECONDS = 45
"""Measured: 57 to 92 s compiled, 26 to 46 s without."""
GPU_COMPILE_SECONDS = 80
"""torch.compile and CUDA graphs of an 8B model on an A10 without a cache, as users report it."""
SLACK = 3
"""Factor of a budget over the usual time: other machines, a cold cache, busy nodes."""
LEAST_BUDGET = 600


@dataclass(frozen=True, slots=True)
class StartInputs:
    bytes_to_read: int | None
    """Of the weights; None: unknown, with a generous budget."""
    is_cpu: bool = False
    compiles: bool = True
    ranks: int = 1
    measured_seconds: float | None = None
    """Of an earlier start of the same model with the same settings."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the arithmetic."""

    name: str
    seconds: int
    formula: str


@dataclass(frozen=True, slots=True)
class StartPlan:
    budget_seconds: int
    usual_seconds: int | None
    """None: unknown."""
    steps: tuple[Step, ...]


def plan(starting: StartInputs) -> StartPlan:
    """The usual time as measured, else the sum of the steps, with a generous budget."""
    steps = tuple(_steps(starting))
    measured = starting.measured_seconds
    if starting.bytes_to_read is None:
        budget = max(START_SECONDS, SLACK * (measured or 0))
        return StartPlan(_bounded(budget), None if measured is None else _rounded(measured), steps)
    fixed = sum(step.seconds for step in steps if step.name in _FIXED)
    budget = SLACK * fixed + starting.bytes_to_read / SLOW_PACE
    usual = fixed + starting.bytes_to_read / USUAL_PACE if measured is None else measured
    return StartPlan(_bounded(max(budget, SLACK * usual)), _rounded(usual), steps)


_FIXED = ("engine", "ranks", "compilation")


def _steps(starting: StartInputs) -> Iterator[Step]:
    yield Step("engine", ENGINE_SECONDS, "imports, processes, profiling, KV cache, warm-up")
    if starting.ranks > 1:
        yield Step("ranks", RANKS_SECONDS, f"{starting.ranks} ranks find each other")
    if starting.compiles:
        on, seconds = ("CPU", CPU_COMPILE_SECONDS) if starting.is_cpu else ("GPU", GPU_COMPILE_SECONDS)
        yield Step("compilation", seconds, f"torch.compile on a {on}, nothing cached")
    if starting.bytes_to_read is not None:
        gib, seconds = starting.bytes_to_read / 2**30, round(starting.bytes_to_read / USUAL_PACE)
        pace = f"{USUAL_PACE // MIB} MiB/s is usual, {SLOW_PACE // MIB} MiB/s is allowed for"
        yield Step("weights", seconds, f"{gib:.2f} GiB to read; {pace}")
    if starting.measured_seconds is not None:
        yield Step("measured", round(starting.measured_seconds), "what an earlier start took")


def _bounded(seconds: float) -> int:
    return _rounded(min(max(seconds, LEAST_BUDGET), START_CEILING_SECONDS))


def _rounded(seconds: float) -> int:
    """Rounded up to 5 s, since figures are estimates."""
    return 5 * -int(-seconds // 5)
