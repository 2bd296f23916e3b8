"""A GPU product that is written as people call it, and that no node has as its label."""

from __future__ import annotations

import copy
import json

import pytest
from llmservice_planner import gpus
from llmservice_planner.cluster import ClusterGPUs, NodeGroup

from tests.unit.decide_world import H100, products, serving, settled

LABELLED_BY_HAND = NodeGroup("H100", 8, memory_mib=81559)
NICKNAME = {"products": ["H100"]}


LABEL = "NVIDIA-H100-80GB-HBM3"


def test_it_makes_no_pod_and_the_patch_that_is_named_makes_it_start() -> None:
    world = settled(H100, accelerator=NICKNAME)
    assert world.condition("Fits") == ("False", "DoesNotFit")
    assert "Deployment" not in world.kinds()
    assert "spec.accelerator.products: H100 is no value of the node label" in world.message("Stalled")
    assert f"write {LABEL}, which this cluster has" in world.message("Stalled")
    patch = json.loads(world.plan["remedies"][0]["patch"])["spec"]
    assert patch == {"accelerator": {"products": [LABEL]}}
    world.change(**patch)
    assert world.condition("Fits") == ("True", "Fits")
    assert products(world) == [LABEL]


def test_a_node_with_that_very_label_is_used() -> None:
    world = settled(LABELLED_BY_HAND, accelerator=NICKNAME)
    assert world.condition("Fits") == ("True", "Fits")
    assert products(world) == ["H100"]


def test_a_product_that_may_be_new_is_accepted_with_a_note() -> None:
    world = settled(accelerator={"products": ["NVIDIA-X1000"], "memory": "200Gi"})
    assert world.condition("Fits") == ("True", "Fits")
    assert products(world) == ["NVIDIA-X1000"]
    assert "NVIDIA-X1000 is not in the catalogue" in world.plan["reason"]


@pytest.mark.parametrize("policy", ["Warn", "Ignore"])
def test_without_enforcement_the_pods_get_what_the_spec_says(policy: str) -> None:
    assert products(settled(H100, accelerator=NICKNAME, fitPolicy=policy)) == ["H100"]


def test_a_service_of_an_earlier_release_is_left_alone_until_it_is_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was planned as if the name were a label; neither an upgrade nor scaling restarts or stops it."""
    with monkeypatch.context() as earlier:
        earlier.setattr(gpus, "labels", lambda name: ())
        world = serving(accelerator=NICKNAME)
    template = copy.deepcopy(world.template)
    world.gpus = ClusterGPUs((H100,))
    world.settle()
    world.change(scaling={"replicas": 2})
    assert (world.template, world.deployment["spec"]["replicas"]) == (template, 2)
    assert world.condition("Fits")[0] == "True"
    world.roll_out()
    world.change(batching={"maxNumSeqs": 8})
    assert world.template == template
    shown = [world.condition(type_)[0] for type_ in ("Available", "Ready", "Stalled")]
    assert shown == ["True", "False", "True"]
