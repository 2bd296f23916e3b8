"""A ConfigMap may be written but not read: whose it is is found out before it is applied or deleted."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.errors import FOREIGN_OBJECT, Forbidden, ForeignObject, KubeError, Refused
from llmservice_operator.service.decide import decide

from tests.unit.reconcile_world import World, parent

CONFIG = ("ConfigMap", "chat-adapters")
QUOTA = "exceeded quota: q, requested: a, used: b, limited: c"
ADAPTERS = [{"name": "a", "uri": "hf://a/b"}]


def world_of(*there: Any) -> World:
    """An LLMService with an adapter, and these objects."""
    made = parent()
    made["spec"] |= {"scaling": {"replicas": 1}, "adapters": ADAPTERS, "fitPolicy": "Ignore"}
    world = World(made)
    world.ctx.decide = decide
    for obj in there:
        world.api.put(obj)
    return world


def config_map(**owner: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "chat-adapters", "uid": "c", "resourceVersion": "3"}
    references = [{"kind": "LLMService", "name": "chat", "controller": True, **owner}] if owner else []
    return {"kind": "ConfigMap", "metadata": metadata | {"ownerReferences": references}, "data": {"theirs": "1"}}


async def test_a_list_is_made_before_the_deployment_and_not_touched_again() -> None:
    world = world_of()
    await world.reconcile()
    calls = world.calls()
    assert calls.index("dry-run ConfigMap") < calls.index("apply ConfigMap") < calls.index("apply Service")
    await world.reconcile()
    assert world.calls() == []


async def test_our_own_is_changed_by_force() -> None:
    world = world_of(config_map(uid="u-1"))
    await world.reconcile()
    assert "apply ConfigMap by force" in world.calls()


def orphaned(service: str) -> dict[str, Any]:
    """By an orphaning deletion."""
    labels = {"app.kubernetes.io/managed-by": "llmservice-operator", "llmservice.dev/service": service}
    made = config_map()
    return made | {"metadata": made["metadata"] | {"labels": labels}}


async def test_an_orphan_is_adopted_without_force() -> None:
    world = world_of(orphaned("chat"))
    await world.reconcile()
    assert "apply ConfigMap" in world.calls()
    assert "apply ConfigMap by force" not in world.calls()
    assert world.condition("Accepted")["status"] == "True"


@pytest.mark.parametrize(
    ("there", "owner"),
    [
        pytest.param(config_map(), "this operator did not make it", id="without an owner"),
        pytest.param(orphaned("other"), "this operator did not make it", id="orphaned by another service"),
        pytest.param(config_map(uid="u-9", name="other"), "it belongs to LLMService other", id="another service's"),
        pytest.param(config_map(uid="u-9", kind="Release"), "it belongs to Release chat", id="another kind's"),
    ],
)
async def test_somebody_elses_is_not_touched_and_its_owner_named(there: Any, owner: str) -> None:
    world = world_of(there)
    then = await world.reconcile()
    assert world.stored(*CONFIG) is there
    assert not world.calls("apply Service")
    accepted = world.condition("Accepted")
    assert accepted["reason"] == "NameConflict"
    assert owner in accepted["message"]
    assert then.after == 1, "no event says when the name becomes free"
    world.api.remove(*CONFIG)
    world.now += 1
    await world.reconcile()
    assert "apply ConfigMap" in world.calls()
    assert "apply Deployment" in world.calls()


async def test_where_the_charts_policy_hides_it_it_is_somebody_elses_too() -> None:
    world = world_of(config_map())
    hidden = ForeignObject(f"configmaps chat-adapters {FOREIGN_OBJECT}", code=403)
    world.api.fails["dry-run ConfigMap"] = [hidden]
    await world.reconcile()
    accepted = world.condition("Accepted")
    assert (accepted["reason"], "ConfigMap chat-adapters" in accepted["message"]) == ("NameConflict", True), accepted
    assert world.stored(*CONFIG)["data"] == {"theirs": "1"}


async def test_that_of_an_earlier_service_of_this_name_is_waited_for() -> None:
    world = world_of(config_map(uid="u-0"))
    with pytest.raises(KubeError, match="still belongs to an earlier LLMService"):
        await world.reconcile()
    assert "status" not in world.calls()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(Forbidden("no", right="patch configmaps", code=403), "AdmissionRefused", id="a right is missing"),
        pytest.param(Refused(QUOTA, code=403), "QuotaExceeded", id="a quota"),
    ],
)
async def test_a_refusal_is_reported(error: KubeError, reason: str) -> None:
    world = world_of()
    world.api.fails["apply ConfigMap"] = [error]
    await world.reconcile()
    ready = world.condition("Ready")
    assert ready["reason"] == reason
    assert "ConfigMap chat-adapters" in ready["message"]


@pytest.mark.parametrize(
    ("swapped", "deleted"),
    [
        pytest.param(None, True, id="ours"),
        pytest.param(config_map(), False, id="not ours any more"),
        pytest.param(orphaned("chat"), True, id="orphaned"),
    ],
)
async def test_without_adapters_our_list_goes_and_no_other(swapped: Any, deleted: bool) -> None:
    world = world_of()
    await world.reconcile()
    if swapped:
        world.api.put(swapped)
    world.edit({"adapters": []})
    await world.reconcile()
    assert (world.stored(*CONFIG) is None) is deleted
    await world.reconcile()
    assert world.calls() == []
