"""What is free on nodes, counted as the scheduler counts it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_planner.room import (
    AcceleratorHolders,
    Holder,
    NodeRoom,
    Room,
    accelerator_holders,
    amounts,
    fitting,
    free_gpus,
    nodes_for,
    plus,
    requests_of,
)

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
L4, H100 = "NVIDIA-L4", "NVIDIA-H100-80GB-HBM3"


def a_node(name: str = "a", product: str | None = L4, used: Json | None = None, **more: Any) -> NodeRoom:
    has = {"cpu": "16", "memory": "64Gi", GPU: "4", "pods": "110"} | more.pop("has", {})
    labels = {"kubernetes.io/hostname": name} | ({"nvidia.com/gpu.product": product} if product else {})
    labels |= more.pop("labels", {})
    return NodeRoom(name, product, amounts(has), amounts(used or {}), labels=labels, **more)


def container(limits: Json | None = None, **requests: str) -> Json:
    return {"name": "c", "resources": {"requests": requests, "limits": limits or {}}}


ONE_GPU = {"containers": [container({GPU: "1"}, cpu="2", memory="8Gi")]}


def pod(**fields: Any) -> Json:
    return ONE_GPU | fields


def affinity(*terms: Json) -> Json:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


FULL, CUDA = "nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.runtime-version.full"
OLD = "nvidia.com/cuda.driver.{}"
DRIVERS: dict[str, tuple[Json, str]] = {
    "both": ({FULL: "550.54.15", CUDA: "12.4"}, "550.54.15, which supports CUDA 12.4"),
    "no CUDA": ({FULL: "580.95.05"}, "580.95.05"),
    "CUDA alone": ({CUDA: "12.4"}, ""),
    "two numbers": ({FULL: "580.95", CUDA: "13.0"}, "580.95, which supports CUDA 13.0"),
    "the older spelling": (
        {OLD.format("major"): "470", OLD.format("minor"): "82", OLD.format("rev"): "01"}
        | {"nvidia.com/cuda.runtime.major": "11", "nvidia.com/cuda.runtime.minor": "4"},
        "470.82.01, which supports CUDA 11.4",
    ),
    "the older spelling of two numbers": (
        {OLD.format("major"): "580", OLD.format("minor"): "95", OLD.format("rev"): ""},
        "580.95",
    ),
    "a part alone": ({OLD.format("minor"): "54", OLD.format("rev"): "15"}, ""),
    "words": ({FULL: "550.54.15.x", CUDA: "latest"}, ""),
    "other digits": ({FULL: "\u0665\u0665\u0660.54"}, ""),
    "a long number": ({FULL: "5" * 50 + ".1"}, ""),
    "a line's end": ({FULL: "550.54.15\n", CUDA: "12.4"}, ""),
    "none": ({}, ""),
}


@pytest.mark.parametrize("case", DRIVERS)
def test_the_driver_of_a_node_is_that_of_its_labels(case: str) -> None:
    labels, driver = DRIVERS[case]
    assert a_node(labels=labels).driver == driver


TAINT = ("nvidia.com/gpu", "", "NoSchedule")
PRODUCT = "nvidia.com/gpu.product"
TEAM = (("team", "b", "NoExecute"),)
NOT_READY = (("node.kubernetes.io/not-ready", "", "NoSchedule"),)
TWO_LABELS = {"matchExpressions": [{"key": PRODUCT, "operator": "Exists"}, {"key": "pool", "operator": "Exists"}]}
BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
SOFT: Json = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
SMALL = {"containers": [container(cpu="500m", memory="1Gi")]}
BOTH = [a_node("a"), a_node("b", H100)]


def where(*terms: Json) -> Json:
    return pod(affinity=affinity(*terms))


# id, nodes, pod, how many more
ROOM: list[tuple[str, list[NodeRoom], Json, int]] = [
    ("no node", [], ONE_GPU, 0),
    ("two nodes", [a_node("a"), a_node("b", used={GPU: "3"})], ONE_GPU, 5),
    ("no GPU free", [a_node(used={GPU: "4"})], ONE_GPU, 0),
    ("more in use than there is", [a_node(used={GPU: "5"})], ONE_GPU, 0),
    ("a GPU free, but no CPU", [a_node(used={"cpu": "15"})], ONE_GPU, 0),
    ("a GPU free, but no memory", [a_node(used={"memory": "60Gi"})], ONE_GPU, 0),
    ("CPUs for one", [a_node(used={"cpu": "13500m"})], ONE_GPU, 1),
    ("a full node", [a_node(used={"pods": "110"})], ONE_GPU, 0),
    (
        *("GPUs of one pod on one node", [a_node(used={GPU: "3"}), a_node("b", used={GPU: "3"})]),
        *(pod(containers=[container({GPU: "2"})]), 0),
    ),
    ("no such resource", [a_node(has={GPU: "0"})], ONE_GPU, 0),
    ("a CPU pod", [a_node(used={"cpu": "15"})], SMALL, 2),
    ("a pod that asks for nothing", [a_node(used={"pods": "109"})], {"containers": [{"name": "c"}]}, 1),
    ("a taint", [a_node(taints=(TAINT,))], ONE_GPU, 0),
    ("a taint that is tolerated", [a_node(taints=(TAINT,))], pod(tolerations=[{"key": GPU, "operator": "Exists"}]), 4),
    ("another value", [a_node(taints=TEAM)], pod(tolerations=[{"key": "team", "value": "a"}]), 0),
    ("the value", [a_node(taints=TEAM)], pod(tolerations=[{"key": "team", "value": "b"}]), 4),
    ("another effect", [a_node(taints=TEAM)], pod(tolerations=[{"operator": "Exists", "effect": "NoSchedule"}]), 0),
    ("not ready", [a_node(taints=NOT_READY)], ONE_GPU, 0),
    ("a mild taint", [a_node(taints=(("team", "b", "PreferNoSchedule"),))], ONE_GPU, 4),
    ("the selector", [a_node("a"), a_node("b")], pod(nodeSelector={"kubernetes.io/hostname": "a"}), 4),
    ("no node of the selector", [a_node("a")], pod(nodeSelector={"pool": "x"}), 0),
    ("the product", BOTH, where(expression(PRODUCT, "In", H100)), 4),
    ("not the product", BOTH, where(expression(PRODUCT, "NotIn", H100)), 4),
    ("one term of two", BOTH, where(expression(PRODUCT, "In", H100), expression("pool", "Exists")), 4),
    ("both expressions", [a_node("a")], where(TWO_LABELS), 0),
    ("a label that must not be", [a_node("a", None)], where(expression(PRODUCT, "DoesNotExist")), 4),
    ("more than", [a_node(labels={"gen": "9"})], where(expression("gen", "Gt", "8")), 4),
    ("less than", [a_node(labels={"gen": "9"})], where(expression("gen", "Lt", "8")), 0),
    ("more than, without a number", [a_node(labels={"gen": "x"})], where(expression("gen", "Gt", "8")), 0),
    ("by name", [a_node("a"), a_node("b")], where(BY_NAME), 4),
    ("a term that says nothing", [a_node("a")], where({}), 0),
    ("preferences only", [a_node("a")], pod(affinity=SOFT), 4),
]


@pytest.mark.parametrize(("nodes", "spec", "count"), [row[1:] for row in ROOM], ids=[row[0] for row in ROOM])
def test_room_for_more_pods(nodes: list[NodeRoom], spec: Json, count: int) -> None:
    reachable = nodes_for(Room(tuple(nodes)), spec)
    assert sum(fitting(node, requests_of(spec)) for node in reachable) == count


ALWAYS = {"restartPolicy": "Always"}


def starting(main: str, *init: Json) -> Json:
    return {"containers": [container(cpu=main)], "initContainers": list(init)}


# id, pod, CPUs that the scheduler counts
CPUS: list[tuple[str, Json, str]] = [
    ("containers add up", {"containers": [container(cpu="1"), container(cpu="500m")]}, "1.5"),
    ("a limit alone is a request", {"containers": [container({"cpu": "3"})]}, "3"),
    ("a request beside a limit counts", {"containers": [container({"cpu": "3"}, cpu="1")]}, "1"),
    ("init containers run one by one", starting("1", container(cpu="2"), container(cpu="3")), "3"),
    ("small ones cost nothing", starting("4", container(cpu="2")), "4"),
    ("a sidecar runs beside", starting("4", container(cpu="2") | ALWAYS), "6"),
    ("and beside what starts after it", starting("1", container(cpu="2") | ALWAYS, container(cpu="5")), "7"),
    ("not beside what ended before", starting("1", container(cpu="5"), container(cpu="2") | ALWAYS), "5"),
    ("overhead", {"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, "1.25"),
    ("of the whole pod", {"containers": [container(cpu="1")], "resources": {"requests": {"cpu": "2"}}}, "2"),
    ("nonsense is nothing", {"containers": [container(cpu="lots")]}, "0"),
]


@pytest.mark.parametrize(("spec", "cpus"), [row[1:] for row in CPUS], ids=[row[0] for row in CPUS])
def test_what_the_scheduler_counts_for_a_pod(spec: Json, cpus: str) -> None:
    assert requests_of(spec).get("cpu", Decimal(0)) == Decimal(cpus)


def test_free_accelerators_by_product_and_who_has_the_others() -> None:
    chat, batch = Holder("team-a", "chat", 2), Holder("team-b", "batch", 1)
    nodes = (
        a_node("a", used={GPU: "3"}, holders=(batch, chat)),
        a_node("b", used={GPU: "2"}, holders=(chat,)),
        a_node("c", H100, used={GPU: "4"}),
        a_node("d", None, has={GPU: "1"}),
        a_node("e", None, has={GPU: "0"}),
    )
    assert free_gpus(Room(nodes), GPU) == {L4: 3, H100: 0, None: 1}
    assert accelerator_holders(nodes, "team-a") == AcceleratorHolders(
        (("chat", 4),), in_other_namespaces=1, pods=1, namespaces=1
    )
    assert accelerator_holders(nodes, "team-c") == AcceleratorHolders((), in_other_namespaces=5, pods=3, namespaces=2)


QUANTITIES = st.dictionaries(
    st.sampled_from(["cpu", "memory", GPU, "pods"]), st.integers(1, 50).map(Decimal), min_size=1
)


@given(QUANTITIES, QUANTITIES, QUANTITIES)
def test_as_many_pods_go_onto_a_node_as_fit_and_not_one_more(
    has: dict[str, Decimal], used: dict[str, Decimal], each: dict[str, Decimal]
) -> None:
    count = fitting(NodeRoom("a", allocatable=has, used=used), each)
    assert count >= 0
    after = used
    for _ in range(count):
        after = plus(after, each)
    if count:
        assert all(after[name] <= has[name] for name in each)
    assert any(after.get(name, 0) + value > has.get(name, 0) for name, value in each.items())
