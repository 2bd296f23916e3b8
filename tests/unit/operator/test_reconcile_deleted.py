"""A deleted LLMService is not made again from what the cache still shows of it."""

from typing import Any

import pytest
from kubeloop.errors import KubeError
from llmservice_operator.service.reconcile import Next
from llmservice_operator.service.watch import PARENT

from tests.unit.reconcile_world import KEY, World, parent, service


def delete(world: World, *, parent_too: bool = True) -> None:
    """The service and its children are gone; the watch of children says so, that of LLMServices is silent."""
    child = world.api.remove("Service", "chat")
    if parent_too:
        world.api.remove(PARENT, "chat")
    if child is not None:
        world.ctx.cache.remove("Service", "ns", "chat", child["metadata"]["uid"])


@pytest.mark.parametrize("is_current", [False, True], ids=["the watch is silent", "the watch brought something else"])
async def test_after_our_own_last_write_a_vanished_child_is_made_again_only_after_a_live_read(is_current: bool) -> None:
    world = World(parent())
    world.ctx.is_current = lambda _: is_current
    await world.reconcile()
    delete(world)
    assert await world.reconcile() == Next()
    assert world.calls() == ["get LLMService"]
    assert KEY not in world.ctx.memories


CHILD = service()
CHILD["metadata"] |= {"uid": "u-Service", "resourceVersion": "2", "creationTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("status", "children"),
    [
        pytest.param({}, [], id="nothing was there at the start"),
        pytest.param({"there": True, "refused": []}, [CHILD], id="it was found at the start and vanishes"),
    ],
)
async def test_after_a_restart_a_missing_child_is_made_only_after_a_live_read(status: Any, children: Any) -> None:
    world = World({**parent(), "status": {"observedGeneration": 1, **status}}, *children)
    world.ctx.is_current = lambda _: True
    if children:
        await world.reconcile()
        assert world.calls() == []
    delete(world)
    await world.reconcile()
    assert world.calls() == ["get LLMService"]


async def test_it_is_not_made_again_after_the_conflict_that_shows_it_gone() -> None:
    world = World(parent())
    await world.reconcile()
    world.deciding.wanted = service(port=81)
    world.api.objects.clear()
    with pytest.raises(KubeError):
        await world.reconcile()  # the answer of an apply by uid: there is no such object
    assert await world.reconcile() == Next()
    assert "apply Service" not in world.calls()


async def test_one_that_vanishes_while_others_are_written_is_made_again_only_after_a_live_read() -> None:
    world = World(parent())
    await world.reconcile()
    world.deciding.wanted = service(port=81)
    put = world.ctx.cache.put

    def put_then_delete(kind: str, facts: Any) -> Any:
        world.ctx.cache.put = put  # type: ignore[method-assign]
        keys = put(kind, facts)
        delete(world)
        return keys

    world.ctx.cache.put = put_then_delete  # type: ignore[method-assign]
    await world.reconcile()
    await world.reconcile()
    assert world.calls().count("apply Service") == 0
    assert world.stored() is None


async def test_a_child_that_vanished_is_made_again_after_the_read() -> None:
    world = World(parent())
    await world.reconcile()
    delete(world, parent_too=False)
    await world.reconcile()
    assert world.calls()[:2] == ["get LLMService", "apply Service"]


async def test_what_was_deleted_on_purpose_needs_no_read() -> None:
    world = World(parent())
    await world.reconcile()
    for is_pruned in (True, False):
        world.deciding.prune = is_pruned
        await world.reconcile()
    assert "get LLMService" not in world.calls()
