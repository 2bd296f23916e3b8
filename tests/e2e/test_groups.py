"""A replica over two nodes: it serves, loses a member, comes back by itself, and says on which rank it happened."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
from llmservice_api.constants import RANK_LABEL

from tests.e2e.conftest import own_namespace
from tests.e2e.disturbances import under_load
from tests.e2e.monitored import OF_GROUPS, VARIABLES, WITHIN, monitored, queries
from tests.support.accelerators import advertised
from tests.support.audit import assert_rights_are_used
from tests.support.cluster import JSON, Cluster, condition, eventually, is_ready
from tests.support.groups import TWO_NODES, WideService, groups_installed, is_back_within, kill_vllm, seconds_until
from tests.support.host import engine_of
from tests.support.measured import Record
from tests.support.nodes import NODES, SECOND, added_node
from tests.support.operator import scale_operator
from tests.support.patience import KUBECTL_TIMEOUT, PATIENCE, at_latest
from tests.support.prometheus import wait_for_samples
from tests.support.services import stand_in

NAME, NAMESPACE = "wide", "e2e-groups"
BETWEEN = {"preset": "tcp", "interface": "eth0", "sharedMemory": "1Gi"}
WIDE = stand_in(NAME, {"start_seconds": 2}, parallelism={**TWO_NODES, "network": BETWEEN})


@pytest.fixture(scope="module", autouse=True)
def groups(cluster: Cluster) -> Iterator[None]:
    with groups_installed(cluster), added_node(cluster):
        yield


@pytest.fixture(scope="module")
def wide(cluster: Cluster, groups: None) -> Iterator[WideService]:
    """A group that serves on two nodes."""
    with own_namespace(cluster, NAMESPACE) as namespace:
        cluster.apply(WIDE, namespace)
        service = WideService(cluster, namespace, NAME)
        service.await_served()
        yield service


def test_it_serves_on_both_nodes_and_the_service_selects_the_leader(cluster: Cluster, wide: WideService) -> None:
    pods = wide.members()
    assert {pod["spec"]["nodeName"] for pod in pods.values()} == set(NODES)
    eventually("its members in the status", lambda: wide.steps() == ["Running", "Running"], PATIENCE)
    addresses = {
        address
        for each in cluster.list("endpointslices", NAMESPACE, f"kubernetes.io/service-name={NAME}")
        for endpoint in each["endpoints"]
        for address in endpoint["addresses"]
    }
    assert addresses == {pods[0]["status"]["podIP"]}


def test_the_dashboard_shows_its_pods_and_only_the_leaders_vllm_is_asked(wide: WideService, tmp_path: Path) -> None:
    variables = {**VARIABLES, "namespace": NAMESPACE, "service": NAME}
    exprs = [query.concrete(variables, "30s") for query in queries() if query.empty_when in OF_GROUPS]
    scraped = f'up{{namespace="{NAMESPACE}",endpoint="leader-http"}}'
    with monitored(tmp_path, {"groups": {"enabled": True}}) as prometheus:
        assert wait_for_samples(prometheus, [*exprs, f"{scraped} == 1"], WITHIN) == []
        assert [sample.labels["pod"] for sample in prometheus.query(scraped)] == [f"{NAME}-0"]


def test_vllm_uses_the_interface_of_the_spec(wide: WideService) -> None:
    for pod in wide.members().values():
        engine = engine_of(pod)
        variables = Path(f"/proc/{engine}/environ").read_text().split("\0")
        expected = {"GLOO_SOCKET_IFNAME=eth0", "NCCL_SOCKET_IFNAME==eth0", f"VLLM_HOST_IP={pod['status']['podIP']}"}
        assert expected <= set(variables)


GONE_WITHIN = 5.0
"""Seconds until a group of which one vLLM is dead takes no requests."""


@pytest.mark.parametrize("rank", [1, 0], ids=["a worker", "the leader"])
def test_a_killed_vllm_ends_the_endpoint_at_once_and_the_group_comes_back(
    cluster: Cluster, record: Record, rank: int
) -> None:
    with own_namespace(cluster, f"{NAMESPACE}-killed-{rank}") as namespace:
        wide = WideService(cluster, namespace, NAME)
        cluster.apply(WIDE, namespace)
        start = wide.await_served()
        pods, runs = wide.members(), wide.runs()
        began = kill_vllm(pods[rank])
        gone = seconds_until("its endpoint is gone", lambda: not wide.has_endpoint(), began)
        eventually("Ready is false", lambda: not wide.is_ready(), PATIENCE)
        cause = f"Rank {rank} (pod {pods[rank]['metadata']['name']} on node "
        eventually("the first cause", lambda: wide.group().get("cause", "").startswith(cause), PATIENCE)
        back = wide.await_served(began)
        record(start_seconds=round(start, 1), gone_seconds=round(gone, 1), back_seconds=round(back, 1))
        assert gone <= at_latest(GONE_WITHIN)
        assert back <= is_back_within(start)
        assert wide.runs() == runs, "no pod and no container was replaced"
        assert "cause" not in wide.group(), "it is over"


SHORT = "groups.test/gpu"
"""Of which each node has one."""


def on_gpus(name: str) -> JSON:
    """Over as many nodes as have the GPUs of a replica."""
    accelerator = {"type": "nvidia", "resourceName": SHORT}
    return stand_in(name, {"start_seconds": 2}, accelerator=accelerator, parallelism={**TWO_NODES, "nodes": "auto"})


def test_of_two_groups_with_room_for_one_one_serves_and_the_other_holds_no_gpu(
    cluster: Cluster, wide: WideService
) -> None:
    one_each = {SHORT: 1}
    with advertised(cluster, one_each), advertised(cluster, one_each, SECOND):
        names = ("one", "other")
        cluster.apply_all([on_gpus(name) for name in names], NAMESPACE)
        serving = eventually(
            "one serves", lambda: next((n for n in names if _is_ready_service(cluster, n)), None), PATIENCE
        )
        (held,) = (name for name in names if name != serving)
        cluster.wait_condition(NAMESPACE, held, "Ready", "False", reason="InsufficientGPUs", timeout=PATIENCE)
        assert f"Insufficient {SHORT} for 2 pods of a replica at once" in str(cluster.failure(NAMESPACE, held))
        pods = cluster.pods(NAMESPACE, held)
        assert len(pods) == 2
        assert not any("nodeName" in pod["spec"] for pod in pods)
        assert _is_ready_service(cluster, serving)
        cluster.kubectl("delete", "llms", serving, "-n", NAMESPACE, KUBECTL_TIMEOUT)
        cluster.wait_condition(NAMESPACE, held, "Ready", "True", timeout=PATIENCE)
        cluster.kubectl("delete", "llms", held, "-n", NAMESPACE, KUBECTL_TIMEOUT)


def _is_ready_service(cluster: Cluster, name: str) -> bool:
    return is_ready(cluster.must_get("llmservices", NAMESPACE, name))


MOVED, MOVES_IN = "moved", "e2e-groups-moved"
HALF = {"tensorParallelSize": 2}
ONE = stand_in(MOVED, {"start_seconds": 2, "tokens_per_second": 20}, parallelism=HALF, scaling={"replicas": 2})


def _two_nodes(cluster: Cluster) -> None:
    _edit(cluster, parallelism={**HALF, "nodes": 2})


def _one_node(cluster: Cluster) -> None:
    _edit(cluster, parallelism={**HALF, "nodes": 1})


def _without_a_worker(cluster: Cluster) -> None:
    """Its pod, as an eviction would end it."""
    worker = next(pod for pod in cluster.pods(MOVES_IN, MOVED) if pod["metadata"]["labels"][RANK_LABEL] == "1")
    cluster.kubectl("delete", "pod", worker["metadata"]["name"], "-n", MOVES_IN, "--wait=false")


STORIES: dict[str, tuple[Callable[[Cluster], None], str]] = {
    "to two nodes": (_two_nodes, "leaderworkersets"),
    "the end of a worker's pod": (_without_a_worker, "leaderworkersets"),
    "to one node": (_one_node, "deployments"),
}


def test_no_request_is_lost_while_replicas_move_and_lose_a_pod(cluster: Cluster, record: Record) -> None:
    load = ("--rate", "8", "--output-tokens", "10,20,80")
    figures: JSON = {}
    with under_load(cluster, MOVES_IN, ONE, PATIENCE, *load) as probe:
        for story, (change, kind) in STORIES.items():
            began = time.monotonic()
            with probe.during(story):
                probe.strike(*cluster.pods(MOVES_IN, MOVED))
                change(cluster)
                eventually("it is taken up", lambda: not _is_rolled_out(cluster), PATIENCE)
                eventually("it is rolled out", lambda: _is_rolled_out(cluster), PATIENCE)
            figures[story] = {**probe.figures(story), "seconds": round(time.monotonic() - began, 1)}
            record(**figures)
            probe.assert_nothing_lost(story)
            replicas = {
                plural: (cluster.get(plural, MOVES_IN, MOVED) or {"spec": {}})["spec"].get("replicas", 0)
                for plural in ("leaderworkersets", "deployments")
            }
            assert replicas == {"leaderworkersets": 0, "deployments": 0, kind: 2}


def _edit(cluster: Cluster, **spec: object) -> None:
    cluster.patch("llmservices", MOVES_IN, MOVED, {"spec": spec})


def _is_rolled_out(cluster: Cluster) -> bool:
    service = cluster.must_get("llmservices", MOVES_IN, MOVED)
    found = condition(service, "Ready") or {}
    is_current = service["status"].get("observedGeneration") == service["metadata"]["generation"]
    return is_current and found.get("status") == "True"


THEIRS = {"matchLabels": {"app": "theirs"}}
IN_THE_WAY: dict[str, JSON] = {
    "networkpolicies": {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "spec": {"podSelector": THEIRS, "policyTypes": ["Egress"]},
    },
    "leaderworkersets": {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "spec": {
            "replicas": 0,
            "leaderWorkerTemplate": {
                "size": 3,
                "workerTemplate": {"spec": {"containers": [{"name": "theirs", "image": "registry.local/pause:1"}]}},
            },
        },
    },
}


def test_the_value_grants_what_is_used_and_nothing_else(cluster: Cluster, namespace: str) -> None:
    """Of the requests since the value is on, the tests above included."""
    cluster.apply(stand_in("met", {}, parallelism=TWO_NODES, scaling={"replicas": 0}), namespace)
    for plural in IN_THE_WAY:
        eventually(f"its {plural}", partial(cluster.get, plural, namespace, "met"), PATIENCE)
    with scale_operator(cluster, 0):
        for plural, manifest in IN_THE_WAY.items():
            cluster.kubectl("delete", plural, "met", "-n", namespace, "--wait=true", KUBECTL_TIMEOUT)
            foreign = json.dumps({**manifest, "metadata": {"name": "met"}})
            cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=foreign)
    left = {manifest["kind"]: plural for plural, manifest in IN_THE_WAY.items()}
    while left:
        kind = eventually("a conflict with one of them", lambda: conflict(cluster, namespace, left), PATIENCE)
        cluster.kubectl("delete", left.pop(kind), "met", "-n", namespace, "--wait=true", KUBECTL_TIMEOUT)
    cluster.wait_condition(namespace, "met", "Accepted", "True", timeout=PATIENCE)
    cluster.patch("llmservices", namespace, "met", {"spec": {"parallelism": {"nodes": None}}})
    eventually("no policy", lambda: not cluster.get("networkpolicies", namespace, "met"), PATIENCE)
    assert_rights_are_used(cluster, "leaderworkerset.x-k8s.io", "networking.k8s.io")


def conflict(cluster: Cluster, namespace: str, kinds: Iterable[str]) -> str | None:
    """Of which of these kinds it is said that an object of others is there."""
    found = cluster.condition(namespace, "met", "Accepted") or {}
    said = str(found.get("message")) if found.get("reason") == "NameConflict" else ""
    return next((kind for kind in kinds if f"{kind} met exists" in said), None)
