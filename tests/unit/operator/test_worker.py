"""The workers: what becomes of a key after its pass, and when they stop."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from kubeloop.errors import Unreachable
from kubeloop.resources import Key
from llmservice_operator.service.context import Context
from llmservice_operator.service.reconcile import AGAIN, Next, Workers

from tests.support.patience import PATIENCE
from tests.unit.reconcile_world import KEY, World, parent

BAD, GOOD = Key("ns", "bad"), Key("ns", "good")


async def work(world: World, reconcile: Callable[[Key, Context], Awaitable[Next]], *keys: Key) -> None:
    """One worker, until nothing happens any more."""
    workers = Workers(world.ctx, reconcile=reconcile, count=1)
    task = asyncio.create_task(workers.run())
    for key in keys:
        world.ctx.queue.add(key)
    for _ in range(200):
        await asyncio.sleep(0)
    workers.stop()
    await asyncio.wait_for(task, PATIENCE)


@pytest.mark.parametrize("error", [Unreachable("no answer"), ZeroDivisionError()], ids=["an API error", "a defect"])
async def test_a_failed_pass_is_tried_again_and_stops_no_other_key(error: Exception) -> None:
    world, seen = World(), []

    async def failing(key: Key, _: Context) -> Next:
        seen.append(key)
        if key == BAD:
            raise error
        return Next()

    await work(world, failing, BAD, GOOD)
    assert seen == [BAD, GOOD]
    assert world.ctx.queue.delayed == 1


async def test_what_has_more_to_write_comes_back_with_its_own_priority() -> None:
    """Its status is not written yet: it does not wait behind those that are well."""
    world = World(parent())  # without a status, so it is a new one
    passes: list[Key] = []

    async def more_to_write(key: Key, _: Context) -> Next:
        passes.append(key)
        return AGAIN if len(passes) == 1 else Next()

    await work(world, more_to_write, KEY, *(Key("ns", f"well-{i}") for i in range(3)))
    assert (passes[:2], len(passes)) == ([KEY, KEY], 5)


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
    await asyncio.wait_for(task, PATIENCE)
    assert finished.is_set()
    assert world.ctx.queue.depth == 1


async def test_without_the_lease_nothing_begins_and_what_is_in_work_then_is_forgotten() -> None:
    world = World()
    lost, seen = [], []

    async def loses_it(key: Key, ctx: Context) -> Next:
        seen.append(key)
        ctx.memory(key, "u")
        lost.append(True)
        return Next(failure="something")

    world.ctx.is_acting = lambda: not lost
    other = Key("other", "chat")
    for key in (KEY, other):
        world.ctx.memory(key, "u")
    await work(world, loses_it, KEY, other)
    assert seen == [KEY]
    assert (world.ctx.memories, world.ctx.queue.depth) == ({}, 0)
    world.ctx.queue.add(KEY)
    assert world.ctx.queue.depth == 1, "the failure is forgotten too: nothing makes it wait in the next reign"
