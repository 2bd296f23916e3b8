"""Streams that a drain cut are reported once, when the pod that cut them ends."""

from __future__ import annotations

from typing import Any

from tests.unit.reconcile_world import KEY, LABELS, World, parent


def ending(name: str, cut: int | None) -> dict[str, Any]:
    """A pod that is going away; without a number its server has not ended yet."""
    message = f'{{"version":1,"drain":{{"cut":{cut}}}}}'
    state = {"running": {}} if cut is None else {"terminated": {"exitCode": 0, "message": message}}
    metadata = {"namespace": "ns", "name": name, "uid": f"u-{name}", "labels": LABELS}
    metadata |= {"resourceVersion": str(1 if cut is None else 2), "deletionTimestamp": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "containerStatuses": [{"name": "server", "state": state}]}
    return {"kind": "Pod", "metadata": metadata, "status": status}


async def test_each_pod_that_cut_streams_is_reported_once() -> None:
    world = World(parent(), ending("a", None), ending("b", None), ending("none", None))
    for ended, events, streams in (
        ((), 0, 0),
        (("a", 3), 1, 3),
        ((), 0, 3),
        (("b", 1), 1, 4),
        (("none", 0), 0, 4),
    ):
        if ended:
            world.see(ending(*ended))
        await world.reconcile()
        labels = {"namespace": KEY.namespace, "service": KEY.name}
        counted = world.ctx.metrics.registry.get_sample_value("llmservice_streams_ended_total", labels)
        assert (world.calls().count("event StreamsEnded"), counted or 0) == (events, streams)
