"""What the garbage collector missed of an earlier service of the same name is adopted; nothing else is."""

from typing import Any

import pytest
from llmservice_operator.decision import Adopt
from llmservice_operator.service.execute import adoption_patch

from tests.unit.reconcile_world import LABELS, OWNER, World, parent, service

JUST_NOW, LONG_AGO = "2025-12-31T23:59:50Z", "2025-12-31T23:59:00Z"
OTHER: Any = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "chat", "uid": "u-9", "controller": True}]
BUDGET = "PodDisruptionBudget"
TAKEN = [f"get {BUDGET}", f"patch {BUDGET}"]
ADOPT = Adopt(BUDGET, "chat", "u-b", "u-1")


def budget(**metadata: Any) -> dict[str, Any]:
    """As the service with the uid u-1 had it."""
    own = {"namespace": "ns", "name": "chat", "uid": "u-b", "resourceVersion": "7", "labels": LABELS}
    return {
        "apiVersion": "policy/v1",
        "kind": BUDGET,
        "metadata": own | {"ownerReferences": OWNER} | metadata,
        "spec": {},
    }


def successor(created: str = LONG_AGO, uid: str = "u-2", **more: Any) -> Any:
    return parent(uid=uid, creationTimestamp=created, **more)


PAUSED = successor()
PAUSED["spec"]["paused"] = True


@pytest.mark.parametrize(
    ("left", "later", "calls"),
    [
        pytest.param(budget(), successor(), TAKEN, id="of an earlier service"),
        pytest.param(budget(), successor(uri="nonsense"), TAKEN, id="of a service whose spec is refused"),
        pytest.param(budget(), PAUSED, [], id="of a paused service"),
        pytest.param(budget(), successor(JUST_NOW), [], id="the garbage collector has its time"),
        pytest.param(budget(), successor(uid="u-1"), [], id="of this service"),
        pytest.param(budget(ownerReferences=[]), successor(), [], id="an orphan"),
        pytest.param(budget(ownerReferences=OTHER), successor(), [], id="somebody else's"),
        pytest.param(budget(deletionTimestamp=JUST_NOW), successor(), [], id="on its way out"),
    ],
)
async def test_what_is_adopted(left: Any, later: Any, calls: list[str]) -> None:
    world = World(later, left)
    then = await world.reconcile()
    assert world.calls(BUDGET) == calls
    if later["metadata"]["creationTimestamp"] == JUST_NOW:
        assert then.after == pytest.approx(20), "again when the time is over"


async def test_it_is_adopted_once() -> None:
    left = service()
    left["metadata"] = left["metadata"] | {"uid": "u-s", "resourceVersion": "8"}
    world = World(successor(), left)
    await world.reconcile()
    assert world.calls()[:3] == ["get LLMService", "get Service", "patch Service"]
    assert world.stored("Service")["metadata"]["ownerReferences"] == [{**OWNER[0], "uid": "u-2"}]
    await world.reconcile()
    assert world.calls() == []


async def test_what_is_gone_meanwhile_is_forgotten() -> None:
    world = World(successor(), budget())
    world.api.remove(BUDGET, "chat")
    await world.reconcile()
    assert world.calls(BUDGET) == [f"get {BUDGET}"]
    assert world.ctx.cache.get(BUDGET, "ns", "chat") is None


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
    assert adoption_patch(live, ADOPT, "u-2") is None


def test_the_patch_tests_that_it_is_as_it_was_seen() -> None:
    live = budget(ownerReferences=[*OTHER, *OWNER])
    assert adoption_patch(live, ADOPT, "u-2") == [
        {"op": "test", "path": "/metadata/uid", "value": "u-b"},
        {"op": "test", "path": "/metadata/ownerReferences/1/uid", "value": "u-1"},
        {"op": "replace", "path": "/metadata/ownerReferences/1/uid", "value": "u-2"},
    ]
