"""Which of the cluster's GPUs a service gets: a table of clusters and wishes."""

from __future__ import annotations

import pytest
from llmservice_operator.planner.cluster import ClusterGPUs, NodeGroup, offers
from llmservice_operator.planner.pick import GPUDemand, Pick, PlanFor, pick
from llmservice_operator.planner.plan import Device, Fit, Plan

GPU = "nvidia.com/gpu"
T4 = NodeGroup("Tesla-T4", 4, memory_mib=15360)
L4 = NodeGroup("NVIDIA-L4", 2, memory_mib=23034)
A100 = NodeGroup("NVIDIA-A100-SXM4-40GB", 8, memory_mib=40960)
H100 = NodeGroup("NVIDIA-H100-80GB-HBM3", 8, memory_mib=81559)
NEW = NodeGroup("NVIDIA-X1000", 8, memory_mib=204800)
UNNAMED = NodeGroup(None, 8)
TAINTED = NodeGroup("NVIDIA-H100-80GB-HBM3", 8, memory_mib=81559, taints=(("team", "b", "NoSchedule"),))
NO_EXECUTE = NodeGroup("NVIDIA-H100-80GB-HBM3", 8, memory_mib=81559, taints=((GPU, "", "NoSchedule"),))


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
) -> Pick:
    demand = GPUDemand(gpus, GPU, products, memory, tolerations)
    return pick(demand, ClusterGPUs(groups, right), plan_for(need, tight))


H, A, L, T = (group.product or "" for group in (H100, A100, L4, T4))

FITS_H100 = ("Fits", "H100", "H100")

ROWS = [
    # name, what there is and what is wished, verdict, GPU that was planned, product that is required
    ("the smallest that fits", picked(H100, A100, T4, L4), "Fits", L, L),
    ("the first that is listed and fits", picked(H100, A100, L4, T4, products=(T, H, A)), "Fits", H, H),
    ("one that is listed and there", picked(H100, L4, products=(H,)), "Fits", H, H),
    ("not listed is not acceptable", picked(H100, L4, T4, products=(T,)), "DoesNotFit", T, None),
    ("nodes hold too few", picked(L4, H100, gpus=4), "Fits", H, H),
    ("no node holds enough", picked(L4, T4, gpus=8), "Unknown", T, None),
    ("no node holds enough of what is listed", picked(L4, products=(L,), gpus=4), "Fits", L, L),
    ("no node holds enough, and it would not fit", picked(L4, products=(L,), gpus=4, need=60), "DoesNotFit", L, None),
    ("enough on a node before enough that may come", picked(L4, T4, H100, products=(L, H), gpus=4), "Fits", H, H),
    ("too few of one, none of another", picked(L4, products=(L, H), gpus=4, need=60), "Fits", H, H),
    ("too few of one that nobody knows", picked(NodeGroup("X1", 1), products=("X1",), gpus=4), "Unknown", None, None),
    ("a sure one before a tight one", picked(T4, L4, H100, need=22, tight=2), "Fits", H, H),
    ("a tight one where none is sure", picked(T4, L4, need=22, tight=2), "Tight", L, L),
    ("none fits", picked(T4, L4, need=60), "DoesNotFit", L, None),
    ("scaled to zero, by the catalogue", picked(products=(T, A, H)), "Fits", A, A),
    ("scaled to zero, one product", picked(products=(H,)), "Fits", H, None),
    ("an autoscaler may bring what is listed", picked(T4, products=(T, H)), "Fits", H, H),
    ("what is there before what may come", picked(L4, products=(H, L)), "Fits", L, L),
    ("scaled to zero, memory is given", picked(memory=24), "Fits", "a GPU of 24 GiB", None),
    ("scaled to zero, nothing is given", picked(), "Unknown", None, None),
    ("nodes without a label", picked(UNNAMED), "Unknown", None, None),
    ("nodes without a label, memory is given", picked(UNNAMED, memory=24), "Fits", "a GPU of 24 GiB", None),
    ("a product that nobody knows, by its label", picked(NEW, need=180), "Fits", "NVIDIA-X1000", "NVIDIA-X1000"),
    ("a product that nobody knows", picked(products=("NVIDIA-X1000",)), "Unknown", None, None),
    ("more than any node has", picked(H100, gpus=16), "DoesNotFit", H, None),
    ("more than any node has of what is listed", picked(H100, products=(H,), gpus=16), "DoesNotFit", H, None),
    ("as many as larger machines have", picked(A100, products=(A,), gpus=16), "Fits", A, A),
    ("a larger node is there", picked(NodeGroup(H, 16, memory_mib=81559), gpus=16), "Fits", H, H),
    ("more than any, and no node is known", picked(products=(H,), gpus=16), "Fits", H, None),
    ("a product that nobody knows, memory is given", picked(products=("X1",), memory=40), "Fits", "X1", None),
    ("no right", picked(right="list nodes"), "Unknown", None, None),
    ("no right, but the spec says it", picked(right="list nodes", products=(H,)), "Fits", H, None),
    ("a taint that is not tolerated", picked(T4, TAINTED), "DoesNotFit", T, None),
    ("a taint that is", picked(T4, TAINTED, tolerations=({"key": "team", "value": "b"},)), "Fits", H, H),
    ("a nickname is no label", picked(H100, products=("H100",)), "DoesNotFit", "H100", None),
    ("a nickname that nodes have", picked(NodeGroup("H100", 8, memory_mib=81559), products=("H100",)), *FITS_H100),
    ("a nickname beside a label", picked(H100, products=("H100", H)), "Fits", H, H),
    ("a nickname, scaled to zero", picked(products=("A100-80",)), "DoesNotFit", "A100-80", None),
    ("a nickname, and memory is given", picked(H100, products=("A100",), memory=80), "DoesNotFit", "A100", None),
    ("a nickname, no right", picked(right="list nodes", products=("H100",)), "Fits", "H100", None),
    ("its own taint", picked(NO_EXECUTE, tolerations=({"key": GPU, "operator": "Exists"},)), "Fits", H, H),
]  # fmt: skip


@pytest.mark.parametrize(("found", "verdict", "gpu", "product"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_which_one(found: Pick, verdict: str, gpu: str | None, product: str | None) -> None:
    assert (found.plan.verdict, found.plan.gpu, found.product) == (verdict, gpu, product)


SAID = [
    ("the cluster has one that is not listed", picked(T4, H100, products=(T,)), f"It would fit on {H}, which this"),
    ("only others would do", picked(T4, L4, need=60), "It would fit on NVIDIA-A100-SXM4-80GB, which no node has"),
    ("nothing would do", picked(T4, need=900), "Tesla-T4 has 15 GiB of 900."),
    ("too few on one node", picked(L4, T4, gpus=8), "needs 8 x nvidia.com/gpu on one node, and the largest node has 4"),
    ("no right", picked(right="list nodes"), "the operator has no right to list nodes"),
    ("no right, but the spec says it", picked(right="list nodes", products=(H,)), "Nodes were not looked at"),
    (
        "scaled to zero",
        picked(),
        "no node has nvidia.com/gpu. Give spec.accelerator.products or spec.accelerator.memory",
    ),
    ("nodes without a label", picked(UNNAMED), "do not say which GPU it is"),
    ("only tainted nodes", picked(TAINTED), "nodes with nvidia.com/gpu have taints that the pods do not tolerate"),
    ("a product that nobody knows", picked(products=("X1",)), "The memory of X1 is not known"),
    ("too few now", picked(L4, products=(L,), gpus=4), f"No node has 4 of {L} now."),
    ("a nickname", picked(H100, products=("H100",)), "H100 is no value of the node label: write NVIDIA-H100-80GB-HBM3"),
    ("a nickname of several", picked(products=("A100",)), "NVIDIA-A100-SXM4-40GB, NVIDIA-A100-SXM4-80GB"),
    ("a nickname that this cluster has", picked(A100, products=("A100",)), "which this cluster has"),
    ("a nickname beside a label", picked(H100, products=("H100", H)), "H100 is left out: it is no value of the node"),
    ("a nickname, no right", picked(right="list nodes", products=("H100",)), "no pod starts unless a node has H100"),
    ("a label that is new", picked(products=("NVIDIA-H100-80GB-HBM3e",)), "is not in the catalogue"),
    ("not there now", picked(products=(H,)), f"No node has {H} now."),
    ("more than any node has", picked(H100, gpus=16), "spec.parallelism to 8 or less"),
    ("more than any node has of what is listed", picked(L4, H100, products=(H,), gpus=16), "the largest here has 8"),
    ("more than any, and no node is known", picked(products=(H,), gpus=16), "needs a node with 16 GPUs"),
    ("more than any, and no right", picked(right="list nodes", products=(H,), gpus=16), "needs a node with 16 GPUs"),
]


@pytest.mark.parametrize(("found", "words"), [row[1:] for row in SAID], ids=[row[0] for row in SAID])
def test_the_reason_of_a_pick(found: Pick, words: str) -> None:
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


def test_remedies_may_name_what_nodes_can_hold() -> None:
    assert [device.name for device in picked(L4, T4, H100, gpus=4, need=900).others] == [T, H]


def test_lack_of_a_gpu_is_looked_at_again_and_a_model_that_nothing_is_known_of_is_not() -> None:
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
