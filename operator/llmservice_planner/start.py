"""How long a start takes: what is usual, and the budget after which a server has to show that it still moves.

Past its budget a start is slow, not failed, so the budget may be wrong by a lot. It has to be generous enough for
"slow" to be news. Seconds; each step says how it was reckoned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmservice_runtime.contract import START_CEILING_SECONDS, START_SECONDS

MIB = 2**20
USUAL_PACE = 250 * MIB
"""Bytes a second: a network volume of a cloud; a local NVMe disk is several times as fast."""
SLOW_PACE = 40 * MIB
"""Bytes a second: shared file systems, and volumes that are read for the first time from a snapshot."""
ENGINE_SECONDS = 45
"""vLLM's imports and processes, profiling, KV cache, warm-up. Measured in pods: 26 to 46 s on two cores."""
RANKS_SECONDS = 20
"""More where several ranks have to find each other. Measured: 62 to 70 s with two ranks, against 46 s with one."""
CPU_COMPILE_SECONDS = 45
"""Measured: 57 to 92 s compiled, against 26 to 46 s without."""
GPU_COMPILE_SECONDS = 80
"""torch.compile and CUDA graphs of an 8B model on an A10 without a cache, as users report it."""
SLACK = 3
"""A budget is as many times what is usual: other machines, a cold cache, busy nodes."""
LEAST_BUDGET = 600


@dataclass(frozen=True, slots=True)
class Starting:
    """What a start depends on."""

    bytes_to_read: int | None
    """Of the weights; None: nobody knows, and the budget is a generous one."""
    is_cpu: bool = False
    compiles: bool = True
    ranks: int = 1
    measured_seconds: float | None = None
    """Of an earlier start of the same model in the same way."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the arithmetic."""

    name: str
    seconds: int
    formula: str


@dataclass(frozen=True, slots=True)
class StartPlan:
    """The answer."""

    budget_seconds: int
    usual_seconds: int | None
    """None: nobody knows."""
    steps: tuple[Step, ...]


def plan(starting: Starting) -> StartPlan:
    """What is usual: what was measured, else the sum of the steps. The budget is generous about each of them."""
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


def _steps(starting: Starting) -> Iterator[Step]:
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
    """To 5 s, upwards: figures that are estimates should look like it."""
    return 5 * -int(-seconds // 5)
