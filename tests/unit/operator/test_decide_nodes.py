"""An edit of spec.parallelism.nodes from or to one: replicas move to another kind of workload, and what serves goes on
serving until they do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llmservice_api.constants import API_SERVER_LABEL, GROUP_INDEX_LABEL, RANK_LABEL, SERVICE_LABEL
from llmservice_api.service import LLMService
from llmservice_operator.behaviours.groups import over_nodes
from llmservice_planner.cluster import ClusterGPUs, NodeGroup
from llmservice_planner.room import NodeRoom, Room, requests_of

from tests.unit.decide_world import H100, QWEN_7B, T4, World, a_pod, a_world

ONE = {"tensorParallelSize": 2}
TWO = {"tensorParallelSize": 2, "nodes": 2}
GPUS = "nvidia.com/gpu"


def room(*free: int) -> Room:
    """Nodes with so many GPUs free."""
    plenty = {"cpu": Decimal(64), "memory": Decimal(2**40), "pods": Decimal(100)}
    return Room(
        tuple(
            NodeRoom(f"node-{number}", H100.product, plenty | {GPUS: Decimal(8)}, {GPUS: Decimal(8 - each)})
            for number, each in enumerate(free)
        )
    )


def pods_of(world: World, kind: str, *, ready: bool, first: int = 0) -> dict[str, Any]:
    """What the controller of the workload makes of it, from this number on."""
    workload = world.children[kind, "x"]
    count = workload["spec"]["replicas"]
    is_set = kind == "LeaderWorkerSet"
    template = workload["spec"]["leaderWorkerTemplate"]["workerTemplate"] if is_set else workload["spec"]["template"]
    revision = template["metadata"]["labels"]["llmservice.dev/revision"]
    found = {}
    for number in range(first, first + count):
        for rank in range(2 if is_set else 1):
            name = f"{'g' if is_set else 'x'}-{number}" + (f"-{rank}" if rank else "")
            found[name] = a_pod(name, revision, ready=ready)
            if is_set:
                labels = found[name]["metadata"]["labels"]
                labels.pop("pod-template-hash", None)
                labels |= {GROUP_INDEX_LABEL: str(number), RANK_LABEL: str(rank)}
                labels |= {key: text for key, text in template["metadata"]["labels"].items() if key == API_SERVER_LABEL}
                owner = {"kind": "StatefulSet", "name": f"x-{number}" if rank else "x", "uid": "s", "controller": True}
                found[name]["metadata"]["ownerReferences"] = [owner]
    numbers = dict.fromkeys(("updatedReplicas", "readyReplicas", "availableReplicas"), count if ready else 0)
    seen = workload["metadata"]["generation"]
    workload["status"] = {"replicas": count, "observedGeneration": seen, **numbers}
    workload["status"]["conditions"] = [{"type": "Available", "status": "True", "observedGeneration": seen}]
    return found


def there(world: World) -> dict[str, int]:
    """Replicas that each workload is to have."""
    kinds = ("Deployment", "LeaderWorkerSet")
    return {kind: world.children[kind, "x"]["spec"]["replicas"] for kind in kinds if (kind, "x") in world.children}


def selects_leaders(world: World) -> bool:
    return RANK_LABEL in world.children["Service", "x"]["spec"]["selector"]


def served(parallelism: dict[str, Any], replicas: int = 1) -> World:
    kind = "LeaderWorkerSet" if "nodes" in parallelism else "Deployment"
    world = a_world(H100, parallelism=parallelism, scaling={"replicas": replicas})
    world.settle()
    world.pods = pods_of(world, kind, ready=True)
    world.settle()
    assert world.condition("Ready") == ("True", "RolledOut")
    assert selects_leaders(world) is (kind == "LeaderWorkerSet")
    return world


CHANGES = [pytest.param(ONE, TWO, id="to two nodes"), pytest.param(TWO, ONE, id="to one node")]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_with_room_the_new_replicas_are_ready_before_the_old_ones_end(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    world = served(before, replicas=2)
    old, new = ("Deployment", "LeaderWorkerSet") if "nodes" in after else ("LeaderWorkerSet", "Deployment")
    olds = dict(world.pods)
    world.room = room(8, 8)
    world.edit(parallelism=after)
    world.settle()
    assert there(world) == {old: 2, new: 2}
    assert selects_leaders(world) is ("nodes" in before), "the old ones are asked"

    world.room = room(0, 0)  # the new ones have taken it
    made = pods_of(world, new, ready=False)
    first = {name: pod for name, pod in pods_of(world, new, ready=True).items() if "-0" in name}
    world.pods = olds | made | first
    world.settle()
    assert there(world) == {old: 2, new: 2}, "one of two is not ready yet"
    assert selects_leaders(world) is ("nodes" in before)

    news = pods_of(world, new, ready=True)
    world.pods, world.unlisted = olds | news, set(news)
    world.step()
    assert selects_leaders(world) is ("nodes" in after)
    assert there(world) == {old: 2, new: 2}, "no request reaches the new ones yet"
    world.unlisted = set()
    world.settle()
    assert there(world) == {old: 0, new: 2}

    world.pods = news
    pods_of(world, old, ready=True)
    world.settle()
    assert world.condition("Ready") == ("True", "RolledOut")
    assert world.condition("Available")[0] == "True"
    assert world.decide().is_steady


def test_a_paused_service_keeps_its_replicas_over_several_nodes_as_they_are() -> None:
    world = served(TWO)
    world.edit(paused=True)
    world.settle()
    assert world.condition("Ready")[0] == "True", "nothing is to be done"
    del world.children["Service", "x"]
    world.edit(parallelism=ONE, batching={"maxNumSeqs": 8})
    world.room = room(8, 8)
    assert world.step().apply == ()
    assert world.condition("Ready") == ("False", "Paused")
    assert there(world) == {"LeaderWorkerSet": 1}
    world.edit(paused=False, parallelism=TWO, batching={})
    world.settle()
    assert selects_leaders(world)
    assert world.condition("Ready") == ("True", "RolledOut")


EXPERTS = {"nodes": 2, "dataParallelSize": 2, "expertParallel": True}
HYBRID = {**EXPERTS, "dataParallelMode": "hybrid"}


def all_answer(world: World) -> bool:
    selector = world.children["Service", "x"]["spec"]["selector"]
    return bool(selector == {SERVICE_LABEL: "x", API_SERVER_LABEL: "true"})


def test_all_pods_are_endpoints_once_no_leader_is_there_that_answers_alone() -> None:
    world = a_world(H100, parallelism=EXPERTS, fitPolicy="Ignore")
    world.settle()
    olds = world.pods = pods_of(world, "LeaderWorkerSet", ready=True)
    world.room = room(8, 8)
    world.edit(parallelism=HYBRID)
    world.settle()
    assert selects_leaders(world)

    news = pods_of(world, "LeaderWorkerSet", ready=True, first=1)
    world.pods, world.unlisted = olds | news, {"g-1-1"}
    world.settle()
    assert selects_leaders(world), "a worker of the old ones would refuse each request"
    assert world.condition("Available")[0] == "True"

    world.pods = news
    world.step()
    assert all_answer(world)
    world.settle()
    assert world.condition("Ready")[0] == "False", "the Service does not have one of two"
    world.unlisted = set()
    world.settle()
    assert world.condition("Ready") == ("True", "RolledOut")
    assert world.decide().is_steady

    world.edit(fitPolicy="Enforce", batching={"maxNumSeqs": 7})
    world.settle()
    assert world.condition("Ready")[1] != "RolledOut", "the edit is held: the model has no experts"
    assert all_answer(world)
    world.edit(parallelism=EXPERTS, fitPolicy="Ignore")
    world.settle()
    assert selects_leaders(world)


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_without_room_the_old_ones_end_first(before: dict[str, Any], after: dict[str, Any]) -> None:
    world = served(before)
    old, new = ("Deployment", "LeaderWorkerSet") if "nodes" in after else ("LeaderWorkerSet", "Deployment")
    for node, pod in enumerate(world.pods.values()):
        pod["spec"]["nodeName"] = f"node-{node}"
    world.room = room(1, 0) if "nodes" in before else room(0, 1)
    world.edit(parallelism=after)
    world.settle()
    assert there(world) == {old: 0, new: 0}
    assert selects_leaders(world) is ("nodes" in before), "until the old ones have ended"

    world.pods = {}
    pods_of(world, old, ready=True)
    world.settle()
    assert there(world) == {old: 0, new: 1}
    assert selects_leaders(world) is ("nodes" in after)
    world.pods = pods_of(world, new, ready=True)
    world.settle()
    assert world.condition("Ready") == ("True", "RolledOut")


@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("strategy", ["Auto", "Replace", "Recreate"])
def test_the_end_of_all_replicas_is_reported_first_where_nobody_asked_for_it(
    before: dict[str, Any], after: dict[str, Any], strategy: str
) -> None:
    world = served(before, replicas=2)
    old = "Deployment" if "nodes" in after else "LeaderWorkerSet"
    for node, pod in enumerate(world.pods.values()):
        pod["spec"]["nodeName"] = f"node-{node % 2}"
    world.room = room(0, 0)
    world.edit(parallelism=after, rollout={"strategy": strategy})
    world.step()
    is_told = strategy == "Recreate"
    assert there(world)[old] == (0 if is_told else 2)
    assert is_told or "All replicas end" in world.status["rollout"]["reason"]
    world.settle()
    assert there(world)[old] == 0


def test_new_replicas_without_room_are_late_and_the_old_ones_end_for_them() -> None:
    world = served(ONE)
    olds = dict(world.pods)
    for pod in olds.values():
        pod["spec"]["nodeName"] = "node-0"
    world.room = room(2, 2)
    world.edit(parallelism=TWO)
    world.settle()
    made = pods_of(world, "LeaderWorkerSet", ready=False)
    for pod in made.values():
        pod["metadata"]["creationTimestamp"] = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        lacking = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        pod["status"] = {
            "phase": "Pending",
            "conditions": [lacking | {"message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."}],
        }
        pod["spec"].pop("nodeName", None)
    world.pods, world.room = olds | made, room(0, 1)
    world.settle()
    assert world.status["rollout"]["strategy"] == "Surge"
    world.now += timedelta(seconds=world.settings.surge_deadline_seconds)
    world.step()
    assert "All replicas end" in world.status["rollout"]["reason"]
    world.settle()
    assert there(world) == {"Deployment": 0, "LeaderWorkerSet": 1}


def test_new_replicas_that_never_are_ready_beside_the_old_ones_are_stalled() -> None:
    world = served(ONE)
    olds = dict(world.pods)
    world.room = room(8, 8)
    world.edit(parallelism=TWO, rollout={"progressDeadlineSeconds": 600})
    world.settle()
    made = pods_of(world, "LeaderWorkerSet", ready=False)
    for pod in made.values():
        pod["metadata"]["creationTimestamp"] = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    world.pods = olds | made
    world.settle()
    assert "Stalled" not in world.conditions()
    world.now += timedelta(seconds=601)
    world.settle()
    assert world.condition("Stalled") == ("True", "ProgressDeadlineExceeded")
    assert world.condition("Available")[0] == "True"


HIDDEN = frozenset({"LeaderWorkerSet"})


@pytest.mark.parametrize("strategy", ["Auto", "Surge", "Replace", "Recreate"])
def test_without_leaderworkersets_what_serves_goes_on_and_the_remedy_is_named(strategy: str) -> None:
    world = served(ONE)
    world.hidden, world.room = HIDDEN, room(0, 0)
    service = world.children["Service", "x"]
    world.edit(parallelism=TWO, rollout={"strategy": strategy})
    world.settle()
    assert there(world) == {"Deployment": 1}
    assert world.children["Service", "x"] == service
    assert world.condition("Ready") == ("False", "AdmissionRefused")
    assert world.condition("Available")[0] == "True"
    assert "groups.enabled" in world.conditions()["Ready"]["message"]


@pytest.mark.parametrize("after", [TWO, ONE], ids=["unchanged", "an edit to one node"])
def test_a_set_that_is_not_seen_any_more_is_left_as_it_is(after: dict[str, Any]) -> None:
    world = served(TWO)
    (seen,) = (world.children.pop(("LeaderWorkerSet", "x")),)
    world.hidden = HIDDEN
    before = dict(world.children)
    world.edit(parallelism=after)
    world.settle()
    assert (dict(world.children), seen["spec"]["replicas"]) == (before, 1)
    assert "has 2 pods and is left as it is" in world.conditions()["Ready"]["message"]


def test_the_networkpolicy_stays_until_the_last_pod_of_a_group_has_ended() -> None:
    world = a_world(H100, parallelism=TWO)
    world.settings = replace(world.settings, has_groups=True)
    world.settle()
    world.pods = pods_of(world, "LeaderWorkerSet", ready=True)
    world.settle()
    world.room = room(8, 8)
    world.edit(parallelism=ONE)
    world.settle()
    assert ("NetworkPolicy", "x") in world.children
    world.pods = pods_of(world, "Deployment", ready=True)
    world.settle()
    assert ("NetworkPolicy", "x") not in world.children


REFUSED = {
    "reason": "FailedCreate",
    "message": 'create Pod x-0 in StatefulSet x failed error: pods "x-0" is forbidden: exceeded quota: gpus, '
    "requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4",
    "lastTimestamp": "2026-01-02T03:04:20Z",
}


def test_pods_that_cannot_be_made_are_reported_and_late() -> None:
    """LeaderWorkerSet says nothing of them."""
    world = a_world(H100, parallelism=TWO, rollout={"progressDeadlineSeconds": 600})
    world.settle()
    pods_of(world, "LeaderWorkerSet", ready=False)
    made = world.children["LeaderWorkerSet", "x"]["metadata"]
    made["managedFields"][0]["time"] = made["creationTimestamp"] = "2026-01-02T03:04:05Z"
    world.now = datetime(2026, 1, 2, 3, 4, 30, tzinfo=UTC)
    world.settle()
    assert world.condition("Ready") == ("False", "Progressing")
    world.events = {"StatefulSet/x": [REFUSED]}
    world.settle()
    assert world.condition("Ready") == ("False", "QuotaExceeded")
    world.now += timedelta(seconds=600)
    world.settle()
    assert world.condition("Stalled") == ("True", "QuotaExceeded")


def test_an_edit_that_is_taken_back_ends_what_it_made() -> None:
    world = served(ONE)
    olds = dict(world.pods)
    world.room = room(8, 8)
    world.edit(parallelism=TWO)
    world.settle()
    world.pods = olds | pods_of(world, "LeaderWorkerSet", ready=False)
    world.edit(parallelism=ONE)
    world.settle()
    assert there(world) == {"Deployment": 1, "LeaderWorkerSet": 0}
    assert not selects_leaders(world)
    world.pods = olds
    pods_of(world, "LeaderWorkerSet", ready=True)
    world.settle()
    assert world.condition("Ready") == ("True", "RolledOut")


def test_a_change_that_does_not_fit_leaves_the_workload_and_its_service_alone() -> None:
    world = served(ONE)
    before = dict(world.children)
    world.edit(parallelism={"tensorParallelSize": 16, "nodes": 1, "pipelineParallelSize": 2})
    world.edit(parallelism={**TWO, "nodes": 2}, precision={"weights": "float32"}, batching={"maxModelLen": 2**21})
    world.settle()
    assert world.condition("Fits")[0] == "False"
    assert world.children == before


def test_a_group_that_never_was_ready_is_late_after_the_deadline_and_one_that_was_is_not() -> None:
    """LeaderWorkerSet keeps no deadline."""
    world = a_world(H100, parallelism=TWO, rollout={"progressDeadlineSeconds": 600})
    world.settle()
    world.pods = pods_of(world, "LeaderWorkerSet", ready=False)
    for pod in world.pods.values():
        pod["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z"
    world.now = datetime(2026, 1, 2, 3, 10, tzinfo=UTC)
    world.settle()
    assert "Stalled" not in world.conditions()
    assert world.decide().requeue_after == pytest.approx(245, abs=1)
    world.now += timedelta(minutes=5)
    world.settle()
    assert world.condition("Stalled") == ("True", "ProgressDeadlineExceeded")

    world.pods = pods_of(world, "LeaderWorkerSet", ready=True)
    world.settle()
    assert world.condition("Ready") == ("True", "RolledOut")
    for pod in world.pods.values():
        server = pod["status"]["containerStatuses"][0]
        server |= {"ready": False, "started": True}
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-02T03:14:00Z"},
        ]
    world.settle()
    assert "Stalled" not in world.conditions()


RACK = "example.com/rack"


def in_racks(there: Room, *racks: str) -> Room:
    pairs = zip(there.nodes, racks, strict=True)
    return replace(there, nodes=tuple(replace(node, labels={**node.labels, RACK: rack}) for node, rack in pairs))


STRATEGIES: dict[str, tuple[tuple[int, ...], tuple[str, ...], str]] = {
    # free GPUs and rack of each node, where node-0 and node-1 have the old replica: the strategy of the change
    "room for one more in a rack": ((0, 0, 1, 1), ("a", "a", "b", "b"), "Surge"),
    "without the old one in its rack": ((0, 0, 1, 0), ("a", "a", "b", "b"), "Replace"),
    "half a replica in each of two racks": ((0, 0, 1, 1), ("a", "a", "b", "c"), "Replace"),
    "nowhere, also without the old one": ((0, 0, 0, 0), ("a", "b", "c", "d"), "Surge"),
}


@pytest.mark.parametrize(("free", "racks", "strategy"), STRATEGIES.values(), ids=STRATEGIES.keys())
def test_an_old_replica_ends_only_for_one_that_a_rack_has_room_for(
    free: tuple[int, ...], racks: tuple[str, ...], strategy: str
) -> None:
    world = served(TWO)
    for node, pod in enumerate(world.pods.values()):
        pod["spec"]["nodeName"] = f"node-{node}"
    world.room = in_racks(room(*free), *racks)
    world.edit(parallelism={**TWO, "topologyKey": RACK})
    world.settle()
    assert world.status["rollout"]["strategy"] == strategy


@pytest.mark.parametrize(("is_on_host", "strategy"), [(False, "Surge"), (True, "Replace")])
def test_ports_of_nodes_are_room_too(is_on_host: bool, strategy: str) -> None:
    network = {"network": {"hostNetwork": True}} if is_on_host else {}
    world = served({**TWO, **network})
    for node, pod in enumerate(world.pods.values()):
        pod["spec"]["nodeName"] = f"node-{node}"
    taken = requests_of(
        world.children["LeaderWorkerSet", "x"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    )
    there = room(4, 4)
    world.room = replace(there, nodes=tuple(replace(node, used={**node.used, **taken}) for node in there.nodes))
    world.edit(batching={"maxNumSeqs": 16})
    world.settle()
    assert world.status["rollout"]["strategy"] == strategy


EIGHT, SIXTEEN = {"tensorParallelSize": 8}, {"tensorParallelSize": 8, "pipelineParallelSize": 2}
OF_FOUR, TWO_OF_EIGHT = replace(H100, per_node=4, nodes=4), replace(H100, nodes=2)
TAINTS = (("team", "a", "NoSchedule"),)
ENGINES = {"dataParallelSize": 16, "expertParallel": True}
AUTO: dict[str, tuple[tuple[NodeGroup, ...], dict[str, Any], int]] = {
    "a node has enough": ((H100,), EIGHT, 1),
    "two nodes have": ((TWO_OF_EIGHT,), SIXTEEN, 2),
    "four have": ((OF_FOUR,), SIXTEEN, 4),
    "two of one product have, and more of another": ((TWO_OF_EIGHT, replace(T4, nodes=9)), SIXTEEN, 2),
    "one of two has: the other may come": ((H100,), SIXTEEN, 2),
    "of two products one each": ((H100, replace(H100, product="NVIDIA-H200")), SIXTEEN, 2),
    "none is there: as usual machines": ((), SIXTEEN, 2),
    "nodes with a taint do not count": ((replace(OF_FOUR, per_node=16, taints=TAINTS), TWO_OF_EIGHT), SIXTEEN, 2),
    "engines with experts": ((TWO_OF_EIGHT,), ENGINES, 2),
    "engines with experts are shared out evenly": ((OF_FOUR,), {**ENGINES, "dataParallelSize": 6}, 2),
    "engines without experts stay on a node": ((OF_FOUR,), {"dataParallelSize": 8}, 1),
    "more than usual machines hold": ((), {"tensorParallelSize": 64, "pipelineParallelSize": 64}, 64),
    "three GPUs of nodes with two": ((replace(OF_FOUR, per_node=2),), {"pipelineParallelSize": 3}, 3),
}


@pytest.mark.parametrize(("groups", "sizes", "nodes"), AUTO.values(), ids=AUTO.keys())
def test_auto_takes_the_fewest_nodes_that_have_the_gpus(
    groups: tuple[NodeGroup, ...], sizes: dict[str, Any], nodes: int
) -> None:
    world = a_world(*groups, parallelism={**sizes, "nodes": "auto", "network": {"preset": "tcp"}})
    found = over_nodes(LLMService.from_object(world.obj), world.gpus, lambda spread, cluster: None).spec.parallelism
    assert (found.nodes, found.network is None) == (nodes, nodes == 1)


LLAMA_70B = {
    "numHiddenLayers": 80,
    "hiddenSize": 8192,
    "numAttentionHeads": 64,
    "numKeyValueHeads": 8,
    "vocabSize": 128256,
    "intermediateSize": 28672,
    "maxPositionEmbeddings": 8192,
}
T4S, PAIRS = replace(T4, per_node=8), replace(H100, per_node=2, nodes=4)
UNLABELLED = replace(T4S, product=None, memory_mib=None)
FITTING: dict[str, tuple[tuple[NodeGroup, ...], dict[str, Any], int]] = {
    "not on the node that has them": ((T4S, PAIRS), {}, 4),
    "on none: the verdict is about the fewest": ((replace(T4S, nodes=2),), {}, 1),
    "too few nodes have GPUs on which it fits": ((T4S, replace(PAIRS, nodes=2)), {}, 1),
    "on a GPU that is not known it may, and does on another": ((UNLABELLED, PAIRS), {}, 4),
    "on no GPU that is known": ((UNLABELLED, replace(PAIRS, nodes=3)), {}, 1),
    "a GPU whose memory the spec states": (
        (replace(T4S, product="Some-GPU", memory_mib=None), PAIRS),
        {"accelerator": {"memory": "16Gi"}},
        4,
    ),
    "nodes of which half are of another architecture": (
        (replace(H100, architecture="arm64"), replace(H100, per_node=4), PAIRS),
        {},
        4,
    ),
    "nodes that the images are not built for": ((replace(H100, architecture="arm64"), PAIRS), {}, 4),
    "the model is not looked at": ((T4S, PAIRS), {"fitPolicy": "Ignore"}, 1),
}


@pytest.mark.parametrize(("groups", "sections", "nodes"), FITTING.values(), ids=FITTING.keys())
def test_auto_takes_nodes_on_whose_gpus_the_model_fits(
    groups: tuple[NodeGroup, ...], sections: dict[str, Any], nodes: int
) -> None:
    model = {"uri": "hf://x/y", "architecture": LLAMA_70B}
    world = a_world(*groups, parallelism={**EIGHT, "nodes": "auto"}, model=model, **sections)
    world.settle()
    assert (world.status["effective"]["parallelism"].get("nodes") or 1) == nodes


SLICES = NodeGroup("NVIDIA-A100-SXM4-80GB-MIG-3g.40gb", 2, nodes=4, memory_mib=40448)


@pytest.mark.parametrize("named", [{}, {"products": ["NVIDIA-A100-SXM4-80GB"]}], ids=["any card", "the card's name"])
def test_auto_takes_a_node_for_each_slice_since_a_process_sees_one(named: dict[str, Any]) -> None:
    of_slices = {"resourceName": "nvidia.com/mig-3g.40gb", **named}
    world = a_world(SLICES, parallelism={"tensorParallelSize": 2, "nodes": "auto"}, accelerator=of_slices)
    world.settle()
    assert world.status["effective"]["parallelism"]["nodes"] == 2


@pytest.mark.parametrize("nodes", ["auto", 2])
def test_a_product_that_enough_nodes_have_comes_before_one_that_too_few_have(nodes: str | int) -> None:
    products = {"products": ["Tesla-T4", str(H100.product)]}
    four = {"tensorParallelSize": 4, "pipelineParallelSize": 2, "nodes": nodes}
    world = a_world(replace(H100, per_node=4, nodes=2), T4, parallelism=four, accelerator=products)
    world.settle()
    assert world.status["effective"]["parallelism"]["nodes"] == 2
    assert world.status["plan"]["gpu"] == H100.product


A100 = NodeGroup("NVIDIA-A100-SXM4-40GB", 8, nodes=2, memory_mib=40960)


def test_a_product_that_enough_nodes_have_comes_first_also_where_it_is_tight() -> None:
    """One that is bound to the other would never be placed."""
    model = {"uri": "hf://x/y", "architecture": {**LLAMA_70B, "numHiddenLayers": 300}}
    products = {"products": [str(A100.product), str(H100.product)]}
    spread = {"tensorParallelSize": 8, "pipelineParallelSize": 2, "nodes": "auto"}
    world = a_world(A100, H100, parallelism=spread, accelerator=products, model=model)
    world.settle()
    assert world.status["plan"]["verdict"] == "Tight"
    assert (world.status["plan"]["gpu"], world.status["effective"]["parallelism"]["nodes"]) == (A100.product, 2)


def test_with_a_pinned_revision_of_another_model_only_that_one_is_read() -> None:
    """A decision that asked for both in turn would never end."""
    world = served(TWO)
    before, facts = world.status["rollout"]["revision"], world.status["model"]["inspection"]
    world.sibling_model = {"config": json.dumps({**QWEN_7B, "num_hidden_layers": 40})}
    accelerator = {"type": "nvidia", "memory": "80Gi"}  # a fact of plans, so that it is planned again
    rollout = {"pinnedRevision": before}
    parallelism = {"tensorParallelSize": 4, "nodes": "auto"}
    world.edit(model={"uri": "hf://other/model"}, rollout=rollout, accelerator=accelerator, parallelism=parallelism)
    world.settle()
    assert there(world) == {"LeaderWorkerSet": 1}
    assert world.status["model"]["inspection"] == facts


def test_auto_waits_for_what_another_service_knows_of_the_model() -> None:
    """Nothing is recorded with a number that was chosen without it."""
    small = replace(T4S, product="Small-GPU", memory_mib=1024)
    world = a_world(small, PAIRS, parallelism={"tensorParallelSize": 4, "nodes": "auto"})
    world.settle()
    assert world.status["effective"]["parallelism"]["nodes"] == 2


def test_auto_stays_with_the_number_that_runs_until_the_spec_changes() -> None:
    world = served(TWO)
    world.edit(parallelism={**TWO, "nodes": "auto"})
    world.gpus = ClusterGPUs((H100,))  # one node would have both
    world.settle()
    assert there(world) == {"LeaderWorkerSet": 1}
    assert world.status["effective"]["parallelism"]["nodes"] == 2
    assert world.condition("Ready") == ("True", "RolledOut"), "nothing restarts"
    world.room = room(8, 8)
    world.edit(parallelism={**TWO, "nodes": "auto"}, batching={"maxNumSeqs": 8, "maxModelLen": 8192})
    world.settle()
    assert there(world) == {"LeaderWorkerSet": 1, "Deployment": 1}, "a new revision is of the nodes of today"
    del world.children["Deployment", "x"]
    world.gpus = ClusterGPUs((replace(H100, per_node=1, nodes=2),))
    world.settle()
    assert there(world) == {"LeaderWorkerSet": 1, "Deployment": 1}, "and stays so, whether it runs or not"


def _model(layers: int) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.sibling_model = {"config": json.dumps({**QWEN_7B, "num_hidden_layers": layers})}
        world.edit(model={"uri": f"hf://x/of-{layers}"})

    return change


def _over(nodes: str | int) -> Callable[[World], None]:
    return lambda world: world.edit(parallelism={"tensorParallelSize": 4, "nodes": nodes})


def _pin(world: World) -> None:
    names = sorted(name for kind, name in world.children if kind == "ControllerRevision")
    world.edit(rollout={"pinnedRevision": names[0].rpartition("-")[2]} if names else {})


def _serves(world: World) -> None:
    world.pods = {}
    for kind in there(world):
        world.pods |= pods_of(world, kind, ready=True)


CHANGES_OF_ALL_KINDS: dict[str, Callable[[World], None]] = {
    **{f"a model of {layers} layers": _model(layers) for layers in (28, 40)},
    **{f"{nodes} nodes": _over(nodes) for nodes in ("auto", 1, 2)},
    "stated memory": lambda world: world.edit(accelerator={"type": "nvidia", "memory": "80Gi"}),
    "listed products": lambda world: world.edit(accelerator={"products": [str(H100.product), "Tesla-T4"]}),
    "slices": lambda world: world.edit(accelerator={"resourceName": "nvidia.com/mig-3g.40gb"}),
    "a pinned revision": _pin,
    "none pinned": lambda world: world.edit(rollout={}),
    "paused": lambda world: world.edit(paused=True),
    "not paused": lambda world: world.edit(paused=False),
    "other nodes": lambda world: setattr(world, "gpus", ClusterGPUs((SLICES, PAIRS))),
    "pods that serve": _serves,
    "it is not planned": lambda world: world.edit(fitPolicy="Ignore"),
    "only what fits": lambda world: world.edit(fitPolicy="Enforce"),
}


PINNED = ["a pinned revision"]


@given(st.sampled_from([[], PINNED]), st.lists(st.sampled_from(sorted(CHANGES_OF_ALL_KINDS)), max_size=8))
@example(PINNED, ["a model of 40 layers", "stated memory"])
def test_whatever_is_edited_a_decision_ends(first: list[str], names: list[str]) -> None:
    """None asks for one thing about the spec and for the same about the revision that runs, in turn for ever."""
    world = a_world(T4S, PAIRS, parallelism={"tensorParallelSize": 4, "nodes": "auto"})
    world.room = room(8, 8)
    for name in ["not paused", "pods that serve", *first, *names]:
        CHANGES_OF_ALL_KINDS[name](world)
        for _ in range(2):
            world.step()
