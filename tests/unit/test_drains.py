"""Streams that a drain cut are told of once, when the pod that cut them ends."""

from __future__ import annotations

from typing import Any

from tests.unit.reconcile_world import KEY, LABELS, World, parent


def ending(name: str, cut: int | None) -> dict[str, Any]:
    """A pod that is going away; without a number its server has not ended yet."""
    message = f'{{"version":1,"drain":{{"cut":{cut}}}}}'
    state = {"running": {}} if cut is None else {"terminated": {"exitCode": 0, "message": message}}
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"u-{name}",
            "resourceVersion": str(1 if cut is None else 2),
            "labels": LABELS,
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        },
        "status": {"phase": "Running", "containerStatuses": [{"name": "server", "state": state}]},
    }


async def told(world: World) -> tuple[int, float]:
    await world.look()
    ended = world.ctx.metrics.registry.get_sample_value(
        "llmservice_streams_ended_total", {"namespace": KEY.namespace, "service": KEY.name}
    )
    return world.api.calls.count("event StreamsEnded"), ended or 0.0


async def test_each_pod_that_cut_streams_is_reported_once() -> None:
    world = World(parent(), ending("a", None), ending("b", None))
    assert await told(world) == (0, 0)
    world.ctx.cache.update("Pod", ending("a", 3))
    assert await told(world) == (1, 3)
    assert await told(world) == (0, 3)
    world.ctx.cache.update("Pod", ending("b", 1))
    assert await told(world) == (1, 4)


async def test_one_that_cut_none_is_not_reported() -> None:
    world = World(parent(), ending("a", None))
    world.ctx.cache.update("Pod", ending("a", 0))
    assert await told(world) == (0, 0)
