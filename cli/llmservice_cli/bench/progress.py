"""What is shown on standard error while a load runs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

from llmservice_cli.load.display import IN_A_LOG, repeated

from .run import Gathered

ON_A_TERMINAL = 0.5


@asynccontextmanager
async def shown(gathered: Gathered, out: TextIO | None) -> AsyncIterator[None]:
    """A line that renews itself on a terminal, one every ten seconds elsewhere; nothing without `out`."""
    if out is None:
        yield
        return
    began, live = time.monotonic(), out.isatty()

    def show(end: str) -> None:
        begin = "\r" if live else ""
        out.write(f"{begin}{line(gathered, time.monotonic() - began)}{end}")
        out.flush()

    try:
        async with repeated(lambda: show("" if live else "\n"), ON_A_TERMINAL if live else IN_A_LOG):
            yield
    finally:
        show("\n")


def line(gathered: Gathered, seconds: float) -> str:
    """As wide whatever the numbers are, so that it covers the one before."""
    ended = len(gathered.rows)
    return (
        f"{gathered.discipline:<10}  {ended:>5} of {gathered.planned} ended, {gathered.under_way:>4} under way,"
        f" {gathered.failed:>4} failed, {seconds:6.1f} s"
    )
