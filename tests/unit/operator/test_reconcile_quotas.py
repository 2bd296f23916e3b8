"""What the condition about quotas costs the API server: one list for each change of the replicas, and one each few
minutes while a quota ends before maxReplicas."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.errors import ApiError, Forbidden, ServerError, TooManyRequests, Unreachable
from llmservice_operator.decision import QUOTAS_SECONDS
from llmservice_operator.readers.nodes import QUOTAS_KEPT_SECONDS as KEPT_SECONDS
from llmservice_operator.readers.nodes import REFUSED_SECONDS

from tests.unit.decide_world import a_pod
from tests.unit.operator.test_decide_autoscaling import READY
from tests.unit.operator.test_reconcile_autoscaling import a_world
from tests.unit.reconcile_world import KEY, LABELS, World

LIST = "list ResourceQuota"


def quota(hard: int, used: int = 1) -> Any:
    """Of pods, of which each replica is one."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"namespace": "ns", "name": "team"},
        "spec": {"hard": {"pods": str(hard)}},
        "status": {"used": {"pods": str(used)}},
    }


def keda_says(world: World, **status: str) -> None:
    live = world.stored("ScaledObject") | {"status": {"conditions": [READY], **status}}
    world.see(world.api.put(live, uid="u-ScaledObject"))


async def scaled(*, hard: int, failure: Exception | None = None) -> World:
    """KEDA took the service up, whose pods are yet to be made; one of somebody else's is there."""
    world = a_world()
    world.api.put(quota(hard))
    if failure is not None:
        world.api.fails[LIST] = [failure]
    await world.settle()
    assert world.calls(LIST) == [], "KEDA does not scale yet"
    keda_says(world)
    return world


def reason(world: World) -> str:
    condition = world.condition("Autoscaled")
    assert condition["status"] == "True"
    return str(condition["reason"])


async def test_a_quota_that_is_high_enough_is_looked_at_once_for_each_change_of_the_replicas() -> None:
    world = await scaled(hard=9)
    assert (await world.settle()).after is None
    assert world.calls(LIST) == [LIST], "all passes share it"
    assert reason(world) == "Autoscaling"
    for _ in range(3):
        world.now += 1000
        await world.settle()
        assert world.calls() == []
    assert world.ctx.memories[KEY].quotas is None
    for replicas in (2, 3):
        world.now += KEPT_SECONDS
        world.edit({"scaling": {"replicas": replicas, "autoscaling": {"maxReplicas": 4}}})
        await world.settle()
        assert world.calls(LIST) == [LIST]


async def test_a_quota_that_ends_before_is_looked_at_each_few_minutes_until_it_is_raised() -> None:
    world = await scaled(hard=2)
    then = await world.settle()
    assert world.calls(LIST) == [LIST]
    assert reason(world) == "QuotaBelowMaximum"
    assert then.after == QUOTAS_SECONDS
    for passed in range(5):
        world.now += 10
        keda_says(world, lastActiveTime=f"2026-01-01T12:00:{passed:02}Z")
        await world.settle()
        assert world.calls() == [], "other passes ask nothing and write nothing"
    world.now += QUOTAS_SECONDS
    await world.settle()
    assert world.calls() == [LIST]
    world.api.put(quota(9))
    world.now += QUOTAS_SECONDS
    then = await world.settle()
    assert world.calls(LIST) == [LIST]
    assert reason(world) == "Autoscaling"
    assert then.after is None
    world.now += QUOTAS_SECONDS
    await world.settle()
    assert world.calls() == []


async def test_pods_that_went_since_the_quotas_were_read_are_nobody_else_s() -> None:
    """What a quota counted is compared with the pods of that time: one that went meanwhile was the service's own."""
    world = await scaled(hard=3)
    revision = world.stored("Deployment")["spec"]["template"]["metadata"]["labels"]["llmservice.dev/revision"]
    pod = a_pod("chat-0", revision, ready=True, address="10.0.0.1", service="chat")
    pod["metadata"] |= {"namespace": "ns", "labels": pod["metadata"]["labels"] | LABELS}
    world.see(pod | {"kind": "Pod"})
    await world.settle()
    world.now += QUOTAS_SECONDS / 2  # the Deployment says nothing of its pod, for which the status waits a moment
    await world.settle()
    assert "admits 3 of 4 replicas" in world.condition("Autoscaled")["message"]
    world.ctx.cache.remove("Pod", "ns", "chat-0", pod["metadata"]["uid"])
    world.now += QUOTAS_SECONDS / 2 - 1
    await world.settle()
    assert world.calls(LIST) == []
    assert "admits 3 of 4 replicas" in world.condition("Autoscaled")["message"]


async def test_without_the_right_nothing_is_said_and_it_is_asked_for_seldom() -> None:
    world = await scaled(hard=1, failure=Forbidden("no", code=403))
    await world.settle()
    assert world.calls(LIST) == [LIST]
    assert reason(world) == "Autoscaling"
    world.now += REFUSED_SECONDS - 1
    world.edit({"scaling": {"replicas": 2, "autoscaling": {"maxReplicas": 4}}})
    await world.settle()
    assert world.calls(LIST) == []
    world.now += 1
    world.edit({"scaling": {"replicas": 3, "autoscaling": {"maxReplicas": 4}}})
    await world.settle()
    assert reason(world) == "QuotaBelowMaximum"


TRANSIENT_ERRORS: list[ApiError | Unreachable] = [
    ServerError("busy", code=503),
    TooManyRequests("busy", code=429),
    Unreachable("no"),
]


@pytest.mark.parametrize("error", TRANSIENT_ERRORS, ids=lambda error: type(error).__name__)
async def test_an_api_server_that_does_not_answer_holds_nothing_up(error: Exception) -> None:
    world = await scaled(hard=1)
    await world.settle()
    assert reason(world) == "QuotaBelowMaximum"
    world.api.fails[LIST] = [error] * 9
    world.now += QUOTAS_SECONDS
    world.edit({"scaling": {"replicas": 2, "autoscaling": {"maxReplicas": 4}}})
    await world.settle()
    assert world.stored("Deployment")["spec"]["replicas"] == 2
    assert reason(world) == "QuotaBelowMaximum", "as it was last known"
