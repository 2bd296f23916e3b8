"""What is shown while a load runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

IN_A_LOG = 10.0
"""Seconds between two lines where nobody watches a terminal."""


@asynccontextmanager
async def repeated(show: Callable[[], None], seconds: float) -> AsyncIterator[None]:
    """Calls `show` after every so many seconds of the block."""
    task = asyncio.create_task(_repeat(show, seconds))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _repeat(show: Callable[[], None], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        show()
