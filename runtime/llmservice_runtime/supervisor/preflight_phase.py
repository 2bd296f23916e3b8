"""The supervisor's side of the preflight: reads the result of the child process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llmservice_runtime.contract import Failure
from llmservice_runtime.supervisor.processes import Child
from llmservice_runtime.supervisor.tasks import read_all


async def failure_of(child: Child, seconds: float, log: Callable[[str], None]) -> Failure | None:
    """The failure that the preflight reported, None without one. `seconds` limits its output and its end, each.

    A preflight that crashes or times out is logged and ignored: vLLM checks the same again.
    """
    try:
        output = await asyncio.wait_for(read_all(child.output), seconds)
        ended = await asyncio.wait_for(child.ended, seconds)
    except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
        log(f"preflight: no result within {seconds:g} s; skipped")
        return None
    if ended.code != 0:
        log(f"preflight: ended with {ended}; skipped")
    return Failure.from_json(output.strip().rpartition("\n")[2])
