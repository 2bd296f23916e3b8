"""What no node's CPU can do makes no pod; where no label tells, nothing is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_planner.room import NodeRoom, Room

from tests.unit.decide_world import World, an_llmservice, spec

CPUID = "feature.node.kubernetes.io/cpu-cpuid."
AVX2 = {"kubernetes.io/arch": "amd64", f"{CPUID}AVX": "true", f"{CPUID}AVX2": "true"}
AVX512 = {**AVX2, f"{CPUID}AVX512F": "true"}
AMX = {**AVX2, f"{CPUID}AMXTILE": "true"}
PLAIN = {"kubernetes.io/arch": "amd64"}
ARM = {"kubernetes.io/arch": "arm64"}
TAINT = (("gpu", "", "NoSchedule"),)
FP8: dict[str, Any] = {"precision": {"dtype": "bfloat16", "kvCache": "fp8"}}


def node(name: str, labels: dict[str, str], taints: Any = ()) -> NodeRoom:
    return NodeRoom(name, labels=labels, taints=taints)


def a_world(*nodes: NodeRoom, config: Any = None, unknown: str | None = None, **sections: Any) -> World:
    """On CPUs, with room enough in memory."""
    limits, image = {"limits": {"memory": "64Gi"}}, "example.com/vllm-cpu:v0.32.0"
    defaults: Any = {"accelerator": {"type": "cpu"}, "runtime": {"image": image, "resources": limits}}
    given = defaults | {"batching": {"maxModelLen": 4096}} | sections
    world = World(an_llmservice(spec(**given)), room=Room(nodes, unknown))
    if config is not None:
        world.sibling_model = {"config": json.dumps({**json.loads(world.sibling_model["config"]), **config})}
    return world


def outcome(world: World) -> tuple[bool, str, str]:
    """Whether a Deployment was made, and the reasons of Fits and Ready."""
    world.settle()
    return "Deployment" in world.kinds(), world.condition("Fits")[1], world.condition("Ready")[1]


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([node("a", AVX2)], id="one without"),
        pytest.param([node("a", AVX2), node("b", AVX2)], id="two without"),
        pytest.param([node("a", ARM)], id="another architecture"),
        pytest.param([node("a", AVX2), node("b", AVX512, TAINT)], id="the one that has it keeps pods away"),
    ],
)
def test_an_fp8_cache_where_no_cpu_can_hold_it_makes_no_pod(nodes: list[NodeRoom]) -> None:
    world = a_world(*nodes, **FP8)
    assert outcome(world) == (False, "DoesNotFit", "CPUFeatureMissing")
    assert world.condition("Stalled")[0] == "True"
    assert "spec.precision.kvCache fp8 needs a CPU with AVX-512 or AMX" in world.message("Fits")
    assert "Set spec.precision.kvCache: auto" in world.message("Ready")
    assert world.plan["verdict"] == "DoesNotFit"
    assert world.decide().requeue_after == 60, "a node that has it may come"


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([node("a", AVX512)], id="AVX-512"),
        pytest.param([node("a", AMX)], id="AMX"),
        pytest.param([node("a", AVX2), node("b", AVX512)], id="one of two"),
        pytest.param([node("a", PLAIN)], id="no label tells"),
        pytest.param([node("a", {})], id="no labels"),
        pytest.param([node("a", AVX2), node("b", PLAIN)], id="one of which nothing is known"),
        pytest.param([], id="no nodes"),
    ],
)
def test_what_may_run_is_made(nodes: list[NodeRoom]) -> None:
    is_made, fits, _ = outcome(a_world(*nodes, **FP8))
    assert is_made
    assert fits in ("Fits", "Tight")


def test_without_the_right_to_list_nodes_nothing_is_refused() -> None:
    assert outcome(a_world(node("a", AVX2), unknown="the operator has no right to list nodes", **FP8))[0]


def test_nodes_are_read_only_where_a_feature_is_needed() -> None:
    world = a_world(node("a", AVX2))
    assert outcome(world)[0]
    assert world.room_reads == 0


def test_weights_of_four_bits_by_what_the_checkpoint_says() -> None:
    quantized = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    assert outcome(a_world(node("a", AVX2), config=quantized)) == (False, "DoesNotFit", "CPUFeatureMissing")
    assert outcome(a_world(node("a", AVX512), config=quantized))[0]


def test_a_feature_that_the_spec_needs_is_required_of_an_unknown_model_too() -> None:
    """What the spec itself asks for is known, though the plan is not."""
    world = a_world(node("a", AVX2), **FP8, model={"uri": "file:///models/tiny"})
    assert outcome(world) == (False, "DoesNotFit", "CPUFeatureMissing")


def test_it_can_be_tried_all_the_same_with_the_policy_for_it() -> None:
    world = a_world(node("a", AVX2), **FP8, fitPolicy="Warn")
    is_made, fits, _ = outcome(world)
    assert is_made
    assert fits == "DoesNotFit"
    assert outcome(a_world(node("a", AVX2), **FP8, fitPolicy="Ignore"))[0]


def test_a_node_that_comes_lets_it_start_and_one_that_goes_stops_nothing() -> None:
    world = a_world(node("a", AVX2), **FP8)
    assert not outcome(world)[0]
    world.room = Room((node("a", AVX2), node("b", AVX512)))
    assert outcome(world)[0]
    world.room = Room((node("a", AVX2),))
    made = dict(world.children)
    world.settle()
    assert world.children == made
