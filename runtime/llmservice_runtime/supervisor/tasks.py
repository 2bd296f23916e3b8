"""Helpers for asyncio tasks: wait for the first of several, cancel and await, run in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


async def first_done(work: Awaitable[T], *others: Awaitable[Any]) -> asyncio.Future[T]:
    """Wait for the first of several awaitables; return the future of `work`, done or not.

    Tasks created here are cancelled and awaited; futures passed in by the caller are left alone.
    """
    awaitables: list[Awaitable[Any]] = [work, *others]
    tasks = [
        awaitable if isinstance(awaitable, asyncio.Future) else asyncio.ensure_future(awaitable)
        for awaitable in awaitables
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, awaitable in zip(tasks, awaitables, strict=True):
            if task is not awaitable:
                await cancel_and_wait(task)
    return tasks[0]


async def together(*works: Awaitable[Any]) -> None:
    """Run several until one ends, raise what it raised, and leave none of them."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            await cancel_and_wait(task)


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task, wait for its end, and retrieve its exception.

    Cancelled repeatedly: before Python 3.12, wait_for swallows a cancellation that arrives as its work completes, and a
    looping task would continue.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_SECONDS)
    if not task.cancelled():
        task.exception()


def exception_of(task: asyncio.Future[Any]) -> BaseException | None:
    """The exception of a finished task; None while it runs or where it was cancelled."""
    return task.exception() if task.done() and not task.cancelled() else None


_AGAIN_SECONDS = 0.1


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking `work`, such as reading a mount that may hang, in a daemon thread; its result or exception.

    Unlike the threads of asyncio.to_thread, this one does not delay the end of the process.
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
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="reader", daemon=True).start()
    return await future


async def read_all(descriptor: int) -> str:
    """The text of a pipe up to its end; closes the descriptor."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    try:
        return (await reader.read()).decode(errors="replace")
    finally:
        transport.close()
