"""The verdict about memory: what it says, what it stops, and what a revision is made with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_operator.build.chosen import Chosen
from llmservice_operator.control import planning
from llmservice_operator.planner import memory
from llmservice_operator.planner.cluster import ClusterGPUs, NodeGroup

from tests.unit.decide_world import QWEN_7B, World, an_llmservice, spec

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


def test_a_change_that_would_not_fit_leaves_what_serves_alone() -> None:
    world = serving(H100)
    before = dict(world.children)
    revision = world.obj["status"]["rollout"]["revision"]
    world.edit(precision={"weights": "float32"}, parallelism={"tensorParallelSize": 1}, batching={"maxModelLen": 2**21})
    decision = world.step()
    assert (decision.apply, decision.prune) == ((), ())
    assert world.children == before
    conditions = world.conditions()
    assert (conditions["Available"]["status"], conditions["Stalled"]["status"]) == ("True", "True")
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "DoesNotFit")
    assert conditions["Ready"]["observedGeneration"] == 2
    assert world.obj["status"]["rollout"]["revision"] == revision
    assert plan(world)["verdict"] == "DoesNotFit"
    assert [event.reason for event in decision.events] == ["DoesNotFit"]
    assert world.decide().events == ()
    world.edit(precision={}, batching={})
    world.settle()
    assert world.conditions()["Ready"]["status"] == "True"
    assert world.children == before, "going back restarts nothing"


@pytest.mark.parametrize("policy", ["Warn", "Ignore"])
def test_what_does_not_fit_can_be_tried_all_the_same(policy: str) -> None:
    world = a_world(T4)
    world.settle()
    world.edit(fitPolicy=policy)
    decision = world.step()
    assert "Deployment" in kinds(world)
    assert fits(world)[1] == ("DoesNotFit" if policy == "Warn" else "PolicyIgnore")
    assert decision.requeue_after is None
    world.settle()
    world.roll_out()
    world.settle()
    assert world.conditions()["Ready"]["status"] == "True"
    world.edit(fitPolicy="Enforce")
    world.settle()
    assert world.conditions()["Ready"]["status"] == "True", "what runs already is not kept back"


def test_what_was_tried_once_is_kept_back_where_it_does_not_run() -> None:
    """Its revision is recorded, but the Deployment is of another one now."""
    world = a_world(T4, fitPolicy="Warn")
    world.settle()
    world.edit(precision={"weights": "fp8"})
    world.settle()
    world.roll_out()
    world.settle()
    template = world.deployment["spec"]["template"]
    world.edit(precision={}, fitPolicy="Enforce")
    world.settle()
    assert fits(world) == ("False", "DoesNotFit")
    assert world.deployment["spec"]["template"] == template


def test_the_policy_is_no_part_of_a_revision() -> None:
    world = serving(H100)
    template = world.deployment["spec"]["template"]
    for policy in ("Warn", "Ignore", "Enforce"):
        world.edit(fitPolicy=policy)
        world.settle()
        assert world.deployment["spec"]["template"] == template
        assert "updatePending" not in world.obj["status"]["rollout"]


def test_a_paused_service_is_told_its_verdict_and_stays_paused() -> None:
    world = a_world(T4, paused=True)
    decision = world.step()
    assert (decision.apply, decision.prune) == ((), ())
    assert fits(world) == ("False", "DoesNotFit")
    assert world.conditions()["Ready"]["reason"] == "Paused"
    assert "Stalled" not in world.conditions()


def test_a_tight_plan_starts_and_says_so() -> None:
    world = a_world(L4, batching={"maxModelLen": 32768, "maxNumSeqs": 256}, accelerator={"gpuMemoryUtilization": 0.792})
    world.settle()
    assert fits(world) == ("True", "Tight")
    assert "Deployment" in kinds(world)
    assert "may start or not" in world.conditions()["Fits"]["message"]


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
    world = a_world(T4, L4, H100, accelerator={"product": ["Tesla-T4", "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4"]})
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
    assert record["data"]["chosen"] == {}
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


def test_steady_services_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = [serving(H100), serving(H100, batching={"maxModelLen": "auto"}), serving()]

    def never(*_: object, **__: object) -> None:
        raise AssertionError("planned again")

    planning.answer.cache_clear()
    monkeypatch.setattr(memory, "plan", never)
    for world in worlds:
        reads = world.node_reads
        assert world.decide().is_steady
        assert world.node_reads == reads


CPU_IMAGE = {"image": "registry.local/vllm-cpu:v0.32.0"}
CPU = {"accelerator": {"type": "cpu"}, "runtime": CPU_IMAGE}


def test_on_cpus_the_kv_cache_has_a_size_of_its_own_and_no_node_is_asked() -> None:
    world = a_world(H100, **CPU)
    world.settle()
    # 28 layers x 4 heads x 128 x 2 x 2 bytes are 56 KiB a token; 32768 of them need 1.75 GiB.
    assert fits(world) == ("False", "DoesNotFit")
    assert world.node_reads == 0
    assert (plan(world)["gpu"], plan(world)["kvCacheGiB"]) == ("cpu", 1)
    world.edit(runtime=CPU_IMAGE | {"env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "2"}]})
    world.settle()
    assert fits(world) == ("True", "Fits")
    assert products(world) == []


@pytest.mark.parametrize(("limit", "verdict"), [("14Gi", "DoesNotFit"), ("20Gi", "Fits")])
def test_on_cpus_the_model_lies_in_the_containers_memory(limit: str, verdict: str) -> None:
    runtime = CPU_IMAGE | {"resources": {"limits": {"memory": limit}}}
    world = a_world(**CPU | {"runtime": runtime}, batching={"maxModelLen": 4096})
    world.settle()
    assert fits(world)[1] == verdict
    if verdict == "DoesNotFit":
        assert "its limit is 14.00 GiB" in world.conditions()["Fits"]["message"]
        (remedy,) = plan(world)["remedies"]
        world.edit(runtime=runtime | json.loads(remedy["patch"])["spec"]["runtime"])
        world.settle()
        assert fits(world) == ("True", "Fits")


EVENTS = [
    # what is there at first, then; the events of the second look
    pytest.param((T4,), (H100,), [("Normal", "Fits"), ("Normal", "Progressing")], id="a GPU came"),
    pytest.param((T4,), (T4,), [], id="nothing new"),
]


@pytest.mark.parametrize(("first", "then", "told"), EVENTS)
def test_a_verdict_that_turns_is_an_event(first: Any, then: Any, told: list[tuple[str, str]]) -> None:
    world = a_world(*first)
    assert [(event.type, event.reason) for event in world.step().events] == [("Warning", "DoesNotFit")]
    world.gpus = ClusterGPUs(then)
    assert [(event.type, event.reason) for event in world.step().events] == told


def test_a_verdict_that_stays_is_no_event() -> None:
    world = a_world(T4, fitPolicy="Warn")
    assert ("Warning", "DoesNotFit") in [(event.type, event.reason) for event in world.step().events]
    world.settle()
    world.roll_out()
    assert [event.reason for event in world.step().events] == ["RolledOut"]


@pytest.mark.parametrize("record", [{}, {"updateRequested": "now"}, {"gpu": "NVIDIA-L4", "ofAnotherRelease": {"a": 1}}])
def test_what_another_release_recorded_is_left_as_it_is(record: Json) -> None:
    """A record can never be changed: whoever drops a key of it is refused by the API server."""
    assert Chosen.from_document(record).to_document() == record


def test_the_same_plan_is_told_in_the_same_words() -> None:
    told = []
    for _ in range(2):
        planning.answer.cache_clear()
        world = a_world(T4, L4)
        world.settle()
        told.append(json.dumps(world.obj["status"]["plan"], sort_keys=True))
    assert told[0] == told[1]
