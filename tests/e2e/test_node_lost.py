"""A node loses its power, or its disk fills: the status says which, and what could not be saved is counted."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import make_namespace
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.measured import Record
from tests.support.nodes import SECOND, SecondNode, await_condition, cordoned, pods_by_node, second_node, spread
from tests.support.services import stand_in
from tests.support.traffic import Traffic, in_figures, traffic

pytestmark = pytest.mark.full
NAME = "spread"
NAMESPACE = "e2e-node-lost"
TOLD_WITHIN = 10.0
# The node controller's patience (24 s in this cluster, 50 s by default), and its turns.
NOTICED_WITHIN = 60.0
# From Ready=Unknown: the endpoint controller's turn and kube-proxy's. What was sent before may time out later.
GONE_WITHIN = 10.0
REQUEST_TIMEOUT = 15.0


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[SecondNode]:
    with second_node(cluster) as node:
        yield node


@pytest.fixture(scope="module")
def probe(cluster: Cluster, node: SecondNode) -> Iterator[Traffic]:
    """Two replicas on two nodes; the load comes from the node that stays."""
    make_namespace(cluster, NAMESPACE)
    behaviour = {"start_seconds": 1, "tokens_per_second": 20}
    cluster.apply(stand_in(NAME, behaviour, scaling={"replicas": 2}, podTemplate=spread(NAME)), NAMESPACE)
    cluster.wait_condition(NAMESPACE, NAME, "Ready", "True", timeout=180)
    load = ("--rate", "6", "--output-tokens", "10,40", "--timeout", str(REQUEST_TIMEOUT), "--duration", "1h")
    with cordoned(cluster, SECOND), traffic(cluster, NAMESPACE, NAME, *load) as running:
        cluster.kubectl("uncordon", SECOND)
        yield running
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def failure(cluster: Cluster) -> JSON:
    told: JSON = cluster.must_get("llmservices", NAMESPACE, NAME).get("status", {}).get("failure") or {}
    return told


def events(cluster: Cluster, reason: str) -> list[JSON]:
    found = cluster.list("events", NAMESPACE)
    return [event for event in found if event["reason"] == reason and event["involvedObject"]["kind"] == "LLMService"]


def recovered(cluster: Cluster) -> None:
    cluster.wait_condition(NAMESPACE, NAME, "Ready", "True", timeout=120)
    eventually("no failure", lambda: not failure(cluster), 30)


def test_power_loss(cluster: Cluster, node: SecondNode, probe: Traffic, record: Record) -> None:
    assert len(pods_by_node(cluster, NAMESPACE, NAME)[SECOND]) == 1
    with probe.during("power loss"):
        began = time.time()
        node.lose()
        await_condition(cluster, SECOND, "Ready", "Unknown", NOTICED_WITHIN)
        unknown = time.time()
        eventually("NodeLost is told", lambda: failure(cluster).get("reason") == "NodeLost", TOLD_WITHIN)
        told = time.time()
        available = cluster.condition(NAMESPACE, NAME, "Available")
        assert available is not None
        assert available["status"] == "True", "the other replica answers"
        node.add()
        recovered(cluster)
    lost = [row for row in probe.rows if not row.is_complete]
    sent_last = max((row.sent for row in lost), default=began)
    record(
        **in_figures(probe.since("power loss", began)),
        noticedAfter=round(unknown - began, 1),
        toldAfter=round(told - unknown, 1),
        lastLostSentAfter=round(sent_last - began, 1),
    )
    assert lost, "the lost pod was sent half of the requests until its endpoint went"
    assert sent_last <= unknown + GONE_WITHIN, probe.of("power loss")


def test_disk_pressure(cluster: Cluster, node: SecondNode, probe: Traffic, record: Record) -> None:
    recovered(cluster)
    if not pods_by_node(cluster, NAMESPACE, NAME)[SECOND]:
        for pods in pods_by_node(cluster, NAMESPACE, NAME).values():
            for pod in pods[1:]:
                cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", NAMESPACE)
        recovered(cluster)
    with probe.during("disk pressure"):
        node.add(eviction={"nodefs.available": "99%"})
        evicted = eventually("an evicted pod", lambda: evicted_pod(cluster), 90)
        since = time.time()
        eventually("Evicted is told", lambda: events(cluster, "Evicted"), TOLD_WITHIN)
        told = time.time()
        node.add()
        await_condition(cluster, SECOND, "DiskPressure", "False", 60)
        recovered(cluster)
    record(
        **in_figures(probe.stories["disk pressure"]),
        toldAfter=round(told - since, 1),
        message=evicted["status"]["message"],
    )


def evicted_pod(cluster: Cluster) -> JSON | None:
    pods = cluster.list("pods", NAMESPACE, f"llmservice.dev/service={NAME}")
    return next((pod for pod in pods if pod["status"].get("reason") == "Evicted"), None)
