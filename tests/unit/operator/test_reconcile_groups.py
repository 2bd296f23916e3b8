"""The scheduling gate of held pods, taken away by the operator on the simulated API server."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.errors import Forbidden
from llmservice_api.constants import GROUP_GATE, GROUP_INDEX_LABEL, RANK_LABEL
from llmservice_operator.children import RETRY_SECONDS
from llmservice_operator.decision import Decision, Inputs, Release
from llmservice_operator.service.execute import ChildChanged

from tests.unit.reconcile_world import KEY, LABELS, World, parent


def held(name: str) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "chat", "uid": "s", "controller": True}
    labels = {**LABELS, GROUP_INDEX_LABEL: "0", RANK_LABEL: "0"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "ns", "name": name, "uid": f"u-{name}", "labels": labels, "ownerReferences": [owner]},
        "spec": {"schedulingGates": [{"name": GROUP_GATE}]},
        "status": {"phase": "Pending"},
    }


def let_go(inputs: Inputs) -> Decision:
    """All held pods that were not refused."""
    refused = inputs.observed.refused
    pods = (pod for pod in inputs.observed.pods if pod.is_held and ("Pod", pod.name) not in refused)
    return Decision(release=tuple(Release(pod.name, pod.uid) for pod in pods))


def gates(world: World) -> list[bool]:
    pods = (world.api.find("Pod", name, "ns") for name in ("a", "b"))
    return ["schedulingGates" in pod["spec"] for pod in pods if pod is not None]


async def test_each_gate_is_taken_away_once() -> None:
    world = World(parent(), held("a"), held("b"))
    world.ctx.decide = let_go
    await world.settle()
    assert gates(world) == [False, False]
    assert world.calls() == ["get LLMService", "patch Pod", "patch Pod"]
    await world.settle()
    assert world.calls() == []


async def test_a_pod_is_told_its_domain_with_it() -> None:
    world = World(parent(), held("a"), held("b"))
    world.ctx.decide = lambda _: Decision(release=(Release("a", "u-a", (("rack", "r1"),)),))
    await world.settle()
    pod = world.api.find("Pod", "a", "ns")
    assert pod is not None
    assert pod["spec"] == {"nodeSelector": {"rack": "r1"}}


async def test_another_pod_of_that_name_keeps_its_gate() -> None:
    world = World(parent(), held("a"), held("b"))
    world.ctx.decide = lambda _: Decision(release=(Release("a", "another"),))
    with pytest.raises(ChildChanged):
        await world.reconcile()
    assert gates(world) == [True, True]


async def test_one_that_is_refused_keeps_no_other_and_is_tried_again_later() -> None:
    world = World(parent(), held("a"), held("b"))
    world.ctx.decide = let_go
    world.api.fails["patch Pod"] = [Forbidden("no", right="patch pods", code=403)]
    then = await world.settle()
    assert gates(world) == [True, False]
    assert then.after == RETRY_SECONDS
    assert [name for _, name in world.ctx.memories[KEY].skipped] == ["a"]
    world.now += RETRY_SECONDS
    await world.settle()
    assert gates(world) == [False, False]
