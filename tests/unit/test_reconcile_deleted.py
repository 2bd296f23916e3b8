"""A deleted LLMService is not made again from what the cache still shows of it."""

import pytest
from llmservice_operator.control.reconcile import Next
from llmservice_operator.control.watch.kinds import PARENT
from llmservice_operator.kube.errors import KubeError

from tests.unit.reconcile_world import KEY, World, parent, service


def delete(world: World) -> None:
    """The service and its children are gone; the watch of children says so, that of LLMServices is silent."""
    child = world.api.objects.pop(("Service", "chat"), None)
    world.api.objects.pop((PARENT, "chat"))
    if child is not None:
        world.ctx.cache.remove("Service", "ns", "chat", child["metadata"]["uid"])


@pytest.mark.parametrize("is_current", [False, True], ids=["the watch is silent", "the watch brought something else"])
async def test_after_our_own_last_write_a_vanished_child_is_made_again_only_after_a_live_read(is_current: bool) -> None:
    world = World(parent())
    world.ctx.is_current = lambda _: is_current
    await world.look()
    delete(world)
    assert await world.look() == Next()
    assert world.api.calls == ["get LLMService"]
    assert KEY not in world.ctx.memories


async def test_after_a_restart_a_missing_child_of_a_service_with_a_status_is_made_only_after_a_live_read() -> None:
    stored = {**parent(), "status": {"observedGeneration": 1}}
    world = World(stored)
    world.ctx.is_current = lambda _: True
    delete(world)
    await world.look()
    assert world.api.calls == ["get LLMService"]


async def test_a_child_that_was_found_and_vanishes_is_made_again_only_after_a_live_read() -> None:
    """It was made by an earlier process; this one only saw it."""
    stored = {**parent(), "status": {"there": True, "refused": [], "observedGeneration": 1}}
    child = service()
    child["metadata"] |= {"uid": "u-Service", "resourceVersion": "2", "creationTimestamp": "2026-01-01T00:00:00Z"}
    world = World(stored, child)
    world.ctx.is_current = lambda _: True
    await world.look()
    assert world.api.calls == []
    delete(world)
    await world.look()
    assert world.api.calls == ["get LLMService"]


async def test_it_is_not_made_again_after_the_conflict_that_shows_it_gone() -> None:
    world = World(parent())
    await world.look()
    world.deciding.wanted = service(port=81)
    world.api.objects.clear()
    with pytest.raises(KubeError):
        await world.look()  # the answer of an apply by uid: there is no such object
    assert await world.look() == Next()
    assert "apply Service" not in world.api.calls


async def test_one_that_vanishes_while_others_are_written_is_made_again_only_after_a_live_read() -> None:
    world = World(parent())
    await world.look()
    world.deciding.wanted = service(port=81)
    apply = world.api.apply

    async def deleted_just_after(manifest, **how):  # type: ignore[no-untyped-def]
        answer = await apply(manifest, **how)
        world.ctx.cache.put = put_then_delete  # type: ignore[method-assign]
        return answer

    put = world.ctx.cache.put

    def put_then_delete(kind, facts):  # type: ignore[no-untyped-def]
        world.ctx.cache.put = put  # type: ignore[method-assign]
        keys = put(kind, facts)
        delete(world)
        return keys

    world.api.apply = deleted_just_after  # type: ignore[method-assign]
    await world.look()
    await world.look()
    assert world.api.calls.count("apply Service") == 0
    assert (PARENT, "chat") not in world.api.objects


async def test_a_child_that_vanished_is_made_again_after_the_read() -> None:
    world = World(parent())
    await world.look()
    child = world.api.objects.pop(("Service", "chat"))
    world.ctx.cache.remove("Service", "ns", "chat", child["metadata"]["uid"])
    await world.look()
    assert world.api.calls[:2] == ["get LLMService", "apply Service"]


async def test_a_child_that_was_never_there_needs_no_read() -> None:
    """The normal flow: the first children of a service, and what an edit adds to them."""
    world = World(parent())
    world.ctx.is_current = lambda _: True
    await world.look()
    assert world.api.calls == ["apply Service", "status", "event Told"]


async def test_what_was_taken_away_on_purpose_needs_no_read() -> None:
    world = World(parent())
    await world.look()
    world.deciding.prune = True
    await world.look()
    world.deciding.prune = False
    await world.look()
    assert "get LLMService" not in world.api.calls
