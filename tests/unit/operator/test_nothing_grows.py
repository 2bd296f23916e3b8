"""Hundreds of services come and go, and nothing of them is left in any container that the operator can reach."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Mapping
from types import FrameType, FunctionType, ModuleType
from typing import Any

import pytest
from kubeloop.errors import Forbidden, Unreachable
from kubeloop.resources import SERVICE, Key
from llmservice_api.constants import LLMSERVICE
from llmservice_operator.observe.observed import Ask
from llmservice_operator.service.containment import Part
from llmservice_operator.service.reconcile import reconcile
from llmservice_operator.service.watch import EventHandler
from llmservice_runtime.contract import Phase, State, Transfer, TransferStep

from tests.support.patience import PATIENCE
from tests.unit.operator.test_updates import turn
from tests.unit.reconcile_world import World, parent

COUNT = 200
PREFIX = "gone-"
"""Of the names of the services that are deleted, and of their namespaces and pods."""


def reachable(root: object) -> Iterator[tuple[object, str]]:
    """Every object of the operator's own state, with the path to it; code, classes and modules are not state."""
    seen: set[int] = set()
    stack: list[tuple[object, str]] = [(root, type(root).__name__)]
    while stack:
        found, path = stack.pop()
        if isinstance(found, str):  # one text may be in many containers
            yield found, path
            continue
        if id(found) in seen or isinstance(found, type | ModuleType | FrameType):
            continue
        seen.add(id(found))
        yield found, path
        if isinstance(found, Mapping) and not isinstance(found, type):
            stack += [(value, f"{path}[]") for value in (*found.keys(), *found.values())]
        elif isinstance(found, FunctionType):
            stack += [(cell.cell_contents, f"{path}()") for cell in found.__closure__ or () if _is_filled(cell)]
        else:
            stack += [(each, f"{path}.{type(found).__name__}") for each in gc.get_referents(found)]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not NotImplemented
    except ValueError:
        return False


def mentions(root: object, word: str) -> dict[str, int]:
    """How many texts under each path contain the word."""
    counts: dict[str, int] = {}
    for found, path in reachable(root):
        if isinstance(found, str) and word in found:
            counts[path] = counts.get(path, 0) + 1
    return counts


async def fetching(_: str) -> State:
    return State(Phase.FETCHING, transfer=Transfer("model", TransferStep.DOWNLOADING, 1, 2))


async def live(world: World, handler: EventHandler, name: str) -> None:
    """All that leaves a trace: children, a status, refusals, failures, questions to pods, cut streams, errors."""
    key, ctx = Key("ns", name), world.ctx
    obj = world.api.put(parent(name=name))
    handler.updated(LLMSERVICE, obj)
    if not int(name.removeprefix(PREFIX)) % 7:
        world.api.fails["apply Service"] = [Forbidden("no", code=403, right="x")]
    world.deciding.more = {
        "conditions": [{"type": "Ready", "status": "True", "reason": "RolledOut"}],
        "failure": {"reason": "Unschedulable", "message": "m", "remedy": "r"},
        "plan": {"kvCacheTokens": 10},
        "measured": {"kvCacheTokens": 12},
        "model": {"inspection": "same", "config": "{}"},
    }
    ctx.queue.add(key)
    ctx.queue.done(await asyncio.wait_for(ctx.queue.get(), PATIENCE))
    await reconcile(key, ctx)
    if not int(name.removeprefix(PREFIX)) % 5:
        ctx.queue.failed(key)
    pod = f"{name}-pod"
    ctx.state_poller.poll(key, [Ask(pod, "u", 0, "address", True)], [pod])
    ctx.metrics.set_progress(key, pod, await fetching(""))
    ctx.metrics.add_streams_ended(key, 2)
    turn(ctx.updates, key, ctx.cache)
    ctx.updates.take_over([key])
    with ctx.errors.contained(Part.STATE, key, f"of pod {pod}"):
        raise ValueError
    await ctx.pod_events.of("ns", [pod])


async def delete(world: World, handler: EventHandler, name: str) -> None:
    key, ctx = Key("ns", name), world.ctx
    for resource in (LLMSERVICE, SERVICE):
        obj = world.api.remove(resource.kind, name)
        if obj is not None:
            handler.deleted(resource, obj)
    ctx.queue.add(key)
    world.now += 100.0
    while ctx.queue.depth or ctx.queue.delayed:
        world.now += 700.0
        ctx.queue._ring()
        taken = await asyncio.wait_for(ctx.queue.get(), PATIENCE)
        await reconcile(taken, ctx)
        ctx.queue.succeeded(taken)
        ctx.queue.done(taken)


async def drain_questions(world: World) -> None:
    """Their time comes, and nobody wants to know any more."""
    queue = world.ctx.state_poller._queue
    world.now += 10_000.0
    queue._ring()
    while queue.depth:
        pod = await asyncio.wait_for(queue.get(), PATIENCE)
        await world.ctx.state_poller._ask(pod)
        queue.done(pod)


async def test_nothing_of_a_deleted_service_is_left_anywhere() -> None:
    world = World()
    ctx = world.ctx
    handler = EventHandler(ctx.cache, ctx.queue.add, ctx.queue.add, ctx.errors, pod_deleted=ctx.pod_deleted)
    sizes = []
    for number in range(COUNT):
        name = f"{PREFIX}{number}"
        await live(world, handler, name)
        if number == 3:
            assert len(mentions(world.ctx, f"{name}")) > 10, "the walk sees what there is"
        await delete(world, handler, name)
        if number in (COUNT // 10, COUNT - 1):
            await drain_questions(world)
            await world.ctx.pod_events.of("ns", [])
            world.api.forget_requests()
            world.changed.clear()
            sizes.append(mentions(world.ctx, PREFIX))
            assert world.ctx.metrics.exposition().count(PREFIX.encode()) == 0
    assert sizes[-1] == {}, "a container keeps what is gone"


async def test_the_refusals_of_namespaces_that_are_gone_are_forgotten() -> None:
    world = World()
    reader = world.ctx.pod_events
    for number in range(50):
        world.api.fails["list Event"] = [Forbidden("no", code=403, right="x")]
        assert await reader.of(f"{PREFIX}{number}", ["x"]) is None
        world.api.fails["list ResourceQuota"] = [Forbidden("no", code=403, right="x")]
        assert await world.ctx.quotas.of(f"{PREFIX}{number}") == ()
    world.now += 1000.0
    await reader.of("ns", ["x"])
    await world.ctx.quotas.of("ns")
    world.api.forget_requests()
    assert mentions(reader, PREFIX) == {}
    assert mentions(world.ctx.quotas, PREFIX) == {}


async def test_a_service_that_is_forgotten_while_it_fails_leaves_no_back_off() -> None:
    world = World(parent())
    world.api.fails["get LLMService"] = [Unreachable("no")]
    with pytest.raises(Unreachable):
        await world.reconcile()
    world.ctx.queue.failed(Key("ns", "chat"))
    world.ctx.forget(Key("ns", "chat"))
    world.ctx.queue.succeeded(Key("ns", "chat"))
    assert world.ctx.queue._failures == {}
