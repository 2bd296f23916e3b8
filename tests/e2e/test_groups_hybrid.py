"""Hybrid balancing: each node of a replica has engines that answer requests by themselves, and all of them start, end
and restart together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from llmservice_api.constants import GROUP_INDEX_LABEL, RANK_LABEL

from tests.e2e.disturbances import (
    HYBRID,
    Story,
    World,
    delete_pod,
    nothing_is_lost,
    rolling_update,
    term_while_serving,
    words,
    world,
)
from tests.support.cluster import Cluster, eventually, is_ready
from tests.support.groups import HYBRID_ENGINES, WideService, groups_installed, is_back_within, kill_vllm, seconds_until
from tests.support.host import terminate
from tests.support.measured import Record
from tests.support.nodes import FIRST, SECOND, added_node
from tests.support.patience import PATIENCE, at_latest
from tests.support.services import stand_in

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> Iterator[None]:
    with groups_installed(cluster), added_node(cluster):
        yield


ENDPOINTS_GONE_WITHIN = 5.0


@pytest.mark.parametrize("rank", [1, 0], ids=["a worker's", "the leader's"])
def test_with_hybrid_balancing_both_nodes_are_endpoints_and_come_and_go_together(
    cluster: Cluster, nodes: None, namespace: str, record: Record, rank: int
) -> None:
    wide = WideService(cluster, namespace, "both")
    cluster.apply(stand_in("both", {"start_seconds": 1}, parallelism=HYBRID_ENGINES), namespace)
    start = wide.await_served()
    pods, runs = wide.members(), wide.runs()
    names = {pod["metadata"]["name"] for pod in pods.values()}
    assert {pod["spec"]["nodeName"] for pod in pods.values()} == {FIRST, SECOND}
    assert wide.endpoints() == names
    assert all(wide.answers_at(pod["status"]["podIP"]) for pod in pods.values())
    began = kill_vllm(pods[rank])
    gone = seconds_until("its endpoints are gone", lambda: not wide.has_endpoint(), began)
    eventually("both are back", lambda: wide.endpoints() == names, PATIENCE)
    back = wide.await_served(began)
    record(start_seconds=round(start, 1), gone_seconds=round(gone, 1), back_seconds=round(back, 1))
    assert back <= is_back_within(start)
    assert gone <= at_latest(ENDPOINTS_GONE_WITHIN)
    assert all(wide.answers_at(pod["status"]["podIP"]) for pod in pods.values())
    assert wide.runs() == runs, "no pod and no container was replaced"


@pytest.fixture(scope="module")
def served(cluster: Cluster, nodes: None) -> Iterator[World]:
    with world(cluster, "e2e-groups-hybrid", HYBRID) as made:
        yield made


def term_of_a_worker(served: World) -> None:
    """It answers what it has, and so does its leader; then both start vLLM again."""
    struck = next(pod for pod in served.answering() if pod["metadata"]["labels"][RANK_LABEL] == "1")
    number = struck["metadata"]["labels"][GROUP_INDEX_LABEL]
    served.strike(struck)
    terminate(struck)

    def takes_requests() -> bool:
        return any(map(is_ready, (p for p in served.pods() if p["metadata"]["labels"][GROUP_INDEX_LABEL] == number)))

    eventually("neither of them takes requests", lambda: not takes_requests(), PATIENCE)


def one_endpoint_a_replica_and_back(served: World) -> None:
    """A rollout each: pods whose workers answer requests, and pods whose leaders alone do."""
    served.strike()
    served.change(parallelism={"dataParallelMode": None})
    served.settled()
    assert len(served.answering()) == 2, "the leaders"
    served.strike()
    served.change(parallelism={"dataParallelMode": "hybrid"})


STORIES: list[Story] = [
    rolling_update,
    delete_pod,
    term_while_serving,
    term_of_a_worker,
    one_endpoint_a_replica_and_back,
]


@pytest.mark.parametrize("story", STORIES, ids=words)
def test_nothing_is_lost(served: World, story: Story, record: Record) -> None:
    assert len(served.answering()) == 4
    nothing_is_lost(served, story, record)
