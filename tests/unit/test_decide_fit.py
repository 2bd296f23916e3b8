"""The verdict about memory: what it says, what it stops, and what a revision is made with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_operator.planner.cluster import ClusterGPUs, NodeGroup

from tests.unit.decide_world import World, an_llmservice, spec

Json = dict[str, Any]

T4 = NodeGroup("Tesla-T4", 4, memory_mib=15360)
L4 = NodeGroup("NVIDIA-L4", 1, memory_mib=23034)
H100 = NodeGroup("NVIDIA-H100-80GB-HBM3", 8, memory_mib=81559)


def a_world(*groups: NodeGroup, **sections: Any) -> World:
    """A 7B model that another service knows, in a cluster with these nodes."""
    return World(an_llmservice(spec(**sections)), gpus=ClusterGPUs(groups))


def fits(world: World) -> tuple[str, str]:
    condition = world.conditions()["Fits"]
    return condition["status"], condition["reason"]


def plan(world: World) -> Json:
    told: Json = world.obj["status"]["plan"]
    return told


def kinds(world: World) -> set[str]:
    return {kind for kind, _ in world.children}


def products(world: World) -> list[str]:
    """Those that the template requires."""
    affinity = world.deployment["spec"]["template"]["spec"].get("affinity") or {}
    required = affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    return [
        value
        for term in required.get("nodeSelectorTerms", [])
        for expression in term["matchExpressions"]
        if expression["key"] == "nvidia.com/gpu.product"
        for value in expression["values"]
    ]


def test_what_fits_is_made_and_its_arithmetic_is_told() -> None:
    world = a_world(H100)
    world.settle()
    assert fits(world) == ("True", "Fits")
    assert "Deployment" in kinds(world)
    told = plan(world)
    assert (told["verdict"], told["gpu"], told["gpus"]) == ("Fits", "NVIDIA-H100-80GB-HBM3", 1)
    assert told["weightsGiB"] == pytest.approx(14.19, abs=0.1)
    parts = told["perGPU"]
    taken = parts["weightsGiB"] + parts["nonTorchGiB"] + parts["activationGiB"] + parts["graphGiB"]
    assert parts["kvCacheGiB"] == pytest.approx(parts["budgetGiB"] - taken, abs=0.05)
    assert told["explanation"]


def test_what_does_not_fit_makes_nothing_and_says_why_and_what_would_fit() -> None:
    world = a_world(T4)
    world.settle()
    assert fits(world) == ("False", "DoesNotFit")
    assert kinds(world) == set()
    conditions = world.conditions()
    assert conditions["Accepted"]["status"] == "True"
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "DoesNotFit")
    assert conditions["Stalled"]["reason"] == "DoesNotFit"
    assert "GiB" in conditions["Fits"]["message"]
    assert plan(world)["remedies"]
    assert world.decide().requeue_after == 60


def test_each_proposed_patch_makes_it_fit() -> None:
    world = a_world(T4)
    world.settle()
    patches = [remedy["patch"] for remedy in plan(world)["remedies"] if "patch" in remedy]
    assert patches
    for patch in patches:
        patched = a_world(T4)
        patched.edit(**json.loads(patch)["spec"])
        patched.settle()
        assert fits(patched)[0] == "True", patch
