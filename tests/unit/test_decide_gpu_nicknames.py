"""A GPU product that is written as people call it, and that no node has as its label."""

from __future__ import annotations

import copy
import json

import pytest
from llmservice_operator.planner import gpus
from llmservice_operator.planner.cluster import ClusterGPUs, NodeGroup

from tests.unit.decide_world import World
from tests.unit.fit_world import H100, a_world, fits, kinds, plan, products, serving

LABELLED_BY_HAND = NodeGroup("H100", 8, memory_mib=81559)
NICKNAME = {"products": ["H100"]}


def settled(world: World) -> World:
    world.settle()
    return world


def test_it_makes_no_pod_and_the_label_is_named() -> None:
    world = settled(a_world(H100, accelerator=NICKNAME))
    assert fits(world) == ("False", "DoesNotFit")
    assert "Deployment" not in kinds(world)
    message = world.conditions()["Stalled"]["message"]
    assert "spec.accelerator.products: H100 is no value of the node label" in message
    assert "write NVIDIA-H100-80GB-HBM3, which this cluster has" in message
    patch = json.loads(plan(world)["remedies"][0]["patch"])
    assert patch == {"spec": {"accelerator": {"products": ["NVIDIA-H100-80GB-HBM3"]}}}


def test_the_patch_that_is_named_makes_it_start() -> None:
    world = settled(a_world(H100, accelerator=NICKNAME))
    world.edit(accelerator=json.loads(plan(world)["remedies"][0]["patch"])["spec"]["accelerator"])
    world.settle()
    assert fits(world) == ("True", "Fits")
    assert products(world) == ["NVIDIA-H100-80GB-HBM3"]


def test_a_node_with_that_very_label_is_taken() -> None:
    world = settled(a_world(LABELLED_BY_HAND, accelerator=NICKNAME))
    assert fits(world) == ("True", "Fits")
    assert products(world) == ["H100"]


def test_a_product_that_may_be_new_is_accepted_with_a_note() -> None:
    world = settled(a_world(accelerator={"products": ["NVIDIA-X1000"], "memory": "200Gi"}))
    assert fits(world) == ("True", "Fits")
    assert products(world) == ["NVIDIA-X1000"]
    assert "NVIDIA-X1000 is not in the catalogue" in plan(world)["reason"]


@pytest.mark.parametrize("policy", ["Warn", "Ignore"])
def test_who_does_not_enforce_the_plan_gets_what_the_spec_says(policy: str) -> None:
    world = settled(a_world(H100, accelerator=NICKNAME, fitPolicy=policy))
    assert products(world) == ["H100"]


def test_a_service_of_an_earlier_release_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was planned as if the name were a label; neither an upgrade nor scaling restarts or stops it."""
    with monkeypatch.context() as earlier:
        earlier.setattr(gpus, "labels", lambda name: ())
        world = serving(accelerator=NICKNAME)
    template = copy.deepcopy(world.deployment["spec"]["template"])
    world.gpus = ClusterGPUs((H100,))
    world.settle()
    world.edit(scaling={"replicas": 2})
    world.settle()
    assert world.deployment["spec"]["template"] == template
    assert world.deployment["spec"]["replicas"] == 2
    assert fits(world)[0] == "True"


def test_an_edit_of_it_is_held_back_and_what_serves_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(gpus, "labels", lambda name: ())
        world = serving(accelerator=NICKNAME)
    template = copy.deepcopy(world.deployment["spec"]["template"])
    world.gpus = ClusterGPUs((H100,))
    world.edit(batching={"maxNumSeqs": 8})
    world.settle()
    assert world.deployment["spec"]["template"] == template
    conditions = {kind: condition["status"] for kind, condition in world.conditions().items()}
    assert (conditions["Available"], conditions["Ready"], conditions["Stalled"]) == ("True", "False", "True")
