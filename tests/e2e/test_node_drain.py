"""A node is drained, and then the other one, the operator's own: no request is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.e2e.disturbances import under_load
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.measured import Record
from tests.support.nodes import FIRST, SECOND, added_node, pods_by_node, spread
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE, leader, operator_pods, set_replicas
from tests.support.services import one_of_several, stand_in
from tests.support.traffic import Traffic

NAME = "spread"
TWICE = {"scaling": {"replicas": 2}, "podTemplate": spread(NAME)}


@dataclass(frozen=True)
class World:
    """Two replicas on two nodes, with requests on them."""

    cluster: Cluster
    namespace: str
    engine: str
    probe: Traffic
    within: float

    def on(self, node: str) -> list[JSON]:
        return pods_by_node(self.cluster, self.namespace, NAME)[node]

    def spread(self) -> tuple[int, int]:
        """How many pods each node has."""
        return len(self.on(FIRST)), len(self.on(SECOND))

    def settled(self) -> None:
        """Two ready replicas, and none that still goes away."""

        def look() -> bool:
            seen: JSON = self.cluster.must_get("deployments", self.namespace, NAME)["status"]
            every = self.cluster.list("pods", self.namespace, f"llmservice.dev/service={NAME}")
            return bool(seen.get("readyReplicas", 0) == len(every) == 2)

        eventually("two replicas", look, self.within)
        self.cluster.wait_condition(self.namespace, NAME, "Ready", "True", timeout=30)

    def drain(self, node: str, selector: str) -> None:
        """What `kubectl drain` does to a node, for these of its pods: the load's own pod and other tests' stay."""
        words = ("--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={selector}")
        self.cluster.kubectl("drain", node, *words, f"--timeout={self.within:.0f}s", timeout=self.within + 30)


def both_nodes_are_drained(world: World, record: Record) -> None:
    cluster, probe = world.cluster, world.probe
    assert world.spread() == (1, 1)

    with probe.during("drain of the other node"):
        probe.strike(*world.on(SECOND))
        world.drain(SECOND, f"llmservice.dev/service={NAME}")
        world.settled()
    assert world.spread() == (2, 0)
    cluster.kubectl("uncordon", SECOND)

    (old,) = operator_pods(cluster)
    with probe.during("drain of the operator's node"):
        world.drain(FIRST, f"app.kubernetes.io/name={OPERATOR}")
        probe.strike(*world.on(FIRST))
        world.drain(FIRST, f"llmservice.dev/service={NAME}")
        world.settled()
    assert world.spread() == (0, 2)
    (new,) = operator_pods(cluster)
    assert new["spec"]["nodeName"] == SECOND
    eventually("it leads", lambda: leader(cluster).startswith(new["metadata"]["name"]), 30)
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    cluster.kubectl("uncordon", FIRST)

    record(engine=world.engine, **{story: probe.figures(story) for story in probe.stories})
    for story in probe.stories:
        probe.assert_nothing_lost(story)


@contextmanager
def operator_back_on_first(cluster: Cluster) -> Iterator[None]:
    """The operator is on the first node before and after. It leaves the other one while that is there to end it."""
    try:
        yield
    finally:
        cluster.kubectl("cordon", SECOND)
        for pod in operator_pods(cluster):
            cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", OPERATOR_NAMESPACE)
        set_replicas(cluster, 1)


CASES = {
    "stand-in": (
        stand_in(NAME, {"start_seconds": 2, "tokens_per_second": 20}, **TWICE),
        120.0,
        ("--rate", "8", "--output-tokens", "10,20,80"),
    ),
    "vLLM": (
        one_of_several(NAME, drain={"timeoutSeconds": 60}, **TWICE),
        600.0,
        ("--rate", "0.5", "--output-tokens", "64,256"),
    ),
}


@pytest.mark.parametrize("engine", ["stand-in", pytest.param("vLLM", marks=pytest.mark.full)])
def test_drains_lose_nothing(cluster: Cluster, engine: str, record: Record) -> None:
    service, within, load = CASES[engine]
    namespace = f"e2e-drain-{engine.lower()}"
    with (
        added_node(cluster, engine=engine == "vLLM"),
        operator_back_on_first(cluster),
        under_load(cluster, namespace, service, within, *load) as probe,
    ):
        both_nodes_are_drained(World(cluster, namespace, engine, probe, within), record)
