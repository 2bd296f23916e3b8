"""Waiting for the first of several tasks, and the end of a cancelled one."""

from __future__ import annotations

import asyncio

import pytest
from llmservice_runtime.supervisor.tasks import cancel_and_wait, exception_of, first_done, together

from tests.support.patience import PATIENCE


async def test_the_works_result_and_nothing_left() -> None:
    never = asyncio.Event()
    work = await first_done(asyncio.sleep(0, "done"), never.wait())
    assert work.result() == "done"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_another_matter_ends_the_work() -> None:
    matter = asyncio.Event()
    matter.set()
    work = await first_done(asyncio.Event().wait(), matter.wait())
    assert work.cancelled()


async def test_a_task_that_loses_a_cancellation_ends_all_the_same() -> None:
    """As wait_for does before Python 3.12, when its work is done just then: polling a port goes on for ever."""
    lost = 0

    async def polling() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost += 1
                if lost > 2:
                    raise

    task = asyncio.ensure_future(polling())
    await asyncio.sleep(0)
    await asyncio.wait_for(cancel_and_wait(task), PATIENCE)
    assert task.cancelled()
    assert lost == 3


async def test_a_failure_is_seen() -> None:
    async def failing() -> None:
        raise OSError("refused")

    task = asyncio.ensure_future(failing())
    await asyncio.wait([task])
    await cancel_and_wait(task)


async def test_what_a_future_failed_of() -> None:
    loop = asyncio.get_running_loop()
    under_way, done, failed, cancelled = (loop.create_future() for _ in range(4))
    error = OSError("gone")
    done.set_result(1)
    failed.set_exception(error)
    cancelled.cancel()
    assert [exception_of(future) for future in (under_way, done, failed, cancelled)] == [None, None, error, None]


async def test_of_several_none_outlives_the_first_that_ends() -> None:
    async def failing() -> None:
        raise OSError("refused")

    ended = asyncio.Event()

    async def staying() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(OSError, match="refused"):
        await together(staying(), failing())
    assert ended.is_set()
    await together(staying(), asyncio.sleep(0))
    assert asyncio.all_tasks() == {asyncio.current_task()}
