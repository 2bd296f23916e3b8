"""The verdict about memory: what it says, and what it stops."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_operator.decide.fit import planning
from llmservice_operator.planner import memory
from llmservice_operator.planner.cluster import ClusterGPUs

from tests.unit.fit_world import H100, L4, T4, a_world, fits, kinds, plan, products, serving


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
    pytest.param((T4,), (H100,), [("Normal", "Fits")], id="a GPU came"),
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


def test_the_same_plan_is_told_in_the_same_words() -> None:
    told = []
    for _ in range(2):
        planning.answer.cache_clear()
        world = a_world(T4, L4)
        world.settle()
        told.append(json.dumps(world.obj["status"]["plan"], sort_keys=True))
    assert told[0] == told[1]
