"""A model of 7 billion parameters in clusters with these and those GPUs, and what is said about it."""

from __future__ import annotations

from typing import Any

from llmservice_operator.planner.cluster import ClusterGPUs, NodeGroup

from tests.unit.decide_world import World, an_llmservice, spec

Json = dict[str, Any]

T4 = NodeGroup("Tesla-T4", 4, memory_mib=15360)
L4 = NodeGroup("NVIDIA-L4", 1, memory_mib=23034)
H100 = NodeGroup("NVIDIA-H100-80GB-HBM3", 8, memory_mib=81559)


def a_world(*groups: NodeGroup, **sections: Any) -> World:
    """A 7B model that another service knows, in a cluster with these nodes."""
    return World(an_llmservice(spec(**sections)), gpus=ClusterGPUs(groups))


def serving(*groups: NodeGroup, **sections: Any) -> World:
    """The same, rolled out."""
    world = a_world(*groups, **sections)
    world.settle()
    world.roll_out()
    world.settle()
    return world


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
