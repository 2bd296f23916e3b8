"""The verdict about memory: what it says, and what it stops."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_operator.behaviours.fit import planning
from llmservice_planner import memory
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.model import registry
from llmservice_planner.model.architecture import UnsupportedModel

from tests.unit.decide_world import H100, L4, QWEN_7B, T4, a_world, products, serving, settled


def test_what_fits_is_made_and_its_arithmetic_is_in_the_status() -> None:
    world = settled(H100)
    assert world.condition("Fits") == ("True", "Fits")
    assert "Deployment" in world.kinds()
    plan = world.plan
    assert (plan["verdict"], plan["gpu"], plan["gpus"]) == ("Fits", "NVIDIA-H100-80GB-HBM3", 1)
    assert plan["weightsGiB"] == pytest.approx(14.19, abs=0.1)
    parts = plan["perGPU"]
    taken = parts["weightsGiB"] + parts["nonTorchGiB"] + parts["activationGiB"] + parts["graphGiB"]
    assert parts["kvCacheGiB"] == pytest.approx(parts["budgetGiB"] - taken, abs=0.05)
    assert plan["explanation"]


def test_what_does_not_fit_makes_nothing_and_each_proposed_patch_makes_it_fit() -> None:
    world = settled(T4)
    assert world.condition("Fits") == world.condition("Ready") == ("False", "DoesNotFit")
    assert world.kinds() == set()
    assert (world.condition("Accepted")[0], world.condition("Stalled")[1]) == ("True", "DoesNotFit")
    assert "GiB" in world.message("Fits")
    assert world.decide().requeue_after == 60
    patches = [remedy["patch"] for remedy in world.plan["remedies"] if "patch" in remedy]
    assert patches
    for patch in patches:
        assert settled(T4, **json.loads(patch)["spec"]).condition("Fits")[0] == "True", patch


def test_a_change_that_would_not_fit_leaves_what_serves_alone() -> None:
    world = serving(H100)
    before = dict(world.children)
    revision = world.rollout["revision"]
    world.edit(precision={"weights": "float32"}, parallelism={"tensorParallelSize": 1}, batching={"maxModelLen": 2**21})
    decision = world.step()
    assert (decision.apply, decision.prune) == ((), ())
    assert world.children == before
    assert (world.condition("Available")[0], world.condition("Stalled")[0]) == ("True", "True")
    assert world.condition("Ready") == ("False", "DoesNotFit")
    assert world.conditions()["Ready"]["observedGeneration"] == 2
    assert world.rollout["revision"] == revision
    assert world.plan["verdict"] == "DoesNotFit"
    assert [event.reason for event in decision.events] == ["DoesNotFit"]
    assert world.decide().events == ()
    world.change(precision={}, batching={})
    assert world.condition("Ready")[0] == "True"
    assert world.children == before, "going back restarts nothing"


@pytest.mark.parametrize("policy", ["Warn", "Ignore"])
def test_what_does_not_fit_can_be_tried_all_the_same(policy: str) -> None:
    world = settled(T4)
    world.edit(fitPolicy=policy)
    decision = world.step()
    assert "Deployment" in world.kinds()
    assert world.condition("Fits")[1] == ("DoesNotFit" if policy == "Warn" else "PolicyIgnore")
    assert decision.requeue_after is None
    world.serve()
    assert world.condition("Ready")[0] == "True"
    world.change(fitPolicy="Enforce")
    assert world.condition("Ready")[0] == "True", "what runs already is not kept back"


def test_what_was_tried_once_is_kept_back_where_it_does_not_run() -> None:
    """Its revision is recorded, but the Deployment is of another one now."""
    world = settled(T4, fitPolicy="Warn")
    world.edit(precision={"weights": "fp8"})
    world.serve()
    template = world.template
    world.change(precision={}, fitPolicy="Enforce")
    assert world.condition("Fits") == ("False", "DoesNotFit")
    assert world.template == template


def test_the_policy_is_no_part_of_a_revision() -> None:
    world = serving(H100)
    template = world.template
    for policy in ("Warn", "Ignore", "Enforce"):
        world.change(fitPolicy=policy)
        assert world.template == template
        assert "updatePending" not in world.rollout


def test_a_paused_service_has_its_verdict_and_stays_paused() -> None:
    world = a_world(T4, paused=True)
    decision = world.step()
    assert (decision.apply, decision.prune) == ((), ())
    assert world.condition("Fits") == ("False", "DoesNotFit")
    assert world.condition("Ready")[1] == "Paused"
    assert "Stalled" not in world.conditions()


def test_a_tight_plan_starts_and_says_so() -> None:
    world = settled(L4, batching={"maxModelLen": 32768, "maxNumSeqs": 256}, accelerator={"gpuMemoryUtilization": 0.792})
    assert world.condition("Fits") == ("True", "Tight")
    assert "Deployment" in world.kinds()
    assert "may start or not" in world.message("Fits")


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
    world = settled(H100, **CPU)
    # 28 layers x 4 heads x 128 x 2 x 2 bytes are 56 KiB a token; 32768 of them need 1.75 GiB.
    assert world.condition("Fits") == ("False", "DoesNotFit")
    assert world.node_reads == 0
    assert (world.plan["gpu"], world.plan["kvCacheGiB"]) == ("cpu", 1)
    world.change(runtime=CPU_IMAGE | {"env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "2"}]})
    assert world.condition("Fits") == ("True", "Fits")
    assert products(world) == []


@pytest.mark.parametrize(("limit", "verdict"), [("14Gi", "DoesNotFit"), ("20Gi", "Fits")])
def test_on_cpus_the_model_lies_in_the_containers_memory(limit: str, verdict: str) -> None:
    runtime = CPU_IMAGE | {"resources": {"limits": {"memory": limit}}}
    world = settled(**CPU | {"runtime": runtime}, batching={"maxModelLen": 4096})
    assert world.condition("Fits")[1] == verdict
    if verdict == "DoesNotFit":
        assert "its limit is 14.00 GiB" in world.message("Fits")
        (remedy,) = world.plan["remedies"]
        world.change(runtime=runtime | json.loads(remedy["patch"])["spec"]["runtime"])
        assert world.condition("Fits") == ("True", "Fits")


def test_a_verdict_is_an_event_when_it_changes() -> None:
    world = a_world(T4)
    for group, expected in ((T4, [("Warning", "DoesNotFit")]), (T4, []), (H100, [("Normal", "Fits")])):
        world.gpus = ClusterGPUs((group,))
        assert [(event.type, event.reason) for event in world.step().events] == expected
    world = a_world(T4, fitPolicy="Warn")
    assert ("Warning", "DoesNotFit") in [(event.type, event.reason) for event in world.step().events]
    world.settle()
    world.roll_out()
    assert [event.reason for event in world.step().events] == ["RolledOut"]


def test_the_same_plan_has_the_same_words() -> None:
    plans = []
    for _ in range(2):
        planning.answer.cache_clear()
        plans.append(json.dumps(settled(T4, L4).plan, sort_keys=True))
    assert plans[0] == plans[1]


UNPLANNED = {
    # What config.json has beside the sizes of a plain decoder, and what the message names.
    "a type": (
        {"model_type": "deepseek_v41", "architectures": ["DeepseekV41ForCausalLM"]},
        "model_type 'deepseek_v41'",
    ),
    "a class": ({"model_type": "llama", "architectures": ["Glm5NextForCausalLM"]}, "model class 'Glm5NextForCausalLM'"),
    "a word": ({"model_type": "llama", "layer_types": ["warp"] * 28}, "layer_types: 'warp'"),
}


@pytest.mark.parametrize(("named", "says"), UNPLANNED.values(), ids=UNPLANNED)
def test_a_model_that_the_planner_does_not_know_is_started_without_a_plan(named: dict[str, Any], says: str) -> None:
    world = a_world(T4)
    world.sibling_model = {"config": json.dumps(QWEN_7B | named)}
    world.settle()
    assert world.condition("Fits") == ("Unknown", "FactsMissing")
    assert says in world.message("Fits")
    assert "spec.model.architecture (numHiddenLayers, hiddenSize" in world.message("Fits")
    assert "Deployment" in world.kinds()
    assert "weightsGiB" not in world.plan


def test_it_is_planned_as_a_type_that_the_spec_names() -> None:
    """What decides is said by hand then: neither the file's type nor its class."""
    model = {"uri": "hf://acme/new", "architecture": {"modelType": "qwen2"}}
    world = a_world(T4, model=model)
    world.sibling_model = {"config": json.dumps(QWEN_7B | UNPLANNED["a type"][0])}
    world.settle()
    assert world.condition("Fits") == ("False", "DoesNotFit")


def test_a_service_that_runs_keeps_the_plan_of_an_operator_that_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = serving(H100)
    before, template = world.plan, world.template
    world.sibling_model = {"config": json.dumps(QWEN_7B)}
    monkeypatch.setattr(registry, "read_as", _unplanned)
    for cache in (planning.answer, planning.stated, planning.architecture):
        cache.cache_clear()
    world.settle()
    assert (world.plan, world.template, world.condition("Fits")) == (before, template, ("True", "Fits"))


def test_a_service_that_runs_without_a_plan_stays_as_it_is_once_its_type_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even where its plan would say now that it does not fit."""
    caches = (planning.answer, planning.stated, planning.architecture)
    for cache in caches:
        cache.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(registry, "read_as", _unplanned)
        world = serving(T4)
        before, template = world.plan, world.template
        assert world.condition("Fits") == ("Unknown", "FactsMissing")
    for cache in caches:
        cache.cache_clear()
    world.settle()
    assert (world.plan, world.template) == (before, template)
    assert world.condition("Fits") == ("Unknown", "FactsMissing")
    assert settled(T4).condition("Fits") == ("False", "DoesNotFit")


def _unplanned(*_: object) -> str:
    raise UnsupportedModel("model_type", "new")


def test_a_replica_over_two_nodes_needs_half_of_its_gpus_on_each() -> None:
    sizes = {"tensorParallelSize": 4, "pipelineParallelSize": 4}
    one = settled(H100, parallelism=sizes)
    assert one.condition("Fits") == ("False", "DoesNotFit")
    assert "spec.parallelism.nodes" in one.message("Fits")
    two = settled(H100, parallelism={**sizes, "nodes": 2})
    assert two.condition("Fits") == ("True", "Fits")
    assert two.plan["gpus"] == 16
    assert "LeaderWorkerSet" in two.kinds()
