"""Streams that a drain cut are reported once, when the pod that cut them ends."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.resources import POD
from llmservice_operator.service.watch import EventHandler

from tests.unit.decide_world import of_another, of_the_deployment
from tests.unit.reconcile_world import KEY, LABELS, World, parent


def ending(name: str, cut: int | None) -> dict[str, Any]:
    """A pod that is going away; without a number its server has not ended yet."""
    message = f'{{"version":1,"drain":{{"cut":{cut}}}}}'
    state = {"running": {}} if cut is None else {"terminated": {"exitCode": 0, "message": message}}
    metadata = {"namespace": "ns", "name": name, "uid": f"u-{name}", "labels": LABELS}
    metadata |= {"resourceVersion": str(1 if cut is None else 2), "deletionTimestamp": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "containerStatuses": [{"name": "server", "state": state}]}
    return of_the_deployment({"kind": "Pod", "metadata": metadata, "status": status})


async def test_each_pod_that_cut_streams_is_reported_once() -> None:
    world = World(parent(), ending("a", None), ending("b", None), ending("none", None), of_another(ending("copy", 2)))
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


@pytest.mark.parametrize(
    ("seen_before", "last", "is_listed", "reported"),
    [
        pytest.param(None, 2, False, 2, id="said in its last state only"),
        pytest.param(2, 2, False, 2, id="reported once, though it is seen before and after"),
        pytest.param(2, None, True, 2, id="its deletion was missed"),
        pytest.param(None, 0, False, 0, id="cut nothing"),
        pytest.param(None, {"ownerReferences": 7}, False, 0, id="its last state cannot be read"),
    ],
)
@pytest.mark.parametrize("passes_between", [False, True])
async def test_a_pod_that_is_gone_before_the_next_pass_is_reported(
    seen_before: int | None, last: Any, is_listed: bool, reported: int, passes_between: bool
) -> None:
    world = World(parent())
    await world.reconcile()
    handler = EventHandler(
        world.ctx.cache, lambda _: None, lambda _: None, world.ctx.errors, pod_deleted=world.ctx.pod_deleted
    )
    handler.updated(POD, ending("a", seen_before))
    events = 0
    if passes_between:
        await world.reconcile()
        events += world.calls().count("event StreamsEnded")
    if is_listed:
        handler.listed(POD, None, {}, "9")
    else:
        obj = ending("a", last if isinstance(last, int) else 3)
        obj["metadata"] |= {"resourceVersion": "3"} | (last if isinstance(last, dict) else {})
        handler.deleted(POD, obj)
    assert world.ctx.cache.get(POD.kind, "ns", "a") is None
    for _ in range(2):
        await world.reconcile()
        events += world.calls().count("event StreamsEnded")
    labels = {"namespace": KEY.namespace, "service": KEY.name}
    counted = world.ctx.metrics.registry.get_sample_value("llmservice_streams_ended_total", labels) or 0
    assert (events, counted) == (int(reported > 0), reported)


async def test_the_end_of_an_earlier_pod_takes_no_later_one_of_its_name_away() -> None:
    """A StatefulSet's pods are named alike, and a list may bring the later one before the deletion comes."""
    world = World(parent())
    await world.reconcile()
    handler = EventHandler(world.ctx.cache, lambda _: None, lambda _: None, pod_deleted=world.ctx.pod_deleted)
    later = ending("a", None)
    later["metadata"] |= {"uid": "later", "resourceVersion": "8"}
    handler.updated(POD, later)
    handler.deleted(POD, ending("a", 2))
    assert world.ctx.cache.get(POD.kind, "ns", "a").uid == "later"


async def test_of_a_service_that_others_work_on_nothing_is_kept() -> None:
    world = World(parent())
    handler = EventHandler(world.ctx.cache, lambda _: None, lambda _: None, pod_deleted=world.ctx.pod_deleted)
    handler.updated(POD, ending("a", None))
    handler.deleted(POD, ending("a", 2))
    await world.reconcile()
    assert world.calls().count("event StreamsEnded") == 0
