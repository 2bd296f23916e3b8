"""Waiting for the first of several matters, without leaving a task behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

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


async def in_thread(work: Callable[[], T]) -> T:
    """The result of what may wait for a mount that does not answer: meanwhile the loop comes round.

    In a thread of its own that nobody waits for at the end, unlike asyncio.to_thread's.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(cast("T", result))
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the interest
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="reader", daemon=True).start()
    return await future


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
