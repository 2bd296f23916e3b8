"""The supervisor's side of the preflight: reads the result of the child process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from llmservice_runtime.bounded_json import Reader, Refused, parse
from llmservice_runtime.contract import GPU, TERMINATION_LIMIT, Failure
from llmservice_runtime.supervisor.processes import Child
from llmservice_runtime.supervisor.tasks import read_all


class Report(NamedTuple):
    """What the preflight found."""

    failure: Failure | None = None
    gpu: GPU | None = None


async def report_of(child: Child, seconds: float, log: Callable[[str], None]) -> Report:
    """What the preflight reported. `seconds` limits its output and its end, each.

    A preflight that crashes or times out is logged and ignored: vLLM checks the same again.
    """
    try:
        output = await asyncio.wait_for(read_all(child.output), seconds)
        ended = await asyncio.wait_for(child.ended, seconds)
    except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
        log(f"preflight: no result within {seconds:g} s; skipped")
        return Report()
    if ended.code != 0:
        log(f"preflight: ended with {ended}; skipped")
    return read(output.strip().rpartition("\n")[2])


def read(text: str) -> Report:
    """The report in the preflight's last line; empty for any other text."""
    try:
        gpu = GPU.from_document(Reader(parse(text, 4 * TERMINATION_LIMIT)).value("gpu"))
    except Refused:
        return Report()
    return Report(Failure.from_json(text), gpu)
