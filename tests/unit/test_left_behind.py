"""What the garbage collector missed of an earlier service of the same name goes; nothing else does."""

from typing import Any

import pytest
from llmservice_operator.control.carry_out import Changed

from tests.unit.reconcile_world import LABELS, OWNER, World, parent, service

JUST_NOW, LONG_AGO = "2025-12-31T23:59:50Z", "2025-12-31T23:59:00Z"
OTHER: Any = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "chat", "uid": "u-9", "controller": True}]


def budget(**metadata: Any) -> dict[str, Any]:
    """As the service with the uid u-1 had it."""
    own = {"namespace": "ns", "name": "chat", "uid": "u-b", "resourceVersion": "7", "labels": LABELS}
    meta = own | {"ownerReferences": OWNER} | metadata
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": {}}


def stored(obj: dict[str, Any]) -> dict[str, Any]:
    """With what the API server gives it."""
    return obj | {"metadata": obj["metadata"] | {"uid": "u-s", "resourceVersion": "8"}}


@pytest.mark.parametrize(
    ("left", "uid", "created", "deletes"),
    [
        pytest.param(budget(), "u-2", LONG_AGO, ["delete PodDisruptionBudget u-b"], id="of an earlier service"),
        pytest.param(budget(), "u-2", JUST_NOW, [], id="the garbage collector has its time"),
        pytest.param(budget(), "u-1", LONG_AGO, [], id="of this service"),
        pytest.param(budget(ownerReferences=[]), "u-2", LONG_AGO, [], id="an orphan"),
        pytest.param(budget(ownerReferences=OTHER), "u-2", LONG_AGO, [], id="somebody else's"),
        pytest.param(budget(deletionTimestamp=JUST_NOW), "u-2", LONG_AGO, [], id="on its way out"),
        pytest.param(stored(service()), "u-2", LONG_AGO, [], id="what serves is left to the garbage collector"),
    ],
)
async def test_what_is_taken_away(left: Any, uid: str, created: str, deletes: list[str]) -> None:
    world = World(parent(uid=uid, creationTimestamp=created), left)
    await world.look()
    assert [call for call in world.api.calls if call.startswith("delete")] == deletes


async def test_it_is_looked_at_again_when_the_time_is_over() -> None:
    world = World(parent(uid="u-2", creationTimestamp=JUST_NOW), budget())
    assert (await world.look()).after == pytest.approx(20)


async def test_a_spec_that_is_refused_changes_nothing_about_it() -> None:
    world = World(parent(uid="u-2", creationTimestamp=LONG_AGO, uri="nonsense"), budget())
    await world.look()
    assert "delete PodDisruptionBudget u-b" in world.api.calls


async def test_one_that_was_adopted_meanwhile_stays() -> None:
    """The cache may be behind."""
    world = World(parent(uid="u-2", creationTimestamp=LONG_AGO), budget())
    world.api.objects["PodDisruptionBudget", "chat"]["metadata"]["resourceVersion"] = "9"
    with pytest.raises(Changed, match="changed before it was deleted"):
        await world.look()
    assert ("PodDisruptionBudget", "chat") in world.api.objects
