"""What the garbage collector missed of an earlier service of the same name becomes the later one's; nothing else."""

from typing import Any

import pytest
from llmservice_operator.decide.adoption import handed_over
from llmservice_operator.decide.decision import Adopt

from tests.unit.reconcile_world import LABELS, OWNER, World, parent, service

JUST_NOW, LONG_AGO = "2025-12-31T23:59:50Z", "2025-12-31T23:59:00Z"
OTHER: Any = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "chat", "uid": "u-9", "controller": True}]
TAKEN = ["get PodDisruptionBudget", "patch PodDisruptionBudget"]


def budget(**metadata: Any) -> dict[str, Any]:
    """As the service with the uid u-1 had it."""
    own = {"namespace": "ns", "name": "chat", "uid": "u-b", "resourceVersion": "7", "labels": LABELS}
    meta = own | {"ownerReferences": OWNER} | metadata
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": {}}


def of_budget(world: World) -> list[str]:
    """What was asked about it."""
    return [call for call in world.api.calls if call.endswith("PodDisruptionBudget")]


@pytest.mark.parametrize(
    ("left", "uid", "created", "calls"),
    [
        pytest.param(budget(), "u-2", LONG_AGO, TAKEN, id="of an earlier service"),
        pytest.param(budget(), "u-2", JUST_NOW, [], id="the garbage collector has its time"),
        pytest.param(budget(), "u-1", LONG_AGO, [], id="of this service"),
        pytest.param(budget(ownerReferences=[]), "u-2", LONG_AGO, [], id="an orphan"),
        pytest.param(budget(ownerReferences=OTHER), "u-2", LONG_AGO, [], id="somebody else's"),
        pytest.param(budget(deletionTimestamp=JUST_NOW), "u-2", LONG_AGO, [], id="on its way out"),
    ],
)
async def test_what_is_taken_over(left: Any, uid: str, created: str, calls: list[str]) -> None:
    world = World(parent(uid=uid, creationTimestamp=created), left)
    await world.look()
    assert of_budget(world) == calls


async def test_it_is_done_once_and_is_ours_then() -> None:
    left = service()
    left["metadata"] = left["metadata"] | {"uid": "u-s", "resourceVersion": "8"}
    world = World(parent(uid="u-2", creationTimestamp=LONG_AGO), left)
    await world.look()
    assert world.api.calls[:3] == ["get LLMService", "get Service", "patch Service"]
    (owner,) = world.api.objects["Service", "chat"]["metadata"]["ownerReferences"]
    assert owner == {**OWNER[0], "uid": "u-2"}
    await world.look()
    assert world.api.calls == []


async def test_it_is_looked_at_again_when_the_time_is_over() -> None:
    world = World(parent(uid="u-2", creationTimestamp=JUST_NOW), budget())
    assert (await world.look()).after == pytest.approx(20)


async def test_a_spec_that_is_refused_has_its_name_all_the_same() -> None:
    world = World(parent(uid="u-2", creationTimestamp=LONG_AGO, uri="nonsense"), budget())
    await world.look()
    assert of_budget(world) == TAKEN


async def test_a_paused_service_takes_nothing() -> None:
    paused = parent(uid="u-2", creationTimestamp=LONG_AGO)
    paused["spec"]["paused"] = True
    world = World(paused, budget())
    await world.look()
    assert of_budget(world) == []


async def test_what_went_meanwhile_is_forgotten() -> None:
    world = World(parent(uid="u-2", creationTimestamp=LONG_AGO), budget())
    del world.api.objects["PodDisruptionBudget", "chat"]
    await world.look()
    assert of_budget(world) == ["get PodDisruptionBudget"]
    assert world.ctx.cache.get("PodDisruptionBudget", "ns", "chat") is None


@pytest.mark.parametrize(
    "live",
    [
        pytest.param(budget(ownerReferences=[{**OWNER[0], "uid": "u-2"}]), id="adopted meanwhile"),
        pytest.param(budget(uid="u-c"), id="another object"),
        pytest.param(budget(deletionTimestamp=JUST_NOW), id="on its way out"),
        pytest.param(budget(ownerReferences=[]), id="orphaned meanwhile"),
    ],
)
def test_the_cache_may_be_behind(live: Any) -> None:
    assert handed_over(live, Adopt("PodDisruptionBudget", "chat", "u-b", "u-1"), "u-2") is None


def test_it_is_handed_over_as_it_was_seen_and_not_otherwise() -> None:
    live = budget(ownerReferences=[*OTHER, *OWNER])
    assert handed_over(live, Adopt("PodDisruptionBudget", "chat", "u-b", "u-1"), "u-2") == [
        {"op": "test", "path": "/metadata/uid", "value": "u-b"},
        {"op": "test", "path": "/metadata/ownerReferences/1/uid", "value": "u-1"},
        {"op": "replace", "path": "/metadata/ownerReferences/1/uid", "value": "u-2"},
    ]
