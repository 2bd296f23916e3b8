"""What is shown on standard error while a load runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TextIO

from .run import Gathered

ON_A_TERMINAL = 0.5
IN_A_LOG = 10.0


@asynccontextmanager
async def shown(gathered: Gathered, out: TextIO | None) -> AsyncIterator[None]:
    """A line that renews itself on a terminal, one every ten seconds elsewhere; nothing without `out`."""
    if out is None:
        yield
        return
    task = asyncio.create_task(_keep_showing(gathered, out))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _keep_showing(gathered: Gathered, out: TextIO) -> None:
    began = time.monotonic()
    live = out.isatty()
    try:
        while True:
            await asyncio.sleep(ON_A_TERMINAL if live else IN_A_LOG)
            out.write(f"\r{line(gathered, time.monotonic() - began)}" if live else f"{line(gathered, 0)}\n")
            out.flush()
    finally:
        out.write(f"{chr(13) if live else ''}{line(gathered, time.monotonic() - began)}\n")
        out.flush()


def line(gathered: Gathered, seconds: float) -> str:
    """As wide whatever the numbers are, so that it covers the one before."""
    ended = len(gathered.rows)
    return (
        f"{gathered.discipline:<10}  {ended:>5} of {gathered.planned} ended, {gathered.under_way:>4} under way,"
        f" {gathered.failed:>4} failed, {seconds:6.1f} s"
    )
