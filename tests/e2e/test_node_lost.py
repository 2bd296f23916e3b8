"""A node loses its power, or its disk fills: the status says which, and what could not be saved is counted."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import own_namespace
from tests.support.client import POD
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.measured import Record
from tests.support.nodes import SECOND, AddedNode, added_node, await_condition, cordoned, pods_by_node, spread
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.reported import REPORTED_WITHIN, before, reported_everywhere
from tests.support.services import merge, one_of_several, stand_in
from tests.support.traffic import Traffic, in_figures, traffic

pytestmark = pytest.mark.full
NAME = "spread"
NAMESPACE = "e2e-node-lost"
# The node controller's patience (24 s in this cluster, 50 s by default), and its turns.
NOTICED_WITHIN = 60.0
# From Ready=Unknown: the endpoint controller's turn and kube-proxy's. What was sent before may time out later.
GONE_WITHIN = 10.0
GIB = 2**30


@dataclass(frozen=True)
class Case:
    """An engine, and the load that it bears."""

    engine: str
    service: JSON
    load: tuple[str, ...]
    starts_within: float


TWICE = {"scaling": {"replicas": 2}, "podTemplate": spread(NAME)}
CASES = (
    # It starts slowly enough for what is reported meanwhile to be seen in all places.
    Case(
        "stand-in",
        stand_in(NAME, {"start_seconds": 8, "tokens_per_second": 20}, **TWICE),
        ("--rate", "6", "--output-tokens", "10,40", "--timeout", "15"),
        120,
    ),
    Case("vLLM", one_of_several(NAME, **TWICE), ("--rate", "0.5", "--output-tokens", "64,256", "--timeout", "60"), 400),
)


@dataclass(frozen=True)
class World:
    """Two replicas on two nodes; the load comes from the node that stays."""

    cluster: Cluster
    node: AddedNode
    case: Case
    probe: Traffic

    def on_lost_node(self) -> list[JSON]:
        """The pods on the node that goes."""
        return pods_by_node(self.cluster, NAMESPACE, NAME)[SECOND]

    def recovered(self) -> None:
        self.cluster.wait_condition(NAMESPACE, NAME, "Ready", "True", timeout=self.case.starts_within)
        eventually("no failure", lambda: not self.cluster.failure(NAMESPACE, NAME), 30)

    def evicted(self) -> JSON | None:
        """A pod that was put out; one that the kubelet refused has the same reason."""
        for pod in self.cluster.list("pods", NAMESPACE, f"llmservice.dev/service={NAME}"):
            status = pod["status"]
            if status.get("reason") == "Evicted" and "low on resource" in status["message"]:
                return pod
        return None


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.engine)
def world(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[World]:
    case: Case = request.param
    with added_node(cluster, engine=case.engine == "vLLM") as node, own_namespace(cluster, NAMESPACE):
        cluster.apply(case.service, NAMESPACE)
        cluster.wait_condition(NAMESPACE, NAME, "Ready", "True", timeout=case.starts_within)
        with cordoned(cluster, SECOND), traffic(cluster, NAMESPACE, NAME, "--duration", "1h", *case.load) as probe:
            cluster.kubectl("uncordon", SECOND)
            yield World(cluster, node, case, probe)


def test_power_loss(world: World, record: Record) -> None:
    cluster, probe = world.cluster, world.probe
    (struck,) = world.on_lost_node()
    earlier = before(cluster)
    with probe.during("power loss"):
        began = probe.strike(struck)
        world.node.lose()
        await_condition(cluster, SECOND, "Ready", "Unknown", NOTICED_WITHIN)
        unknown = time.time()
        reported = reported_everywhere(cluster, NAMESPACE, NAME, "NodeLost", earlier, timeout=REPORTED_WITHIN)
        cluster.must_have(NAMESPACE, NAME, Available="True")  # the other replica answers
        world.node.add()
        world.recovered()
    lost = [row for row in probe.rows if not row.is_complete]
    sent_last = max((row.sent for row in lost), default=began)
    record(
        engine=world.case.engine,
        **in_figures(probe.since("power loss", began)),
        noticedAfter=round(unknown - began, 1),
        reportedAfter=round(reported.at - unknown, 1),
        lastLostSentAfter=round(sent_last - began, 1),
    )
    assert probe.in_flight(began) >= 1
    assert SECOND in reported.failure["message"]
    assert lost, "the lost pod was sent half of the requests until its endpoint went"
    assert sent_last <= unknown + GONE_WITHIN, probe.of("power loss")


def test_disk_pressure(world: World, record: Record) -> None:
    """The kubelet puts a serving pod out at once, as kill -9 would: what it was about to answer may be lost."""
    cluster, probe = world.cluster, world.probe
    world.recovered()
    back_on_both_nodes(world)
    folder = cluster.paths.state / SECOND
    world.node.add(eviction={"nodefs.available": str(shutil.disk_usage(folder).free - GIB)})
    await_admission(cluster)
    earlier = before(cluster)
    with probe.during("disk pressure"):
        began = probe.strike(*world.on_lost_node())
        with filled(folder / "filling", 2 * GIB):
            evicted = eventually("an evicted pod", world.evicted, 90)
            since = time.time()
            reported = reported_everywhere(cluster, NAMESPACE, NAME, "Evicted", earlier, timeout=REPORTED_WITHIN)
        await_condition(cluster, SECOND, "DiskPressure", "False", 60)
        world.recovered()
    world.node.add()
    until = probe.stories["disk pressure"].until
    lost = [row for row in probe.rows if not row.is_complete and began <= row.ended < until]
    record(
        engine=world.case.engine,
        **in_figures(probe.since("disk pressure", since)),
        reportedAfter=round(reported.at - since, 1),
        lastLostSentAfter=round(max((row.sent for row in lost), default=since) - since, 1),
        message=evicted["status"]["message"],
    )
    assert probe.in_flight(began) >= 1
    assert all(row.sent <= since + GONE_WITHIN for row in lost), probe.of("disk pressure")


def back_on_both_nodes(world: World) -> None:
    """After a power loss its pod may have been made anew on the other node."""
    if world.on_lost_node():
        return
    for pods in pods_by_node(world.cluster, NAMESPACE, NAME).values():
        for pod in pods[1:]:
            world.cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", NAMESPACE)
    world.recovered()


def await_admission(cluster: Cluster) -> None:
    """The node's kubelet, started anew, has taken its pods. Of a node whose disk is full then, it would refuse them.

    They are older than the one that it takes here, and so were taken before.
    """
    pod = merge(POD, {"metadata": {"name": "latest"}, "spec": {"nodeName": SECOND}})
    cluster.apply(pod, NAMESPACE)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/latest", "-n", NAMESPACE, KUBECTL_TIMEOUT)
    cluster.kubectl("delete", "pod", "latest", "-n", NAMESPACE)


@contextmanager
def filled(path: Path, count: int) -> Iterator[None]:
    """So many bytes of a disk are taken."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, count)
        try:
            yield
        finally:
            path.unlink()
