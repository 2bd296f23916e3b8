"""What a revision is made with by its plan: the GPU product and the length, frozen with it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from llmservice_operator.build.chosen import Chosen
from llmservice_operator.planner.cluster import ClusterGPUs, NodeGroup

from tests.unit.decide_world import QWEN_7B, World
from tests.unit.fit_world import H100, L4, T4, Json, a_world, fits, kinds, plan, products, serving


def test_the_picked_product_is_required_and_frozen() -> None:
    world = serving(H100, T4)
    assert products(world) == ["NVIDIA-H100-80GB-HBM3"]
    (record,) = [child for (kind, _), child in world.children.items() if kind == "ControllerRevision"]
    chosen = record["data"]["chosen"]
    assert (chosen["gpu"], chosen["plan"]) == ("NVIDIA-H100-80GB-HBM3", plan(world))
    for groups in ((), (T4,), (NodeGroup("NVIDIA-B200", 8, memory_mib=183359), H100)):
        world.gpus = ClusterGPUs(groups)
        world.edit(scaling={"replicas": 2})
        world.settle()
        assert products(world) == ["NVIDIA-H100-80GB-HBM3"]
        assert fits(world) == ("True", "Fits")
    assert world.node_reads == 1


def test_the_first_of_a_list_that_fits_is_the_only_one_that_pods_may_get() -> None:
    world = a_world(T4, L4, H100, accelerator={"products": ["Tesla-T4", "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4"]})
    world.settle()
    assert products(world) == ["NVIDIA-H100-80GB-HBM3"]
    assert plan(world)["gpu"] == "NVIDIA-H100-80GB-HBM3"


def test_a_product_that_cannot_compute_it_is_passed_over() -> None:
    """A T4 has no bfloat16, and room enough for half a billion parameters."""
    small = QWEN_7B | {"num_hidden_layers": 4, "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2}
    world = a_world(T4, L4, precision={"dtype": "bfloat16"})
    world.lent = {"config": json.dumps(small | {"intermediate_size": 4864})}
    world.settle()
    assert products(world) == ["NVIDIA-L4"]
    world = a_world(T4, precision={"dtype": "bfloat16"})
    world.lent = {"config": json.dumps(small | {"intermediate_size": 4864})}
    world.settle()
    assert fits(world) == ("False", "DoesNotFit")
    assert "bfloat16" in world.conditions()["Fits"]["message"]
    assert "remedies" not in plan(world)


EVERYTHING = {"spec": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}}


@pytest.mark.parametrize(
    ("effect", "template", "expected"),
    [
        ("NoSchedule", {}, "NVIDIA-L4"),
        ("NoExecute", {}, "NVIDIA-H100-80GB-HBM3"),
        ("NoExecute", EVERYTHING, "NVIDIA-L4"),
    ],
)
def test_a_product_is_picked_only_on_nodes_whose_taints_the_pods_tolerate(
    effect: str, template: Json, expected: str
) -> None:
    tainted = replace(L4, taints=(("nvidia.com/gpu", "present", effect),))
    world = a_world(tainted, H100, podTemplate=template, batching={"maxModelLen": 4096})
    world.settle()
    assert products(world) == [expected]


def test_without_the_right_to_list_nodes_nothing_is_blocked_and_the_right_is_named() -> None:
    world = a_world()
    world.gpus = ClusterGPUs(missing_right="list nodes")
    world.settle()
    assert fits(world) == ("Unknown", "FactsMissing")
    assert "no right to list nodes" in world.conditions()["Fits"]["message"]
    assert "Deployment" in kinds(world)
    assert products(world) == []


def test_lack_of_a_gpu_is_looked_at_again_and_ends_by_itself() -> None:
    world = a_world(T4)
    world.settle()
    reads = world.node_reads
    world.gpus = ClusterGPUs((T4, H100))
    world.settle()
    assert world.node_reads > reads
    assert fits(world) == ("True", "Fits")
    assert products(world) == ["NVIDIA-H100-80GB-HBM3"]
    assert world.decide().requeue_after is None


def flag(world: World, name: str) -> str | None:
    """What the engine is started with."""
    (server,) = world.deployment["spec"]["template"]["spec"]["containers"]
    arguments = " ".join(server["args"]).replace("=", " ").split()
    return arguments[arguments.index(name) + 1] if name in arguments else None


def test_auto_is_the_planned_length_recorded_with_the_revision() -> None:
    world = a_world(L4, batching={"maxModelLen": "auto"})
    world.settle()
    length = plan(world)["maxModelLen"]
    assert 4096 < length <= 32768
    assert flag(world, "--max-model-len") == str(length)
    assert world.obj["status"]["effective"]["batching"]["maxModelLen"] == length
    world.gpus = ClusterGPUs((H100,))
    world.edit(scaling={"replicas": 2})
    world.settle()
    assert flag(world, "--max-model-len") == str(length)
    assert "updatePending" not in world.obj["status"]["rollout"]


def test_auto_is_vllms_own_where_the_plan_does_not_know() -> None:
    world = a_world(batching={"maxModelLen": "auto"})
    world.settle()
    assert fits(world)[0] == "Unknown"
    assert flag(world, "--max-model-len") == "auto"
    assert world.obj["status"]["effective"]["batching"]["maxModelLen"] == "auto"


def test_an_update_that_is_asked_for_is_planned_anew() -> None:
    world = serving(H100)
    world.gpus = ClusterGPUs((L4, H100))
    world.obj["metadata"]["annotations"] = {"llmservice.dev/update-requested": "now"}
    world.settle()
    assert products(world) == ["NVIDIA-L4"]
    del world.obj["metadata"]["annotations"]
    world.settle()
    assert products(world) == ["NVIDIA-L4"]


def test_a_revision_of_an_earlier_release_is_neither_restarted_nor_looked_into() -> None:
    """Those have no plan, and their templates no product; the same cluster would be planned otherwise today."""
    world = a_world(H100, fitPolicy="Ignore")
    world.settle()
    world.roll_out()
    world.settle()
    (record,) = [child for (kind, _), child in world.children.items() if kind == "ControllerRevision"]
    assert set(record["data"]["chosen"]) == {"spec", "start"}
    template = world.deployment["spec"]["template"]
    world.edit(fitPolicy="Enforce")
    world.lent = {}
    decision = world.step()
    assert (decision.apply, decision.prune) == ((), ())
    world.settle()
    assert world.deployment["spec"]["template"] == template
    assert "updatePending" not in world.obj["status"]["rollout"]
    assert fits(world) == ("Unknown", "FactsMissing")
    assert world.conditions()["Ready"]["status"] == "True"
    assert world.node_reads == 0
    world.lent = {"config": json.dumps(QWEN_7B)}
    world.edit(batching={"maxNumSeqs": 8})
    world.settle()
    assert fits(world) == ("True", "Fits")


def test_other_facts_of_a_running_model_are_told_and_restart_nothing() -> None:
    world = serving(L4)
    template = world.deployment["spec"]["template"]
    assert fits(world) == ("True", "Fits")
    world.gpus = ClusterGPUs((H100,))
    world.edit(model={"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "architecture": {"numHiddenLayers": 80}})
    world.settle()
    assert fits(world) == ("False", "DoesNotFit")
    assert plan(world)["gpu"] == "NVIDIA-L4"
    assert world.deployment["spec"]["template"] == template
    assert world.conditions()["Ready"]["status"] == "True"


@pytest.mark.parametrize("record", [{}, {"updateRequested": "now"}, {"gpu": "NVIDIA-L4", "ofAnotherRelease": {"a": 1}}])
def test_what_another_release_recorded_is_left_as_it_is(record: Json) -> None:
    """A record can never be changed: whoever drops a key of it is refused by the API server."""
    assert Chosen.from_document(record).to_document() == record
