"""The workers: what becomes of a key after its pass, and when they stop."""

import asyncio

import pytest
from llmservice_operator.api.service import Key
from llmservice_operator.control.context import Context
from llmservice_operator.control.queue.worker import Workers
from llmservice_operator.control.reconcile import AGAIN, Next
from llmservice_operator.kube.errors import Unreachable

from tests.unit.reconcile_world import KEY, World, parent


@pytest.mark.parametrize(
    "error",
    [pytest.param(Unreachable("no answer"), id="an API error"), pytest.param(ZeroDivisionError(), id="a bug of ours")],
)
async def test_a_failed_look_is_tried_again_and_stops_no_other_key(error: Exception) -> None:
    world = World()
    seen: list[Key] = []
    both = asyncio.Event()

    async def failing(key: Key, _: Context) -> Next:
        seen.append(key)
        if key.name == "bad":
            raise error
        both.set()
        return Next()

    world.ctx.queue.add(Key("ns", "bad"))
    world.ctx.queue.add(Key("ns", "good"))
    workers = Workers(world.ctx, reconcile=failing, count=1)
    task = asyncio.create_task(workers.run())
    await asyncio.wait_for(both.wait(), 2)
    workers.stop()
    await task
    assert seen == [Key("ns", "bad"), Key("ns", "good")]
    assert world.ctx.queue.delayed == 1


async def test_what_has_more_to_write_comes_back_with_its_own_priority() -> None:
    """Its status is not written yet: it does not wait behind those that are well."""
    world = World(parent())  # without a status, so it is a new one
    passes: list[Key] = []
    all_done = asyncio.Event()

    async def more_to_write(key: Key, _: Context) -> Next:
        passes.append(key)
        if len(passes) == 5:
            all_done.set()
        return AGAIN if len(passes) == 1 else Next()

    workers = Workers(world.ctx, reconcile=more_to_write, count=1)
    for key in (KEY, *(Key("ns", f"well-{i}") for i in range(3))):
        world.ctx.queue.add(key)
    task = asyncio.create_task(workers.run())
    await asyncio.wait_for(all_done.wait(), 2)
    workers.stop()
    await task
    assert passes[:2] == [KEY, KEY]


async def test_stopping_finishes_what_is_in_work() -> None:
    world = World()
    started, go_on, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(key: Key, _: Context) -> Next:
        started.set()
        await go_on.wait()
        finished.set()
        return Next()

    workers = Workers(world.ctx, reconcile=slow, count=2)
    task = asyncio.create_task(workers.run())
    world.ctx.queue.add(KEY)
    await started.wait()
    workers.stop()
    world.ctx.queue.add(Key("ns", "later"))
    go_on.set()
    await asyncio.wait_for(task, 1)
    assert finished.is_set()
    assert world.ctx.queue.depth == 1


async def test_what_is_anothers_is_left_alone_and_what_became_so_meanwhile_is_forgotten() -> None:
    world = World()
    ours, seen = {KEY}, []

    async def slow(key: Key, ctx: Context) -> Next:
        seen.append(key)
        ctx.memory(key, "u")
        ours.clear()
        return Next(failure="something")

    world.ctx.is_ours = lambda key: key in ours
    other = Key("other", "chat")
    for key in (other, KEY):
        world.ctx.memory(key, "u")
        world.ctx.queue.add(key)
    workers = Workers(world.ctx, reconcile=slow, count=1)
    task = asyncio.create_task(workers.run())
    for _ in range(100):
        await asyncio.sleep(0)
    workers.stop()
    await task
    assert seen == [KEY]
    assert (world.ctx.memories, world.ctx.queue.depth) == ({}, 0)
    world.ctx.queue.add(KEY)
    assert world.ctx.queue.depth == 1, "the failure is forgotten too: nothing makes it wait when it is ours again"
