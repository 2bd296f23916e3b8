"""A replica over two nodes meets faults of its nodes, its network and its pods, each on a group that is new."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import pytest
from llmservice_api.constants import RANK_LABEL

from localcluster import place, processes
from localcluster.imagecopy import ImageStore
from localcluster.install import STAND_IN_IMAGE
from tests.e2e.conftest import own_namespace
from tests.support.client import POD
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.groups import (
    ENGINES,
    TWO_NODES,
    WideService,
    cut,
    groups_installed,
    is_back_within,
    kill_vllm,
    seconds_until,
)
from tests.support.host import cpu_seconds, pause, supervisor_of, without
from tests.support.measured import Record
from tests.support.nodes import FIRST, SECOND, THIRD, AddedNode, added_node, await_condition
from tests.support.patience import KUBECTL_TIMEOUT, PATIENCE, at_latest, at_most
from tests.support.rolling import events
from tests.support.services import merge, stand_in

pytestmark = pytest.mark.full
NAMESPACE = "e2e-groups-faults"
NOTICED_WITHIN = 10.0
"""Seconds until a group whose members do not hear of each other takes no requests."""
REASON_WITHIN = 60.0
UNDER_LOAD_SECONDS = 600
BACK_OFF_SECONDS = 10 + 20 + 40 + 80 + 160
"""Of all restarts of the budget together."""
_NUMBERS = count()


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[AddedNode]:
    with groups_installed(cluster), added_node(cluster) as node, own_namespace(cluster, NAMESPACE):
        yield node


@contextmanager
def new_group(cluster: Cluster, behaviour: Mapping[str, Any], **spec: Any) -> Iterator[WideService]:
    service = WideService(cluster, NAMESPACE, f"wide-{next(_NUMBERS)}")
    cluster.apply(stand_in(service.name, behaviour, **merge({"parallelism": TWO_NODES}, spec)), NAMESPACE)
    yield service
    cluster.kubectl("delete", "llms", service.name, "-n", NAMESPACE, KUBECTL_TIMEOUT)


@pytest.fixture
def wide(cluster: Cluster, node: AddedNode) -> Iterator[WideService]:
    """One that serves."""
    with new_group(cluster, {"start_seconds": 2}) as service:
        service.await_served()
        yield service


@pytest.fixture
def start(wide: WideService) -> float:
    """Seconds from its manifest until it served."""
    return time.monotonic() - wide.began


def test_a_cut_network_ends_the_endpoint_and_the_group_comes_back_with_it(
    wide: WideService, start: float, record: Record
) -> None:
    pods, runs = wide.members(), wide.runs()
    with cut(pods[0], pods[1]):
        began = time.monotonic()
        gone = seconds_until("its endpoint is gone", lambda: not wide.has_endpoint(), began)
        eventually("Ready is false", lambda: not wide.is_ready(), PATIENCE)
        lost = f"Rank 1 (pod {pods[1]['metadata']['name']} on node {pods[1]['spec']['nodeName']})"
        eventually("the rank that is lost", lambda: wide.group().get("cause", "").startswith(lost), PATIENCE)
        assert "has not been heard of" in wide.group()["cause"]
    back = wide.await_served(time.monotonic())
    record(start_seconds=round(start, 1), gone_seconds=round(gone, 1), back_seconds=round(back, 1))
    assert gone <= at_latest(NOTICED_WITHIN)
    assert back <= is_back_within(start)
    assert wide.runs() == runs, "no pod and no container was replaced"


RACK = "groups.test/rack"


def test_all_pods_of_a_replica_are_in_one_domain_or_hold_nothing(cluster: Cluster, node: AddedNode) -> None:
    try:
        for name, rack in ((FIRST, "r1"), (SECOND, "r2")):
            cluster.kubectl("label", "node", name, f"{RACK}={rack}")
        parallelism = {**TWO_NODES, "topologyKey": RACK}
        with new_group(cluster, {"start_seconds": 1}, parallelism=parallelism) as wide:
            within = f"for 2 pods of a replica at once within one {RACK}"
            eventually("no room in one rack", lambda: within in str(_failure(wide)), PATIENCE)
            assert not any("nodeName" in pod["spec"] for pod in wide.members().values())
            cluster.kubectl("label", "node", SECOND, f"{RACK}=r1", "--overwrite")
            wide.await_served()
            pods = wide.members().values()
            assert {pod["spec"]["nodeName"] for pod in pods} == {FIRST, SECOND}
            assert all(pod["spec"]["nodeSelector"] == {RACK: "r1"} for pod in pods)
            assert not _failure(wide)
    finally:
        for name in (FIRST, SECOND):
            cluster.kubectl("label", "node", name, f"{RACK}-")


@contextmanager
def stopped_kubelet(node: AddedNode, name: str) -> Iterator[None]:
    """The node's containers go on."""
    if name == FIRST:
        with without(node.cluster, "kubelet"):
            yield
        return
    processes.stop(node.cluster.paths, place.added(node.cluster.paths).component("kubelet"))
    try:
        yield
    finally:
        node.add()


@pytest.mark.parametrize("rank", [1, 0], ids=["a worker's", "the leader's"])
def test_a_stopped_kubelet_restarts_nothing_and_only_the_leaders_ends_the_endpoint(
    cluster: Cluster, node: AddedNode, wide: WideService, record: Record, rank: int
) -> None:
    runs, name = wide.runs(), wide.members()[rank]["spec"]["nodeName"]
    with stopped_kubelet(node, name):
        await_condition(cluster, name, "Ready", "Unknown", at_most(60))
        began = time.monotonic()
        if rank == 0:
            gone = seconds_until("its endpoint is gone", lambda: not wide.has_endpoint(), began)
            record(gone_seconds_after_the_node=round(gone, 1))
            assert gone <= at_latest(NOTICED_WITHIN)
        else:
            eventually("its pod counts as lost", lambda: not is_ready(wide.members()[1]), PATIENCE)
            pause(NOTICED_WITHIN)
            assert wide.has_endpoint()
            assert wide.answers()
    wide.await_served()
    assert wide.runs() == runs, "nothing was restarted"
    assert "cause" not in wide.group()


OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


def test_a_node_that_is_gone_for_good_is_replaced_once_kubernetes_is_told_so(
    cluster: Cluster, node: AddedNode, wide: WideService, record: Record
) -> None:
    """Its containers go on: a pod of the same name runs on another node meanwhile, and one of the two takes part."""
    with added_node(cluster, THIRD):
        with stopped_kubelet(node, SECOND):
            await_condition(cluster, SECOND, "Ready", "Unknown", at_most(60))
            (lost,) = (pod for pod in wide.members().values() if pod["spec"]["nodeName"] == SECOND)
            began = time.monotonic()
            cluster.kubectl("taint", "node", SECOND, f"{OUT_OF_SERVICE}=nodeshutdown:NoExecute")
            try:
                eventually("a pod in its place", lambda: nodes_of(wide) == {FIRST, THIRD}, PATIENCE)
                eventually("Ready is false", lambda: not wide.is_ready(), PATIENCE)
                back = wide.await_served(began)
            finally:
                cluster.kubectl("taint", "node", SECOND, f"{OUT_OF_SERVICE}-")
            record(back_seconds=round(back, 1), rank=lost["metadata"]["labels"][RANK_LABEL])
        await_condition(cluster, SECOND, "Ready", "True", at_most(60))
        pause(NOTICED_WITHIN)
        wide.await_served()
        assert nodes_of(wide) == {FIRST, THIRD}


def nodes_of(wide: WideService) -> set[str | None]:
    return {pod["spec"].get("nodeName") for pod in wide.members().values()}


@contextmanager
def busy(cluster: Cluster) -> Iterator[None]:
    """All processors, by a pod on each node that asks for next to nothing and takes what it gets."""
    loops = " & ".join(["while :; do :; done"] * (os.cpu_count() or 1))
    with ExitStack() as stack:
        for node in (FIRST, SECOND):
            name = f"busy-{node}"
            (container,) = POD["spec"]["containers"]  # type: ignore[index]
            container = {
                **container,
                "command": ["sh", "-c", loops],
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            }
            change = {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}
            cluster.apply(merge(POD, change), NAMESPACE)
            stack.callback(cluster.kubectl, "delete", "pod", name, "-n", NAMESPACE, KUBECTL_TIMEOUT)
            cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "-n", NAMESPACE, KUBECTL_TIMEOUT)
        yield


def test_ten_minutes_of_full_load_cost_no_readiness(cluster: Cluster, wide: WideService) -> None:
    before, runs = wide.ready_since(), wide.runs()
    with busy(cluster):
        pause(UNDER_LOAD_SECONDS)
        assert wide.answers()
    assert wide.ready_since() == before
    assert wide.runs() == runs


def test_a_worker_that_dies_while_it_starts_is_named_and_the_group_starts_again(
    cluster: Cluster, node: AddedNode, record: Record
) -> None:
    with new_group(cluster, {"start_seconds": 20}) as wide:
        eventually("vLLM of both is started", lambda: wide.steps() == ["Running", "Running"], PATIENCE)
        pods, runs = wide.members(), wide.runs()
        began = kill_vllm(pods[1])
        cause = f"Rank 1 (pod {pods[1]['metadata']['name']} on node "
        told = seconds_until("the reason", lambda: cause in str(wide.group().get("cause")), began)
        record(told_seconds=round(told, 1))
        assert told <= at_latest(REASON_WITHIN)
        assert cluster.failure(NAMESPACE, wide.name)["reason"] == "EngineDied"
        wide.await_served()
        assert wide.runs() == runs, "no pod and no container was replaced"


IDLE_SECONDS = 60


def test_what_a_group_takes_beside_a_single_pod(cluster: Cluster, node: AddedNode, record: Record) -> None:
    """Seconds from apply to Ready, and the share of a processor of each supervisor while nobody asks anything."""
    ready, shares = dict[str, float](), dict[str, list[float]]()
    for kind, parallelism in (("single pod", {"nodes": 1}), ("group", TWO_NODES)):
        began = time.monotonic()
        with new_group(cluster, {"start_seconds": 1}, parallelism=parallelism) as service:
            cluster.wait_condition(NAMESPACE, service.name, "Ready", "True", timeout=PATIENCE)
            ready[kind] = round(time.monotonic() - began, 1)
            pods = cluster.pods(NAMESPACE, service.name)
            supervisors = [supervisor_of(pod) for pod in pods]
            before = [cpu_seconds(pid) for pid in supervisors if pid is not None]
            pause(IDLE_SECONDS)
            after = [cpu_seconds(pid) for pid in supervisors if pid is not None]
            shares[kind] = [round((b - a) / IDLE_SECONDS, 4) for a, b in zip(before, after, strict=True)]
    record(ready_seconds=ready, processor_share=shares)
    assert len(shares["group"]) == 2
    assert max(shares["group"]) < 0.05, "a heartbeat a second and an answer to it"


def test_an_engine_on_each_node_is_one_endpoint_and_comes_back_with_the_others(
    cluster: Cluster, node: AddedNode, record: Record
) -> None:
    """Data parallelism: by the stand-in alone, since vLLM on CPUs has no all-to-all of experts."""
    with new_group(cluster, {"start_seconds": 1}, parallelism=ENGINES) as wide:
        start = wide.await_served()
        pods, runs = wide.members(), wide.runs()
        assert {pod["spec"]["nodeName"] for pod in pods.values()} == {FIRST, SECOND}
        began = kill_vllm(pods[1])
        gone = seconds_until("its endpoint is gone", lambda: not wide.has_endpoint(), began)
        back = wide.await_served(began)
        record(gone_seconds=round(gone, 1), back_seconds=round(back, 1))
        assert back <= is_back_within(start)
        assert wide.runs() == runs, "no pod and no container was replaced"


ELSEWHERE = "127.0.0.1:1/stand-in-of-one-node:v0.32.0"
"""An image that one of the nodes has, and that nobody answers for."""


@contextmanager
def image_of_one_node(cluster: Cluster) -> Iterator[None]:
    store = ImageStore(place.ctr_command(cluster.paths, place.first(cluster.paths)))
    store.ctr("images", "tag", "--force", STAND_IN_IMAGE, ELSEWHERE)
    try:
        yield
    finally:
        store.ctr("images", "rm", ELSEWHERE)


def test_an_image_that_one_member_does_not_get_is_named_and_an_edit_mends_it(
    cluster: Cluster, node: AddedNode, record: Record
) -> None:
    began = time.monotonic()
    with image_of_one_node(cluster), new_group(cluster, {}, runtime={"image": ELSEWHERE}) as wide:
        reason = "RegistryUnavailable"
        told = seconds_until("the reason", lambda: _failure(wide).get("reason") == reason, began)
        record(told_seconds=round(told, 1))
        assert told <= at_latest(REASON_WITHIN)
        (there,) = (pod for pod in wide.members().values() if pod["spec"]["nodeName"] == SECOND)
        assert _failure(wide)["pod"] == there["metadata"]["name"]
        runs = _uids(wide)
        pause(20)
        assert _uids(wide) == runs, "no group was made anew"
        cluster.patch("llmservices", NAMESPACE, wide.name, {"spec": {"runtime": {"image": STAND_IN_IMAGE}}})
        wide.await_served()
        assert not _failure(wide)


def _uids(wide: WideService) -> set[str]:
    return {pod["metadata"]["uid"] for pod in wide.members().values()}


def _failure(wide: WideService) -> JSON:
    return wide.cluster.failure(wide.namespace, wide.name) or {}


def test_a_group_that_used_up_its_restarts_says_so_once_and_an_edit_brings_it_back(
    cluster: Cluster, node: AddedNode, record: Record
) -> None:
    began = time.monotonic()
    with new_group(cluster, {"fails": "kv-cache-too-small"}) as wide:
        reason = "GroupRestartBudgetExhausted"
        eventually("no more restarts", lambda: _failure(wide).get("reason") == reason, at_most(2 * BACK_OFF_SECONDS))
        record(used_up_after_seconds=round(time.monotonic() - began, 1))
        cause = wide.group()["cause"]
        assert "KV cache" in cause, "the first cause, not what came of it"
        runs = wide.runs()
        pause(60)
        assert wide.runs() == runs
        assert sum(restarts for _, restarts in runs) == 0, "the kubelet restarted nothing"
        (told,) = events(cluster, NAMESPACE, wide.name, reason)
        assert told.get("count", 1) == 1
        edited = stand_in(wide.name, {"start_seconds": 1}, parallelism=TWO_NODES)
        cluster.apply(edited, NAMESPACE)
        wide.await_served()
        assert not _failure(wide)
