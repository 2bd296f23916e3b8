"""Waiting for the first of several matters, without leaving a task behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


async def first(work: Awaitable[T], *others: Awaitable[Any]) -> asyncio.Future[T]:
    """Wait for the first of several, and return the work's future, done or not.

    What was started for this is cancelled; a future that belongs to somebody else is left alone.
    """
    matters: list[Awaitable[Any]] = [work, *others]
    tasks = [matter if isinstance(matter, asyncio.Future) else asyncio.ensure_future(matter) for matter in matters]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, matter in zip(tasks, matters, strict=True):
            if task is not matter:
                await end(task)
    return tasks[0]


async def end(task: asyncio.Future[Any]) -> None:
    """Cancelled if it still runs; its exception, if it has one, is now known to be seen.

    More than once where needed: before Python 3.12, wait_for swallows a cancellation that comes as its work is done,
    and a task that goes round in a loop would go on.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_SECONDS)
    if not task.cancelled():
        task.exception()


def failure_of(task: asyncio.Future[Any]) -> BaseException | None:
    """What it raised; None while it runs, and where it was cancelled."""
    return task.exception() if task.done() and not task.cancelled() else None


_AGAIN_SECONDS = 0.1


async def read_all(descriptor: int) -> str:
    """A pipe's whole text; closes it."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    try:
        return (await reader.read()).decode(errors="replace")
    finally:
        transport.close()
