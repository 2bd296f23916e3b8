"""What a revision is made with by its plan: the GPU product and the length, frozen with it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from llmservice_operator.behaviours.fit import planning
from llmservice_operator.manifests.revision import RevisionChoices
from llmservice_planner.cluster import ClusterGPUs, NodeGroup
from llmservice_planner.room import Sharing
from llmservice_runtime.contract import GPU, Failure
from llmservice_runtime.contract import FailureReason as R

from tests.unit.decide_world import (
    H100,
    L4,
    QWEN_7B,
    T4,
    Json,
    World,
    a_pod,
    a_world,
    preferred,
    products,
    serving,
    settled,
)

UNNAMED = NodeGroup(None, 8)


def test_the_picked_product_is_preferred_and_frozen() -> None:
    world = serving(H100, T4)
    assert (preferred(world), products(world)) == (["NVIDIA-H100-80GB-HBM3"], [])
    (record,) = world.of_kind("ControllerRevision")
    chosen = record["data"]["chosen"]
    assert (chosen["gpu"], chosen["plan"]) == ("NVIDIA-H100-80GB-HBM3", world.plan)
    for groups in ((), (T4,), (NodeGroup("NVIDIA-B200", 8, memory_mib=183359), H100)):
        world.gpus = ClusterGPUs(groups)
        world.change(scaling={"replicas": 2})
        assert preferred(world) == ["NVIDIA-H100-80GB-HBM3"]
        assert world.condition("Fits") == ("True", "Fits")
    assert world.node_reads == 1


FROZEN = {
    # the product, GiB of one GPU in the recorded plan; those that it is planned with again
    "a card": ("NVIDIA-A100-SXM4-80GB", 79.2, 79.15),
    "time slicing": ("NVIDIA-A100-SXM4-80GB-SHARED", 79.15, 79.15),
    "MPS": ("NVIDIA-A100-SXM4-80GB-SHARED", 19.79, 19.79),
    "a slice by the label of its card": ("NVIDIA-A100-SXM4-80GB", 39.1, 39.1),
    "a slice": ("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb", 39.5, 39.5),
    "nothing recorded": ("NVIDIA-A100-SXM4-80GB", None, 79.15),
}


@pytest.mark.parametrize("case", FROZEN)
def test_a_share_that_was_planned_stays_one(case: str) -> None:
    product, recorded, planned = FROZEN[case]
    plan = None if recorded is None else {"perGPU": {"memoryGiB": recorded}}
    device = planning.recorded_device(a_world().service(), RevisionChoices(gpu=product, plan=plan))
    assert device is not None
    assert device.memory_gib == pytest.approx(planned, abs=0.3)


SHARED = NodeGroup("NVIDIA-L4-SHARED", 8, memory_mib=23034, sharing=Sharing(2, has_own_memory=True))
PARTS: dict[str, tuple[NodeGroup, Json, bool]] = {
    # nodes, the accelerator; whether more GPUs are a remedy
    "cards": (T4, {}, True),
    "MPS": (SHARED, {}, False),
    "a renamed share": (replace(SHARED, product="NVIDIA-L4"), {}, False),
    "time slicing": (replace(SHARED, memory_mib=8192, sharing=Sharing(2, has_own_memory=False)), {}, False),
    "slices": (NodeGroup("NVIDIA-A100-SXM4-40GB-MIG-2g.10gb", 8, memory_mib=9856), {}, False),
    "a slice by its card's label": (
        NodeGroup("NVIDIA-A100-SXM4-40GB-MIG-2g.10gb", 8, memory_mib=9856),
        {"products": ["NVIDIA-A100-SXM4-40GB"], "resourceName": "nvidia.com/mig-2g.10gb"},
        False,
    ),
    "slices of any card": (UNNAMED, {"resourceName": "nvidia.com/mig-2g.10gb"}, False),
    "slices that may come": (T4, {"products": ["NVIDIA-A100-SXM4-40GB-MIG-2g.10gb"]}, False),
}


@pytest.mark.parametrize("case", PARTS)
def test_more_gpus_are_no_remedy_where_a_pod_gets_parts_of_one(case: str) -> None:
    group, accelerator, is_remedy = PARTS[case]
    world = settled(group, accelerator={"type": "nvidia"} | accelerator)
    assert world.condition("Fits") == ("False", "DoesNotFit")
    changes = json.dumps(world.plan.get("remedies", []))
    assert ("tensorParallelSize" in changes) is is_remedy, changes
    assert is_remedy or "it needs" not in world.plan["reason"]


def test_the_first_of_a_list_that_fits_is_the_only_one_that_pods_may_get() -> None:
    world = settled(T4, L4, H100, accelerator={"products": ["Tesla-T4", "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4"]})
    assert products(world) == ["NVIDIA-H100-80GB-HBM3"]
    assert world.plan["gpu"] == "NVIDIA-H100-80GB-HBM3"


X = replace(L4, product="NVIDIA-X1000", memory_mib=65536)
SHARED = replace(T4, product="Tesla-T4-SHARED")
SMALL = ["Tesla-T4", "Tesla-V100-SXM2-16GB"]
CHOICE: list[tuple[str, tuple[NodeGroup, ...], Json, list[str], list[str]]] = [
    # nodes and the accelerator that the spec names; products that are preferred, and that are excluded
    ("one product", (L4,), {}, ["NVIDIA-L4"], SMALL),
    ("too small a node beside it", (L4, SHARED), {}, ["NVIDIA-L4"], ["Tesla-T4", "Tesla-T4-SHARED", SMALL[1]]),
    ("one that would do too", (L4, X, H100), {}, ["NVIDIA-L4"], SMALL),
    ("unlabelled nodes only", (UNNAMED,), {}, [], []),
    ("unlabelled nodes beside one too small", (UNNAMED, T4), {}, [], SMALL),
    ("and their memory is given", (UNNAMED, T4), {"memory": "24Gi"}, [], SMALL),
    ("memory of what a pool brings is given", (T4,), {"memory": "24Gi"}, [], SMALL),
    ("the spec names it", (L4, H100), {"products": ["NVIDIA-L4"]}, [], []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "accelerator", "wanted", "unfit"), [c[1:] for c in CHOICE], ids=[c[0] for c in CHOICE]
)
def test_a_product_that_the_operator_chose_keeps_no_pod_from_a_node_that_would_do(
    groups: tuple[NodeGroup, ...], accelerator: Json, wanted: list[str], unfit: list[str]
) -> None:
    world = settled(*groups, accelerator=accelerator, batching={"maxModelLen": 16384})
    assert "Deployment" in world.kinds()
    assert (preferred(world), products(world, "NotIn")) == (wanted, unfit)
    assert products(world) == accelerator.get("products", [])


def test_what_is_too_small_for_the_length_that_was_planned_is_excluded() -> None:
    """An L4 holds the model, and fewer tokens than those with which vLLM is started for an H100."""
    world = a_world(H100, replace(L4, taints=(("a", "", "NoSchedule"),)), batching={"maxModelLen": "auto"})
    world.sibling_model = {"config": json.dumps(QWEN_7B | {"max_position_embeddings": 1_048_576})}
    world.settle()
    assert preferred(world) == ["NVIDIA-H100-80GB-HBM3"]
    assert "NVIDIA-L4" in products(world, "NotIn")


def test_the_status_says_whose_choice_the_product_is() -> None:
    world = settled(L4)
    assert "The operator chose NVIDIA-L4" in world.message("Fits")
    assert "The operator chose" not in settled(L4, accelerator={"products": ["NVIDIA-L4"]}).message("Fits")


@pytest.mark.parametrize(("groups", "picked"), [((T4, L4), ["NVIDIA-L4"]), ((T4,), None)])
def test_a_product_that_cannot_compute_it_is_passed_over(groups: tuple[NodeGroup, ...], picked: list[str]) -> None:
    """A T4 has no bfloat16, and room enough for half a billion parameters."""
    small = QWEN_7B | {"num_hidden_layers": 4, "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2}
    world = a_world(*groups, precision={"dtype": "bfloat16"})
    world.sibling_model = {"config": json.dumps(small | {"intermediate_size": 4864})}
    world.settle()
    if picked:
        assert preferred(world) == picked
    else:
        assert world.condition("Fits") == ("False", "DoesNotFit")
        assert "bfloat16" in world.message("Fits")
        assert "remedies" not in world.plan


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
    world = settled(tainted, H100, podTemplate=template, batching={"maxModelLen": 4096})
    assert preferred(world) == [expected]


def test_without_the_right_to_list_nodes_nothing_is_blocked_and_the_right_is_named() -> None:
    world = a_world()
    world.gpus = ClusterGPUs(missing_right="list nodes")
    world.settle()
    assert world.condition("Fits") == ("Unknown", "FactsMissing")
    assert "no right to list nodes" in world.message("Fits")
    assert "Deployment" in world.kinds()
    assert (preferred(world), products(world)) == ([], [])


def test_nodes_are_read_again_until_a_gpu_comes() -> None:
    world = settled(T4)
    reads = world.node_reads
    world.gpus = ClusterGPUs((T4, H100))
    world.settle()
    assert world.node_reads > reads
    assert world.condition("Fits") == ("True", "Fits")
    assert preferred(world) == ["NVIDIA-H100-80GB-HBM3"]
    assert world.decide().requeue_after is None


def flag(world: World, name: str) -> str | None:
    """What the engine is started with."""
    (server,) = world.template["spec"]["containers"]
    arguments = " ".join(server["args"]).replace("=", " ").split()
    return arguments[arguments.index(name) + 1] if name in arguments else None


def test_auto_is_the_planned_length_recorded_with_the_revision() -> None:
    world = settled(L4, batching={"maxModelLen": "auto"})
    length = world.plan["maxModelLen"]
    assert 4096 < length <= 32768
    assert flag(world, "--max-model-len") == str(length)
    assert world.status["effective"]["batching"]["maxModelLen"] == length
    world.gpus = ClusterGPUs((H100,))
    world.change(scaling={"replicas": 2})
    assert flag(world, "--max-model-len") == str(length)
    assert "updatePending" not in world.rollout


def test_auto_is_vllms_own_where_the_plan_does_not_know() -> None:
    world = settled(batching={"maxModelLen": "auto"})
    assert world.condition("Fits")[0] == "Unknown"
    assert flag(world, "--max-model-len") == "auto"
    assert world.status["effective"]["batching"]["maxModelLen"] == "auto"


def test_an_update_that_is_asked_for_is_planned_anew() -> None:
    world = serving(H100)
    world.gpus = ClusterGPUs((L4, H100))
    world.request_update()
    assert preferred(world) == ["NVIDIA-L4"]
    del world.obj["metadata"]["annotations"]
    world.settle()
    assert preferred(world) == ["NVIDIA-L4"]


def test_a_revision_of_an_earlier_release_is_neither_restarted_nor_inspected() -> None:
    """Those have no plan, and their templates no product; the same cluster would be planned otherwise today."""
    world = a_world(H100, fitPolicy="Ignore")
    world.serve()
    (record,) = world.of_kind("ControllerRevision")
    assert set(record["data"]["chosen"]) == {"spec", "start"}
    template = world.template
    world.edit(fitPolicy="Enforce")
    world.sibling_model = {}
    decision = world.step()
    assert (decision.apply, decision.prune) == ((), ())
    world.settle()
    assert world.template == template
    assert "updatePending" not in world.rollout
    assert world.condition("Fits") == ("Unknown", "FactsMissing")
    assert world.condition("Ready")[0] == "True"
    assert world.node_reads == 0
    world.sibling_model = {"config": json.dumps(QWEN_7B)}
    world.change(batching={"maxNumSeqs": 8})
    assert world.condition("Fits") == ("True", "Fits")


def test_other_facts_of_a_running_model_are_reported_and_restart_nothing() -> None:
    world = serving(L4)
    template = world.template
    assert world.condition("Fits") == ("True", "Fits")
    world.gpus = ClusterGPUs((H100,))
    world.change(model={"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "architecture": {"numHiddenLayers": 80}})
    assert world.condition("Fits") == ("False", "DoesNotFit")
    assert world.plan["gpu"] == "NVIDIA-L4"
    assert world.template == template
    assert world.condition("Ready")[0] == "True"


@pytest.mark.parametrize("record", [{}, {"updateRequested": "now"}, {"gpu": "NVIDIA-L4", "ofAnotherRelease": {"a": 1}}])
def test_what_another_release_recorded_is_left_as_it_is(record: Json) -> None:
    """A record can never be changed: whoever drops a key of it is refused by the API server."""
    assert RevisionChoices.from_document(record).to_document() == record


def architectures(world: World) -> list[str]:
    """Those that the template excludes."""
    node = (world.template["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = node.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    parts = [part for term in terms for part in term["matchExpressions"] if part["key"] == "kubernetes.io/arch"]
    return [value for part in parts if part["operator"] == "NotIn" for value in part["values"]]


ARM_L4 = replace(L4, architecture="arm64")
ARM_A10 = replace(L4, product="NVIDIA-A10", architecture="arm64")
ARM = {"spec": {"nodeSelector": {"kubernetes.io/arch": "arm64"}}}
BY_AFFINITY: Json = {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [BY_AFFINITY]}}
BOUND = {"spec": {"affinity": {"nodeAffinity": REQUIRED}}}
NAMED = {"accelerator": {"products": ["NVIDIA-L4"]}}
OF_ARCHITECTURES: list[tuple[str, tuple[NodeGroup, ...], Json, str, list[str], str]] = [
    # nodes and sections; product that was planned, architectures that are excluded, words of the message
    ("amd64 only", (L4,), {}, "NVIDIA-L4", [], ""),
    ("a smaller one is arm64", (ARM_A10, H100), {}, H100.product or "", ["arm64"], "Nodes of arm64 are left out"),
    ("the same product", (ARM_L4, L4), {}, "NVIDIA-L4", ["arm64"], "the images are built for amd64"),
    ("one that the spec names", (ARM_L4, L4), NAMED, "NVIDIA-L4", ["arm64"], ""),
    ("arm64 only", (ARM_L4,), {}, "NVIDIA-L4", [], "Its nodes are arm64, and the images are built for amd64"),
    ("the other is not named", (ARM_L4, H100), NAMED, "NVIDIA-L4", [], "are arm64"),
    ("a selector takes it", (ARM_L4, L4), {"podTemplate": ARM}, "NVIDIA-L4", [], ""),
    ("affinity takes it", (ARM_L4, L4), {"podTemplate": BOUND}, "NVIDIA-L4", [], ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "sections", "product", "left_out", "words"),
    [row[1:] for row in OF_ARCHITECTURES],
    ids=[row[0] for row in OF_ARCHITECTURES],
)
def test_nodes_that_the_images_are_not_built_for_are_left_out_where_others_have_the_gpu(
    groups: tuple[NodeGroup, ...], sections: Json, product: str, left_out: list[str], words: str
) -> None:
    world = settled(*groups, **sections)
    assert (world.plan["gpu"], architectures(world)) == (product, left_out)
    assert words in world.message("Fits")


T4_CARD = GPU("Tesla T4", 14.56)
TOO_SMALL = Failure(R.KV_CACHE_TOO_SMALL, "No available memory for the cache blocks.", "Set maxModelLen.", gpu=T4_CARD)


def failed_on(world: World, failure: Failure) -> World:
    """Its pod was placed, and ends again and again with this."""
    ended = {"exitCode": 1, "reason": "Error", "message": failure.to_json(), "finishedAt": "2026-01-02T03:03:00Z"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    world.pods = {"x-0": a_pod("x-0", world.revision(), state=waiting, last=ended, restarts=4)}
    world.settle()
    return world


def test_a_pod_that_came_to_a_smaller_gpu_is_planned_for_it_and_ends_with_the_verdict() -> None:
    world = failed_on(settled(L4, NodeGroup(None, 8), batching={"maxModelLen": 16384}), TOO_SMALL)
    failure = world.status["failure"]
    assert (failure["reason"], failure["pod"]) == ("DoesNotFit", "x-0")
    assert failure["message"].startswith(
        "Pod x-0 came to a Tesla T4 (14.6 GiB), and was planned for NVIDIA-L4: Tesla T4"
    )
    assert "spec.accelerator.products" in failure["remedy"]
    assert "KVCacheTooSmall: No available memory for the cache blocks." in failure["evidence"]
    assert (world.condition("Ready"), world.condition("Stalled")) == (("False", "DoesNotFit"), ("True", "DoesNotFit"))
    assert world.condition("Fits") == ("True", "Fits"), "of what was planned"
    assert world.decide().is_steady


UNNAMED_ONLY = (NodeGroup(None, 8),)
ON_WHAT: dict[str, tuple[tuple[NodeGroup, ...], Json, Failure, str]] = {
    "nothing was planned": (UNNAMED_ONLY, {}, TOO_SMALL, "DoesNotFit"),
    "out of memory": (UNNAMED_ONLY, {}, replace(TOO_SMALL, reason=R.GPU_OUT_OF_MEMORY), "DoesNotFit"),
    "for no known cause": (UNNAMED_ONLY, {}, replace(TOO_SMALL, reason=R.STARTUP_FAILED), "DoesNotFit"),
    "another cause": ((L4,), {}, replace(TOO_SMALL, reason=R.MODEL_NOT_FOUND), "ModelNotFound"),
    "the planned one": ((L4,), {}, replace(TOO_SMALL, gpu=GPU("NVIDIA L4", 22.03)), "KVCacheTooSmall"),
    "a larger one": ((L4,), {}, replace(TOO_SMALL, gpu=GPU("NVIDIA H100 80GB HBM3", 79.11)), "KVCacheTooSmall"),
    "an earlier release's runtime": ((L4,), {}, replace(TOO_SMALL, gpu=None), "KVCacheTooSmall"),
    "no plan is wanted": (UNNAMED_ONLY, {"fitPolicy": "Ignore"}, TOO_SMALL, "KVCacheTooSmall"),
    "it was tried though it does not fit": ((T4,), {"fitPolicy": "Warn"}, TOO_SMALL, "KVCacheTooSmall"),
}  # fmt: skip


@pytest.mark.parametrize(("groups", "sections", "failure", "reason"), ON_WHAT.values(), ids=ON_WHAT.keys())
def test_a_failure_is_the_gpus_only_where_the_plan_says_so(
    groups: tuple[NodeGroup, ...], sections: Json, failure: Failure, reason: str
) -> None:
    world = failed_on(settled(*groups, batching={"maxModelLen": 16384}, **sections), failure)
    assert world.status["failure"]["reason"] == reason
