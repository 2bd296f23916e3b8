"""Which of the cluster's GPUs a service gets: a table of clusters and requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_api.untrusted import stored_record
from llmservice_planner.cluster import ClusterGPUs, NodeGroup, offers
from llmservice_planner.pick import GPUDemand, Pick, PlanFor, pick
from llmservice_planner.plan import Device, Fit, Plan
from llmservice_planner.room import Sharing

GPU = "nvidia.com/gpu"
T4 = NodeGroup("Tesla-T4", 4, memory_mib=15360)
L4 = NodeGroup("NVIDIA-L4", 2, memory_mib=23034)
A100 = NodeGroup("NVIDIA-A100-SXM4-40GB", 8, memory_mib=40960)
H100 = NodeGroup("NVIDIA-H100-80GB-HBM3", 8, memory_mib=81559)
NEW = NodeGroup("NVIDIA-X1000", 8, memory_mib=204800)
UNNAMED = NodeGroup(None, 8)
TAINTED = NodeGroup("NVIDIA-H100-80GB-HBM3", 8, memory_mib=81559, taints=(("team", "b", "NoSchedule"),))
NO_EXECUTE = NodeGroup("NVIDIA-H100-80GB-HBM3", 8, memory_mib=81559, taints=((GPU, "", "NoSchedule"),))

A100_SHARED = "NVIDIA-A100-SXM4-80GB-SHARED"
TIME_SLICED = NodeGroup(A100_SHARED, 4, memory_mib=81920, sharing=Sharing(4, has_own_memory=False))
TWO_CARDS = replace(TIME_SLICED, per_node=8)
UNCOUNTED = replace(TIME_SLICED, sharing=Sharing(None, has_own_memory=False))
WHOLE = NodeGroup("NVIDIA-L4", 1, memory_mib=23034)
UNRENAMED = replace(WHOLE, per_node=4, sharing=Sharing(4, has_own_memory=False))
PAIRS, EIGHT = replace(UNRENAMED, sharing=Sharing(2, has_own_memory=False)), replace(WHOLE, per_node=8)
NO_GPUS = ("DoesNotFit", "a GPU of 24 GiB", None, "no more than 1 GPU of a node")
MPS = replace(TIME_SLICED, per_node=8, sharing=Sharing(4, has_own_memory=True))
MPS_OF_TWO = replace(MPS, sharing=Sharing(2, has_own_memory=True))
MPS_UNCOUNTED = replace(MPS, sharing=Sharing(None, has_own_memory=True))
SLICE = "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb"
SLICES = NodeGroup(SLICE, 4, memory_mib=40448)


def plan_for(gib: float, band: float) -> PlanFor:
    """A model that needs so many GiB, give or take."""

    def plan(device: Device | None) -> Plan:
        if device is None:
            return Plan(Fit.UNKNOWN, "Not known.", ("a GPU and its memory",))
        margin = device.memory_gib - gib
        verdict = Fit.TIGHT if abs(margin) <= band else Fit.FITS if margin > 0 else Fit.DOES_NOT_FIT
        reason = f"{device.name} has {device.memory_gib:.0f} GiB of {gib:.0f}."
        return Plan(verdict, reason, gpu=device.name, margin_gib=margin)

    return plan


def picked(
    *groups: NodeGroup,
    need: float = 20,
    tight: float = 0,
    products: tuple[str, ...] = (),
    gpus: int = 1,
    memory: float | None = None,
    right: str | None = None,
    tolerations: tuple[dict[str, str], ...] = (),
    resource: str = GPU,
) -> Pick:
    demand = GPUDemand(gpus, resource, products, memory, tolerations)
    return pick(demand, ClusterGPUs(groups, right), plan_for(need, tight))


MEMORY = "spec.accelerator.memory"
TOLERATION = '{key: team, operator: Equal, value: "b", effect: NoSchedule}'
SHARED = replace(L4, product="NVIDIA-L4-SHARED")
H, A, L, T = (group.product or "" for group in (H100, A100, L4, T4))

GH200 = NodeGroup("NVIDIA-GH200-480GB", 1, memory_mib=97871, architecture="arm64")
X_GH200, ARM_H100, GH = replace(GH200, architecture="amd64"), replace(H100, architecture="arm64"), "NVIDIA-GH200-480GB"
TAINTED_GH200 = replace(GH200, taints=TAINTED.taints)
ODD = replace(H100, product="H100")
MIG: dict[str, Any] = {"resource": "nvidia.com/mig-3g.40gb"}
BY_CARD = NodeGroup("NVIDIA-H100-80GB-HBM3", 2, memory_mib=40192)
X1_SLICE, ONE = "X1-MIG-3g.40gb", "only one MIG slice"
A_SLICE = "a MIG slice of 39.25 GiB"
NODES: dict[str, Any] = {"right": "list nodes"}
WHICH = [
    # what there is and what is asked for; verdict, GPU that was planned, product that is required; words of the reason
    ("the smallest that fits", picked(H100, A100, T4, L4), "Fits", L, L, ""),
    ("the first that is listed and fits", picked(H100, A100, L4, T4, products=(T, H, A)), "Fits", H, H, ""),
    ("not listed is not acceptable", picked(H100, T4, products=(T,)), "DoesNotFit", T, None, f"fit on {H}, which"),
    ("nodes hold too few", picked(L4, H100, gpus=4), "Fits", H, H, ""),
    ("no node holds enough", picked(L4, T4, gpus=8), "Unknown", T, None, "one node, and the largest node has 4"),
    ("too few of what is listed", picked(L4, products=(L,), gpus=4), "Fits", L, L, f"No node has 4 of {L}"),
    ("not enough, and not fitting", picked(L4, products=(L,), gpus=4, need=60), "DoesNotFit", L, None, ""),
    ("enough before enough that may come", picked(L4, T4, H100, products=(L, H), gpus=4), "Fits", H, H, ""),
    ("too few of one, none of another", picked(L4, products=(L, H), gpus=4, need=60), "Fits", H, H, ""),
    ("too few of an unknown one", picked(NodeGroup("X1", 1), products=("X1",), gpus=4), "Unknown", None, None, ""),
    ("a sure one before a tight one", picked(T4, L4, H100, need=22, tight=2), "Fits", H, H, ""),
    ("a tight one where none is sure", picked(T4, L4, need=22, tight=2), "Tight", L, L, ""),
    ("none fits", picked(T4, L4, need=60), "DoesNotFit", L, None, "on NVIDIA-A100-SXM4-80GB, which no node has"),
    ("nothing would fit", picked(T4, need=900), "DoesNotFit", T, None, "Tesla-T4 has 15 GiB of 900."),
    ("scaled to zero, by the catalogue", picked(products=(T, A, H)), "Fits", A, A, ""),
    ("scaled to zero, one product", picked(products=(H,)), "Fits", H, None, f"No node has {H} now."),
    ("a label that was renamed", picked(SHARED, products=(L,)), "Fits", L, None, f"Nodes have {L}-SHARED:"),
    ("an autoscaler may bring what is listed", picked(T4, products=(T, H)), "Fits", H, H, ""),
    ("what is there before what may come", picked(L4, products=(H, L)), "Fits", L, L, ""),
    ("scaled to zero, memory is given", picked(memory=24), "Fits", "a GPU of 24 GiB", None, ""),
    ("scaled to zero, nothing is given", picked(), "Unknown", None, None, "Give spec.accelerator.products or"),
    ("nodes without a label", picked(UNNAMED), "Unknown", None, None, f"{GPU}.product. Give {MEMORY}, or label"),
    ("and that is too little", picked(UNNAMED, memory=24, need=60), "DoesNotFit", "a GPU of 24 GiB", None, ""),
    ("too few, and without a label", picked(NodeGroup(None, 2), gpus=4), "Unknown", None, None, f"or give {MEMORY}."),
    ("listed, without a label", picked(UNNAMED, products=(L,)), "Fits", L, None, f"remove it and set {MEMORY}"),
    ("a label, and no memory", picked(NodeGroup("X1", 8)), "Unknown", None, None, "of X1 is not known"),
    ("without a label, memory is given", picked(UNNAMED, memory=24), "Fits", "a GPU of 24 GiB", None, ""),
    ("unknown, by its label", picked(NEW, need=180), "Fits", "NVIDIA-X1000", "NVIDIA-X1000", ""),
    ("unknown", picked(products=("NVIDIA-X1000",)), "Unknown", None, None, "The memory of NVIDIA-X1000 is not known"),
    ("unknown, memory is given", picked(products=("X1",), memory=40), "Fits", "X1", None, ""),
    ("more than any node has", picked(H100, gpus=16), "DoesNotFit", H, None, "spec.parallelism to 8 a node or less"),
    ("more than any of it", picked(H100, products=(H,), gpus=16), "DoesNotFit", H, None, "largest here has 8"),
    ("as many as larger machines have", picked(A100, products=(A,), gpus=16), "Fits", A, A, ""),
    ("a larger node is there", picked(NodeGroup(H, 16, memory_mib=81559), gpus=16), "Fits", H, H, ""),
    ("more than any, no node is known", picked(products=(H,), gpus=16), "Fits", H, None, "needs a node with 16 GPUs"),
    ("no right", picked(**NODES), "Unknown", None, None, "the operator has no right to list nodes"),
    ("no right, but the spec says it", picked(**NODES, products=(H,)), "Fits", H, None, "Nodes were not looked at"),
    ("a taint that is not tolerated", picked(T4, TAINTED), "DoesNotFit", T, None, ""),
    ("only tainted nodes", picked(TAINTED), "Unknown", None, None, f"not tolerate: add {TOLERATION} to spec.podT"),
    ("tainted, without a value", picked(NO_EXECUTE), "Unknown", None, None, f"{{key: {GPU}, operator: Exists, effect"),
    ("tainted, and memory is given", picked(TAINTED, memory=80), "Fits", "a GPU of 80 GiB", None, TOLERATION),
    ("the listed one is tainted", picked(T4, TAINTED, products=(H,)), "Fits", H, None, f"add {TOLERATION}"),
    ("it would fit behind a taint", picked(T4, TAINTED, need=60), "DoesNotFit", T, None, f"on {H}, whose nodes have"),
    ("enough behind a taint", picked(L4, TAINTED, gpus=4), "Unknown", L, None, f"add {TOLERATION}"),
    ("a taint that is", picked(T4, TAINTED, tolerations=({"key": "team", "value": "b"},)), "Fits", H, H, ""),
    ("its own taint", picked(NO_EXECUTE, tolerations=({"key": GPU, "operator": "Exists"},)), "Fits", H, H, ""),
    ("a nickname", picked(H100, products=("H100",)), "DoesNotFit", "H100", None, f"the node label: write {H}"),
    ("a nickname of several", picked(A100, products=("A100",)), "DoesNotFit", "A100", None, "which this cluster has"),
    ("a nickname that nodes have", picked(ODD, products=("H100",)), "Fits", "H100", "H100", ""),
    ("a nickname beside a label", picked(H100, products=("H100", H)), "Fits", H, H, "H100 is left out: it is no value"),
    ("a nickname, memory is given", picked(H100, products=("A100",), memory=80), "DoesNotFit", "A100", None, ""),
    ("a nickname, no right", picked(**NODES, products=("H100",)), "Fits", "H100", None, "unless a node has H100"),
    ("time slicing", picked(TIME_SLICED, need=60), "Fits", A100_SHARED, A100_SHARED, "counts on all of its memory"),
    ("two shares of one card", picked(TIME_SLICED, gpus=2), "DoesNotFit", A100_SHARED, None, "no more than 1 GPU"),
    ("of one that is named", picked(TIME_SLICED, gpus=2, products=(A100_SHARED,)), "DoesNotFit", A100_SHARED, None, ""),
    ("of cards that nobody counted", picked(UNCOUNTED, gpus=2), "DoesNotFit", A100_SHARED, None, "no more than 1 GPU"),
    ("shares of two cards", picked(TWO_CARDS, gpus=2), "Unknown", A100_SHARED, None, "may be shares of one GPU"),
    ("four shares of two cards", picked(TWO_CARDS, gpus=4), "DoesNotFit", A100_SHARED, None, "no more than 2 GPUs"),
    ("named, and no node is there", picked(gpus=2, products=(A100_SHARED,)), "Unknown", A100_SHARED, None, "shares"),
    ("whole cards before shares", picked(TIME_SLICED, H100, gpus=2), "Fits", H, H, ""),
    ("a whole one beside shares", picked(WHOLE, UNRENAMED, gpus=2), "DoesNotFit", L, None, "no more than 1 GPU"),
    ("shares beside a whole one", picked(UNRENAMED, WHOLE, gpus=2), "DoesNotFit", L, None, "no more than 1 GPU of"),
    ("and it is listed", picked(WHOLE, UNRENAMED, gpus=2, products=(L,)), "DoesNotFit", L, None, "1 GPU of"),
    ("enough whole ones beside shares", picked(L4, UNRENAMED, gpus=2), "Unknown", L, None, "sharing-strategy: none"),
    ("between two pools of shares", picked(PAIRS, EIGHT, UNRENAMED, gpus=8), "Unknown", L, None, "strategy: none"),
    ("one of them does", picked(WHOLE, UNRENAMED), "Fits", L, L, "Several pods share each"),
    ("shares of a card without a label", picked(replace(UNRENAMED, product=None), gpus=2, memory=24), *NO_GPUS),
    ("none that shares", picked(TIME_SLICED, T4, gpus=2, need=30, products=(T,)), "DoesNotFit", T, None, f"{A},"),
    ("a part of the memory", picked(MPS, need=30), "DoesNotFit", A100_SHARED, None, "has 20 GiB of 30"),
    ("enough of the memory", picked(MPS, need=18), "Fits", A100_SHARED, A100_SHARED, ""),
    ("the smaller part of two pools", picked(MPS_OF_TWO, MPS, need=30), "DoesNotFit", A100_SHARED, None, "has 20 GiB"),
    ("a part that no label gives", picked(MPS_UNCOUNTED, need=1), "Unknown", None, None, ""),
    ("MPS gives a pod one share", picked(MPS, gpus=2, need=9), "DoesNotFit", A100_SHARED, None, "one share a pod"),
    ("a slice", picked(SLICES), "Fits", SLICE, SLICE, ""),
    ("two slices", picked(SLICES, gpus=2), "DoesNotFit", SLICE, None, "only one MIG slice"),
    ("two slices that may come", picked(gpus=2, products=(SLICE,)), "DoesNotFit", SLICE, None, "only one MIG slice"),
    ("a slice by its card's label", picked(SLICES, **MIG, products=(H,), need=30), "Fits", SLICE, H, ""),
    ("too small by its card's label", picked(SLICES, **MIG, products=(H,), need=61), "DoesNotFit", SLICE, None, "39"),
    ("of nodes with the card's label alone", picked(BY_CARD, **MIG, need=30), "Fits", SLICE, H, f"chose {SLICE}"),
    ("that is listed too", picked(BY_CARD, **MIG, products=(H,), need=30), "Fits", SLICE, H, ""),
    ("but not by the slice's", picked(BY_CARD, **MIG, products=(SLICE,), need=30), "Fits", SLICE, None, "No node has"),
    ("slices that may come", picked(**MIG, products=(H,), need=61), "DoesNotFit", SLICE, None, "39"),
    ("of any card", picked(**MIG, need=30), "Fits", A_SLICE, None, ""),
    ("too small on any card", picked(**MIG, need=61), "DoesNotFit", A_SLICE, None, "39"),
    ("of a card that nobody knows", picked(**MIG, products=("X1",), need=61), "DoesNotFit", X1_SLICE, None, ""),
    ("without a label", picked(UNNAMED, **MIG, need=30), "Fits", A_SLICE, None, ""),
    ("two slices by the card's label", picked(SLICES, **MIG, products=(H,), gpus=2), "DoesNotFit", SLICE, None, ONE),
    ("two of any card", picked(**MIG, gpus=2), "DoesNotFit", A_SLICE, None, "without spec.accelerator.resourceName"),
    ("a nickname of a slice's card", picked(SLICES, **MIG, products=("H100",)), "DoesNotFit", "H100", None, "write"),
    ("memory of a slice is given", picked(**MIG, memory=20, need=30), "DoesNotFit", "a MIG slice of 20 GiB", None, ""),
    ("arm64 that the spec prefers", picked(GH200, H100, products=(GH, H)), "Fits", GH, GH, "Its nodes are arm64"),
    ("arm64 that it lists second", picked(GH200, H100, products=(H, GH)), "Fits", H, H, ""),
    ("arm64 that it does not list", picked(GH200, ARM_H100, H100, products=(H,)), "Fits", H, H, "arm64 are left out"),
    ("arm64 of a tainted pool", picked(TAINTED_GH200, H100, products=(GH, H)), "Fits", H, H, ""),
    ("arm64 beside amd64", picked(GH200, X_GH200, products=(GH, H)), "Fits", GH, GH, "arm64 are left out"),
    ("a new label", picked(products=(f"{H}e",)), "Fits", f"{H}e", None, "is not in the catalogue"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "verdict", "gpu", "product", "words"), [row[1:] for row in WHICH], ids=[row[0] for row in WHICH]
)
def test_which_one(found: Pick, verdict: str, gpu: str | None, product: str | None, words: str) -> None:
    assert (found.plan.verdict, found.plan.gpu, found.product) == (verdict, gpu, product)
    assert words in found.plan.reason


def test_a_nickname_comes_with_the_labels_as_patches() -> None:
    found = picked(H100, products=("H100",)).plan
    assert found.remedies[0].patch == (("accelerator.products", ("NVIDIA-H100-80GB-HBM3",)),)
    assert [remedy.gpu for remedy in picked(products=("a100 pcie",)).plan.remedies] == [
        "NVIDIA-A100-PCIE-40GB",
        "NVIDIA-A100-80GB-PCIe",
    ]


def test_what_is_unknown_names_the_right_or_the_field() -> None:
    assert picked(right="list nodes").plan.missing[0] == "the right to list nodes"
    assert picked().plan.missing[0] == "spec.accelerator.products or spec.accelerator.memory"
    assert picked(UNNAMED).plan.missing[0] == MEMORY
    assert picked(TAINTED).plan.missing == ("spec.podTemplate.spec.tolerations",)


def test_a_slice_that_does_not_fit_brings_no_whole_card() -> None:
    reasons = [picked(*nodes, **MIG, products=(H,), need=61).plan.reason for nodes in ((), (SLICES,))]
    assert not [reason for reason in reasons if "which no node has" in reason]
    assert all("A larger slice (spec.accelerator.resourceName) has more." in reason for reason in reasons)


def test_remedies_may_name_what_nodes_can_hold() -> None:
    assert [device.name for device in picked(L4, T4, H100, gpus=4, need=900).others] == [T, H]


def test_other_nodes_would_change_the_answer_only_where_a_gpu_is_missing() -> None:
    assert picked(T4).is_short
    assert not picked(H100).is_short
    assert not picked().is_short


def test_nodes_of_one_product_are_one_offer_with_the_largest_node() -> None:
    small, large = NodeGroup("Tesla-T4", 1, memory_mib=15360), NodeGroup("Tesla-T4", 8, memory_mib=15360)
    (offer,) = offers(ClusterGPUs((small, large)), ())
    assert (offer.product, offer.per_node) == ("Tesla-T4", 8)


@pytest.mark.parametrize("taint", ["not-ready", "unreachable", "memory-pressure"])
def test_passing_trouble_of_a_node_changes_nothing(taint: str) -> None:
    group = NodeGroup("Tesla-T4", 1, memory_mib=15360, taints=((f"node.kubernetes.io/{taint}", "", "NoSchedule"),))
    assert offers(ClusterGPUs((group,)), ())


def test_an_architecture_is_kept_for_the_product_that_only_it_has_and_that_was_taken() -> None:
    both = (GH200, ARM_H100, H100)
    assert picked(*both, products=(GH, H)).left_out == ()
    assert picked(*both, products=(H, GH)).left_out == ("arm64",)
    assert picked(*both, products=(GH, H), need=900).left_out == (), "the spec's list decides"


def test_what_is_excluded_of_many_products_is_bounded_nodes_first_and_reads_back() -> None:
    many = [NodeGroup(f"X-{number:04}", 1, memory_mib=1024) for number in range(2000)]
    found = picked(*many, H100, need=60)
    assert (found.product, len(found.excluded)) == (H, 256)
    assert set(found.excluded) < {group.product for group in many}, "no rented ones before those of nodes"
    assert list(found.excluded) == sorted(found.excluded)
    template = {"spec": {"containers": [{"name": "server"}]}}
    record = {"key": "k", "template": template, "chosen": {"gpu": H, "excludedGpus": list(found.excluded)}}
    assert stored_record(record) == record
    few = picked(T4, H100, need=60).excluded
    assert {T, L, "NVIDIA-A10G"} <= set(few), "and rented ones where there is room"
