"""Opens the start cache of a server, within a time."""

from __future__ import annotations

import asyncio

from llmservice_runtime.options import ServeOptions
from llmservice_runtime.start_cache.folder import Log, StartCache
from llmservice_runtime.supervisor.tasks import in_thread


async def opened(options: ServeOptions, seconds: float, log: Log) -> StartCache:
    """The start cache; an unused one where the volume does not answer, so that the server starts without it."""
    try:
        return await asyncio.wait_for(in_thread(lambda: StartCache.open(options, log)), seconds)
    except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
        why = f"{options.start_cache} does not answer within {seconds:g} s: look at the volume's driver and server"
        return StartCache.unused(why, log)
