"""The supervisor's side of the preflight: the process that checks, and what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llmservice_runtime.contract import Failure
from llmservice_runtime.supervisor.processes import Child
from llmservice_runtime.supervisor.waiting import read_all


async def failure_of(child: Child, seconds: float, say: Callable[[str], None]) -> Failure | None:
    """What it found wrong. One that breaks keeps no good server from starting: vLLM has the last word."""
    try:
        output = await asyncio.wait_for(read_all(child.output), seconds)
        ended = await asyncio.wait_for(child.ended, seconds)
    except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
        say("the preflight took too long; going on without it")
        return None
    if ended.code != 0:
        say(f"the preflight ended with {ended}; going on without it")
    return Failure.from_json(output.strip().rpartition("\n")[2])
