"""GPUs and free room of the cluster, from lists of nodes and pods that are kept for some seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from kubeloop.client import AlwaysOpen, KubeClient
from kubeloop.errors import Forbidden, Invalid, KubeError, NotFound, Refused, Unreachable
from kubeloop.informer import Cache
from llmservice_api.errors import UnreadableObject
from llmservice_operator.readers.nodes import (
    KEPT_SECONDS,
    RIGHT,
    RIGHT_TO_PODS,
    RIGHT_TO_SLICES,
    Nodes,
    node_room,
    placed_of,
)
from llmservice_operator.service.watch import PROJECTIONS, placed
from llmservice_planner.cluster import ClusterGPUs, NodeGroup, group_of
from llmservice_planner.devices import ClusterDevices, DeviceGroup, DeviceModel
from llmservice_planner.room import Holder, Room, Sharing

from tests.support.patience import PATIENCE
from tests.unit.api_server import ApiServer, Connection

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-3g.40gb"
LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
}
MI300X = "AMD_Instinct_MI300X_OAM"
AMD = {"amd.com/gpu.product-name": MI300X, "amd.com/gpu.vram": "192G"}


def node(labels: Json | None = None, allocatable: Json | None = None, **spec: Any) -> Json:
    return {
        "metadata": {"name": "n", "labels": LABELS if labels is None else labels},
        "spec": spec,
        "status": {"allocatable": {GPU: "8", "cpu": "64"} if allocatable is None else allocatable},
    }


H100 = NodeGroup("NVIDIA-H100-80GB-HBM3", 8, memory_mib=81559.0, capability=(9, 0))
TAINT = {"key": "team", "value": "b", "effect": "NoSchedule"}
SLICES = NodeGroup(H100.product, 2, memory_mib=40320.0, capability=(9, 0))
SLICE = f"{H100.product}-MIG-3g.40gb"
MIXED = {**LABELS, f"{GPU}.replicas": "0", f"{MIG}.product": SLICE, f"{MIG}.memory": "40320", f"{MIG}.replicas": "1"}
SINGLE = {**LABELS, f"{GPU}.product": SLICE, f"{GPU}.memory": "40320"}
SHARED = f"{H100.product}-SHARED"
SLICED = {**LABELS, f"{GPU}.product": SHARED, f"{GPU}.replicas": "4", f"{GPU}.sharing-strategy": "time-slicing"}
RENAMED = {**SLICED, f"{GPU}.product": H100.product}
MPS = {f"{GPU}.sharing-strategy": "mps"}
GKE = {"cloud.google.com/gke-max-shared-clients-per-gpu": "4"}
SHARED_SLICE = {**MIXED, f"{MIG}.product": f"{SLICE}-SHARED", f"{MIG}.replicas": "2"}
TIME_SLICED, SHARED_BY_MPS = Sharing(4, has_own_memory=False), Sharing(4, has_own_memory=True)
GROUPS: dict[str, tuple[Json, str, NodeGroup | None]] = {
    "all labels": (node(), GPU, H100),
    "without labels": (node({}), GPU, NodeGroup(None, 8)),
    "without GPUs": (node(allocatable={"cpu": "4"}), GPU, None),
    "all GPUs unhealthy": (node(allocatable={GPU: "0"}), GPU, None),
    "no number of GPUs": (node(allocatable={GPU: "many"}), GPU, None),
    "cordoned": (node(unschedulable=True), GPU, None),
    "tainted": (node(taints=[TAINT]), GPU, replace(H100, taints=(("team", "b", "NoSchedule"),))),
    "a mild taint": (node(taints=[TAINT | {"effect": "PreferNoSchedule"}]), GPU, H100),
    "arm64": (node(LABELS | {"kubernetes.io/arch": "arm64"}), GPU, replace(H100, architecture="arm64")),
    "AMD": (node(AMD, {"amd.com/gpu": "8"}), "amd.com/gpu", NodeGroup(MI300X, 8, 1, 196608.0, None, True)),
    "a label that is no number": (node(LABELS | {f"{GPU}.memory": "lots"}), GPU, replace(H100, memory_mib=None)),
    "slices": (node(LABELS | {f"{MIG}.memory": "40320"}, {MIG: "2", GPU: "6"}), MIG, SLICES),
    "slices with a product of their own": (node(MIXED, {MIG: "2", GPU: "0"}), MIG, replace(SLICES, product=SLICE)),
    "slices without labels of their own": (node(LABELS, {MIG: "2"}), MIG, replace(SLICES, memory_mib=40192.0)),
    "slices in place of cards": (node(SINGLE, {GPU: "2"}), GPU, replace(SLICES, product=SLICE)),
    "time slicing": (node(SLICED), GPU, replace(H100, product=SHARED, sharing=TIME_SLICED)),
    "time slicing, renamed": (
        node(RENAMED, {f"{GPU}.shared": "8"}),
        f"{GPU}.shared",
        replace(H100, sharing=TIME_SLICED),
    ),
    "MPS": (node(SLICED | MPS), GPU, replace(H100, product=SHARED, sharing=SHARED_BY_MPS)),
    "a replica each is no sharing": (
        node(LABELS | {f"{GPU}.replicas": "1", f"{GPU}.sharing-strategy": "none"}),
        GPU,
        H100,
    ),
    "by the product alone": (
        node(LABELS | {f"{GPU}.product": SHARED}),
        GPU,
        replace(H100, product=SHARED, sharing=Sharing(None, has_own_memory=False)),
    ),
    "time sharing of GKE": (
        node(LABELS | GKE | {"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}),
        GPU,
        replace(H100, sharing=TIME_SLICED),
    ),
    "MPS of GKE": (
        node(LABELS | GKE | {"cloud.google.com/gke-gpu-sharing-strategy": "mps"}),
        GPU,
        replace(H100, sharing=SHARED_BY_MPS),
    ),
    "a slice that is shared": (
        node(SHARED_SLICE, {MIG: "4"}),
        MIG,
        replace(SLICES, product=f"{SLICE}-SHARED", per_node=4, sharing=Sharing(2, has_own_memory=False)),
    ),
    "a shared card's labels are not its slices'": (
        node(MIXED | {f"{GPU}.replicas": "4"}, {MIG: "2"}),
        MIG,
        replace(SLICES, product=SLICE),
    ),
    "nonsense about sharing": (
        node(LABELS | {f"{GPU}.replicas": "-9" * 99, f"{GPU}.sharing-strategy": "x"}),
        GPU,
        H100,
    ),
    "nothing at all": ({"metadata": {"name": "n"}}, GPU, None),
}


@pytest.mark.parametrize("case", GROUPS)
def test_the_group_of_one_node(case: str) -> None:
    raw, resource, group = GROUPS[case]
    found = node_room(raw)
    assert (None if found is None else group_of(found, resource)) == group


class Cluster(KubeClient):
    """Nodes and pods in pages of two. `error` is raised by lists `of` this kind."""

    def __init__(
        self, *nodes: Json, pods: Sequence[Json] = (), error: KubeError | None = None, of: str = "Node"
    ) -> None:
        self.api = ApiServer(*({"kind": "Pod", **each} for each in pods))
        for number, each in enumerate(nodes):
            self.api.objects[f"/api/v1/nodes/{number}"] = each
        self.api.page = 2
        self.api.fails = {f"list {of}": [] if error is None else [error] * 9}
        self.connection = Connection(self.api)
        super().__init__(self.connection, AlwaysOpen())

    @property
    def asked(self) -> list[tuple[str, str]]:
        """Kinds and label selectors of the lists, without their further pages."""
        first = [(path, query) for _, path, query, _ in self.api.requests if "continue" not in query]
        return [(path.rpartition("/")[2], query.get("labelSelector", "")) for path, query in first]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_nodes_that_are_alike_are_one_group() -> None:
    kube = Cluster(node(), node(), node(allocatable={GPU: "4"}), node({}), node(allocatable={}))
    found = await Nodes(kube).gpus(GPU, {})
    groups = {(group.product, group.per_node): group.nodes for group in found.groups}
    assert groups == {(H100.product, 8): 2, (H100.product, 4): 1, (None, 8): 1}


async def test_one_list_of_nodes_answers_everybody_for_some_seconds() -> None:
    kube, clock = Cluster(node()), Clock()
    nodes = Nodes(kube, clock=clock)
    first = await nodes.gpus(GPU, {})
    clock.now = KEPT_SECONDS - 0.1
    assert await nodes.gpus(GPU, {}) is first
    assert (await nodes.gpus(MIG, {})).groups == ()
    assert await nodes.room(GPU) is await nodes.room(GPU)
    assert kube.asked == [("nodes", ""), ("pods", "")]
    clock.now = KEPT_SECONDS
    kube.api.objects.clear()
    assert (await nodes.room(GPU)).nodes == ()
    assert (await nodes.gpus(GPU, {})).groups == ()
    assert kube.asked == [("nodes", ""), ("pods", "")] * 2


async def test_a_node_selector_is_applied_by_the_server_and_has_a_list_of_its_own() -> None:
    kube = Cluster(node())
    nodes = Nodes(kube)
    await nodes.gpus(GPU, {"pool": "a", "arch": "amd64"})
    await nodes.gpus(GPU, {})
    await nodes.gpus(MIG, {"pool": "a", "arch": "amd64"})
    assert [labels for _, labels in kube.asked] == ["arch=amd64,pool=a", ""]


RIGHT_GONE = Forbidden("nodes is forbidden", right="list nodes", code=403)
BY_ANOTHER_AUTHORIZER = Refused("not for you", code=403)


@pytest.mark.parametrize("error", [RIGHT_GONE, BY_ANOTHER_AUTHORIZER])
async def test_a_missing_right_is_named(error: KubeError) -> None:
    kube = Cluster(error=error)
    nodes = Nodes(kube)
    for _ in range(2):
        assert await nodes.gpus(GPU, {}) == ClusterGPUs(missing_right="list nodes")
    assert len(kube.asked) == 1, "a thousand services do not ask a thousand times"


@pytest.mark.parametrize(("kind", "right"), [("Node", RIGHT), ("Pod", RIGHT_TO_PODS)])
async def test_a_missing_right_on_nodes_or_pods_leaves_the_room_unknown(kind: str, right: str) -> None:
    kube = Cluster(node(), error=BY_ANOTHER_AUTHORIZER, of=kind)
    assert await Nodes(kube).room(GPU) == Room(unknown=f"the operator has no right to {right}")


PUBLISHED: Json = {
    "metadata": {"name": "s"},
    "spec": {
        "driver": "gpu.nvidia.com",
        "pool": {"name": "n", "generation": 1},
        "nodeName": "n",
        "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}}] * 2,
    },
}


async def devices(nodes: Nodes) -> ClusterDevices:
    return await nodes.devices("gpu.nvidia.com", "gpu.nvidia.com", {})


async def test_published_devices_are_listed_once_for_some_seconds() -> None:
    kube, clock = Cluster(node()), Clock()
    odd: Json = {"metadata": {"name": "odd"}, "spec": {}}
    for number, each in enumerate((PUBLISHED, odd)):
        kube.api.objects[f"/apis/resource.k8s.io/v1/resourceslices/{number}"] = each
    skipped: list[str] = []

    @contextmanager
    def contained(what: str) -> Iterator[None]:
        try:
            yield
        except UnreadableObject:
            skipped.append(what)

    nodes = Nodes(kube, clock=clock, contained=contained)
    found = await devices(nodes)
    assert found.groups == (DeviceGroup(DeviceModel(80 * 2**30), 2),)
    assert skipped == ["resourceslice"], "one that no driver wrote hides no other"
    assert await devices(nodes) == found
    assert kube.asked == [("nodes", ""), ("resourceslices", "")]
    clock.now = KEPT_SECONDS
    kube.api.objects.clear()
    assert (await devices(nodes)).groups == ()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BY_ANOTHER_AUTHORIZER, f"the operator has no right to {RIGHT_TO_SLICES}"),
        (NotFound("no such kind", code=404), "the cluster has no resourceslices.resource.k8s.io of resource.k8s.io/v1"),
    ],
)
async def test_slices_that_may_not_be_listed_are_not_known(error: KubeError, said: str) -> None:
    nodes = Nodes(Cluster(node(), error=error, of="ResourceSlice"))
    assert await devices(nodes) == ClusterDevices(unread=said)
    forbidden = Nodes(Cluster(error=BY_ANOTHER_AUTHORIZER))
    assert await devices(forbidden) == ClusterDevices(unread=f"the operator has no right to {RIGHT}")


async def test_an_invalid_selector_selects_no_node() -> None:
    error = Invalid("unable to parse requirement: invalid label key", code=400)
    assert await Nodes(Cluster(node(), error=error)).gpus(GPU, {"not a key!": "x"}) == ClusterGPUs()


def slow() -> tuple[Cluster, asyncio.Event]:
    """Answers once the event is set."""
    kube, go = Cluster(node()), asyncio.Event()
    kube.connection.delay = go.wait
    return kube, go


async def until_asked(kube: Cluster) -> None:
    async with asyncio.timeout(PATIENCE):
        while not kube.connection.at_once:  # noqa: ASYNC110 - of a client with no signal for its tests
            await asyncio.sleep(0)


async def test_concurrent_requests_share_one_list() -> None:
    kube, go = slow()
    nodes = Nodes(kube)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        asking = [group.create_task(nodes.gpus(GPU, {})) for _ in range(8)]
        await until_asked(kube)
        go.set()
    assert kube.asked == [("nodes", "")]
    assert {len(task.result().groups) for task in asking} == {1}


async def test_a_cancelled_read_does_not_block_the_next() -> None:
    kube, go = slow()
    nodes = Nodes(kube)
    given_up = asyncio.create_task(nodes.gpus(GPU, {}))
    await until_asked(kube)
    given_up.cancel()
    go.set()
    async with asyncio.timeout(PATIENCE):
        assert (await nodes.gpus(GPU, {})).groups


async def test_other_errors_are_raised_each_time() -> None:
    nodes = Nodes(Cluster(error=Unreachable("no answer")))
    for _ in range(2):
        with pytest.raises(Unreachable):
            await nodes.gpus(GPU, {})


def named(name: str, raw: Json) -> Json:
    return raw | {"metadata": raw["metadata"] | {"name": name}}


def a_pod(name: str, where: str | None, gpus: str, metadata: Json | None = None, phase: str = "Running") -> Json:
    limits = {"cpu": "1"} | ({GPU: gpus} if gpus else {})
    return {
        "metadata": {"name": name, "namespace": "team-a", "uid": f"u-{name}"} | (metadata or {}),
        "spec": {"containers": [{"resources": {"limits": limits}}]} | ({"nodeName": where} if where else {}),
        "status": {"phase": phase},
    }


CHAT = {"labels": {"llmservice.dev/service": "chat"}}
BATCH = {"ownerReferences": [{"kind": "Node", "name": "no"}, {"kind": "Job", "name": "batch", "controller": True}]}


@pytest.mark.parametrize("knows_own", [False, True], ids=["all pods are listed", "pods of services are known"])
async def test_what_is_free_and_who_holds_the_rest(knows_own: bool) -> None:
    nodes = [named("a", node()), named("b", node({})), named("cordoned", node(unschedulable=True))]
    pods = [
        a_pod("chat-1", "a", "2", CHAT),
        a_pod("batch-1", "a", "1", BATCH),
        a_pod("alone", "a", "1"),
        a_pod("without", "a", ""),
        a_pod("over", "a", "4", phase="Succeeded"),
        a_pod("waiting", None, "8"),
        a_pod("elsewhere", "cordoned", "1"),
    ]
    cache = Cache(PROJECTIONS)
    if knows_own:
        cache.update("Pod", pods[0])
        pods[0]["spec"] = {}  # as if the list showed nothing of it
    a, b = (await Nodes(Cluster(*nodes, pods=pods), own=(lambda: placed(cache)) if knows_own else None).room(GPU)).nodes
    assert (a.name, a.product) == ("a", H100.product)
    assert [int(a.free(GPU)), int(a.free("cpu")), int(a.used["pods"])] == [4, 60, 4]
    assert set(a.holders) == {Holder("team-a", "chat", 2), Holder("team-a", "batch", 1), Holder("team-a", "alone", 1)}
    assert (b.name, b.product, int(b.free(GPU)), b.holders) == ("b", None, 8, ())


@pytest.mark.parametrize(
    ("where", "phase", "asked"), [("a", "Running", [2]), (None, "Pending", []), ("a", "Failed", [])]
)
def test_a_cached_pod_takes_what_a_listed_one_does(where: str | None, phase: str, asked: list[int]) -> None:
    pod = a_pod("chat-1", where, "2", CHAT, phase=phase)
    cache = Cache(PROJECTIONS)
    cache.update("Pod", pod)
    known, listed = list(placed(cache)), placed_of(pod)
    assert known == ([] if listed is None else [listed])
    assert [found.requests[GPU] for found in known] == asked


async def test_on_cpus_there_are_no_holders() -> None:
    (a,) = (await Nodes(Cluster(named("a", node()), pods=[a_pod("chat-1", "a", "2", CHAT)])).room(None)).nodes
    assert (a.holders, int(a.free("cpu"))) == ((), 63)
