"""Rollouts, rollbacks and an operator's upgrade with vLLM itself; what is short on the node is processors, not GPUs.

One service goes through all stories in their order, with requests on it all the time: a start takes most of a minute.
test_rollouts.py and test_operator_upgrade.py have these stories, and all others, with the stand-in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from llmservice_cli.load.answer import Loss
from llmservice_operator.kube.nodes import KEPT_SECONDS
from llmservice_operator.planner.quantity import amount
from llmservice_operator.planner.room import requests_of

from localcluster.configs import PAUSE
from localcluster.network import NODE
from tests.e2e.disturbances import under_load
from tests.support import next_version, rolling
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.host import engine_of, pause
from tests.support.measured import Record
from tests.support.nodes import spread
from tests.support.rolling import restarts
from tests.support.services import merge, one_of_several
from tests.support.simulated_node import TOLERATION, give_up, simulated_node
from tests.support.told import before, told_fully
from tests.support.traffic import Traffic
from tests.support.watching import watching

pytestmark = pytest.mark.full
NAMESPACE = "e2e-rollouts-vllm"
NAME = "tried"
LOST = "e2e-rollouts-lost"
# More than the model was made for: nothing that is read before vLLM's own check knows of it.
TOO_LONG = {"maxModelLen": 1_000_000}
GOOD = {"maxModelLen": 512}
STARTED_WITHIN = 300.0


@dataclass(frozen=True)
class World:
    """One replica of vLLM, and requests on it."""

    cluster: Cluster
    probe: Traffic
    first: str
    """The revision that it was made with."""

    def pods(self) -> dict[str, JSON]:
        return rolling.pods(self.cluster, NAMESPACE, NAME)

    def rollout(self) -> JSON:
        return rolling.rollout(self.cluster, NAMESPACE, NAME)

    def change(self, **spec: object) -> None:
        self.cluster.patch("llmservices", NAMESPACE, NAME, {"spec": spec})

    def await_ready(self) -> None:
        self.cluster.wait_condition(NAMESPACE, NAME, "Ready", "True", timeout=STARTED_WITHIN)

    def command(self, *words: str) -> str:
        return self.cluster.run(sys.executable, "-m", "llmservice_cli", *words, "-n", NAMESPACE)

    def strike(self) -> None:
        """What follows meets requests."""
        self.probe.strike(*self.pods().values())

    def only_the_gap_was_felt(self, story: str) -> None:
        """Nobody was there to connect to; what had been accepted was answered."""
        assert self.probe.in_flight(self.probe.blows[story]) >= 1, f"{story} met nobody"
        assert set(self.probe.stories[story].ended.by_kind) == {Loss.NOT_CONNECTED}, self.probe.of(story)


@pytest.fixture(scope="module")
def world(cluster: Cluster) -> Iterator[World]:
    placed = merge(spread(NAME), {"spec": {"tolerations": [TOLERATION]}})
    # The plan would keep back what is to fail.
    service = one_of_several(NAME, fitPolicy="Ignore", drain={"timeoutSeconds": 60}, podTemplate=placed)
    load = ("--rate", "1", "--output-tokens", "16,64")
    with under_load(cluster, NAMESPACE, service, STARTED_WITHIN, *load) as probe:
        yield World(cluster, probe, rolling.rollout(cluster, NAMESPACE, NAME)["stableRevision"])


def test_a_revision_that_vllm_refuses_stops_and_is_gone_back_from(world: World, record: Record) -> None:
    cluster, good, served = world.cluster, world.rollout()["revision"], set(world.pods())
    with world.probe.during("a broken revision"):
        since = before(cluster)
        world.strike()
        world.change(batching=TOO_LONG)
        told_fully(cluster, NAMESPACE, NAME, "MaxModelLenTooLarge", since, timeout=STARTED_WITHIN)
        stalled = cluster.wait_condition(NAMESPACE, NAME, "Stalled", "True", reason="MaxModelLenTooLarge", timeout=30)
        assert "1000000" in stalled["message"]
        told = world.rollout()
        assert (told["stableRevision"], told["failedRevision"]) == (good, told["revision"])
        assert served < set(world.pods()), "it is there beside the old one, and goes on failing"
        is_available(cluster)
        world.change(rollout={"autoRollback": True})
        cluster.wait_condition(NAMESPACE, NAME, "Ready", "False", reason="RolledBack", timeout=60)
        eventually("the old pod alone", lambda: set(world.pods()) == served, 60)
        is_available(cluster)
    back, failed = world.rollout(), told["failedRevision"]
    assert (back["revision"], back["stableRevision"], back["failedRevision"]) == (good, good, failed)
    assert "MaxModelLenTooLarge" in back["reason"]
    assert len(rolling.events(cluster, NAMESPACE, NAME, "RolledBack")) == 1
    (pod,) = world.pods().values()
    assert restarts(pod) == 0
    record(**world.probe.figures("a broken revision"))
    world.probe.assert_nothing_lost("a broken revision")


def is_available(cluster: Cluster) -> None:
    available = cluster.condition(NAMESPACE, NAME, "Available")
    assert available is not None
    assert available["status"] == "True", available


def test_a_gap_is_told_before_there_is_one(world: World, record: Record) -> None:
    cluster, served = world.cluster, set(world.pods())
    with (
        world.probe.during("a replacement without room"),
        processors_taken(world),
        watching(cluster, "llmservices", NAMESPACE) as services,
        watching(cluster, "deployments", NAMESPACE) as deployments,
    ):
        world.strike()
        world.change(batching={**GOOD, "maxNumSeqs": 7})
        told = services.first(lambda service: "nothing answers" in reason_of(service), 30)
        begun = deployments.first(lambda deployment: strategy_of(deployment)["maxSurge"] == 0, 30)
        world.await_ready()
    assert told is not None
    assert "short of cpu" in reason_of(told.obj)
    assert begun is not None
    # Versions count all changes of the cluster in their order.
    assert version(told.obj) < version(begun.obj), "the Deployment was changed before it was told"
    assert strategy_of(begun.obj)["maxUnavailable"] == 1
    (event,) = rolling.events(cluster, NAMESPACE, NAME, "GapExpected")
    assert event["message"] == reason_of(told.obj)
    assert world.rollout()["strategy"] == "Replace"
    assert not served & set(world.pods())
    record(**world.probe.figures("a replacement without room"))
    world.only_the_gap_was_felt("a replacement without room")


def test_two_replicas_are_replaced_one_after_the_other_where_there_is_no_room(world: World, record: Record) -> None:
    cluster, story = world.cluster, "one after the other"
    world.change(scaling={"replicas": 2})
    world.await_ready()
    served = set(world.pods())
    assert len(served) == 2
    with world.probe.during(story), processors_taken(world):
        world.strike()
        world.change(batching={**GOOD, "maxNumSeqs": 8})
        fewest = rolling.fewest_ready(cluster, NAMESPACE, NAME, 2 * STARTED_WITHIN)
    record(fewestReady=fewest, **world.probe.figures(story))
    assert fewest == 1
    assert world.rollout()["strategy"] == "Replace"
    assert not served & set(world.pods())
    world.probe.assert_nothing_lost(story)
    world.change(scaling={"replicas": 1})
    eventually("one pod", lambda: len(every_pod(world)) == 1, 60)
    world.await_ready()


def test_surge_waits_for_room_and_goes_on_when_there_is_some(world: World, record: Record) -> None:
    cluster, story = world.cluster, "a surge that waits"
    served = set(world.pods())
    with world.probe.during(story):
        with processors_taken(world):
            world.strike()
            world.change(batching={**GOOD, "maxNumSeqs": 9}, rollout={"strategy": "Surge"})
            waits = cluster.wait_condition(
                NAMESPACE, NAME, "Ready", "False", reason="InsufficientResources", timeout=30
            )
            assert "cpu" in waits["message"]
            is_available(cluster)
            assert served < set(world.pods()), "what serves is not given up"
        assert rolling.fewest_ready(cluster, NAMESPACE, NAME, STARTED_WITHIN) == 1
    record(**world.probe.figures(story))
    assert not served & set(world.pods())
    world.probe.assert_nothing_lost(story)
    world.change(rollout={"strategy": None})
    world.await_ready()


def reason_of(service: JSON) -> str:
    return str(service.get("status", {}).get("rollout", {}).get("reason", ""))


def strategy_of(deployment: JSON) -> JSON:
    strategy: JSON = deployment["spec"]["strategy"]["rollingUpdate"]
    return strategy


def version(obj: JSON) -> int:
    return int(obj["metadata"]["resourceVersion"])


@contextmanager
def processors_taken(world: World) -> Iterator[None]:
    """Half of what one replica asks for is left free on the node, and the operator knows of no other time."""
    cluster = world.cluster
    eventually("nobody on the way out", lambda: set(every_pod(world)) == set(world.pods()), 90)
    every = cluster.api.get("/api/v1/pods", params={"fieldSelector": f"spec.nodeName={NODE}"}).json()["items"]
    node = json.loads(cluster.kubectl("get", "node", NODE, "-o", "json"))
    served = next(iter(world.pods().values()))
    taken = sum(asked_for(pod) for pod in every if pod["status"]["phase"] in ("Pending", "Running"))
    rest = float(amount(node["status"]["allocatable"]["cpu"])) - taken - asked_for(served) / 2
    assert rest > 0, "there is no room for one more replica as it is"
    cluster.apply(filler(f"{rest * 1000:.0f}m"), NAMESPACE)
    cluster.kubectl("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/filler", "--timeout=60s")
    pause(KEPT_SECONDS)  # it looks at the nodes once in so many
    try:
        yield
    finally:
        cluster.kubectl("delete", "pod", "filler", "-n", NAMESPACE)


def asked_for(pod: JSON) -> float:
    return float(requests_of(pod["spec"]).get("cpu", 0))


def filler(cpu: str) -> JSON:
    """A pod that does nothing, of so many processors."""
    container: dict[str, Any] = {
        "name": "pause",
        "image": PAUSE,
        "resources": {"requests": {"cpu": cpu, "memory": "16Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    secure = {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"terminationGracePeriodSeconds": 0, "securityContext": secure, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "filler"}, "spec": spec}


@pytest.fixture
def next_one(cluster: Cluster, world: World) -> Iterator[None]:
    """The operator's next version leads."""
    with world.probe.during("both upgrades"), next_version.leading(cluster):
        yield


def test_the_next_version_of_the_operator_restarts_nothing_until_it_is_asked_to(
    world: World, next_one: None, record: Record
) -> None:
    cluster = world.cluster
    (served,) = world.pods()
    with world.probe.during("an operator upgrade"):
        eventually("an update pending", partial(rolling.is_pending, cluster, NAMESPACE, NAME), 60)
        world.strike()
        world.change(drain={"timeoutSeconds": 61})
        with simulated_node(cluster, LOST) as node:
            world.change(scaling={"replicas": 2})
            eventually("a pod on it", lambda: is_on(world, LOST), 30)
            node.lose()
            give_up(cluster, LOST)
            eventually("vLLM in its place", lambda: len(world.pods()) == 2 == len(loaded(world)), 60)
        there = world.pods()
        assert served in there
        assert restarts(there[served]) == 0
        assert not any(map(is_of_next, there.values())), "as recorded, the added replica too"
        assert world.rollout()["updatePending"] is True
        world.change(scaling={"replicas": 1})
        eventually("the first pod alone", lambda: set(every_pod(world)) == {served}, 60)
        world.await_ready()
    with world.probe.during("the update that was asked for"):
        world.strike()
        world.command("update", NAME)
        eventually("the new pod alone, and ready", lambda: is_updated(world), STARTED_WITHIN)
        world.await_ready()
        eventually("nothing pending", partial(rolling.is_settled, cluster, NAMESPACE, NAME), 30)
    stories = ("an operator upgrade", "the update that was asked for")
    record(**{story: world.probe.figures(story) for story in stories})
    for story in stories:
        world.probe.assert_nothing_lost(story)


def every_pod(world: World) -> list[str]:
    """Those on their way out too: of vLLM there are never more than two at once."""
    found = world.cluster.list("pods", NAMESPACE, f"llmservice.dev/service={NAME}")
    return [pod["metadata"]["uid"] for pod in found]


def is_on(world: World, node: str) -> bool:
    return any(pod["spec"].get("nodeName") == node for pod in world.pods().values())


def loaded(world: World) -> list[str]:
    """Pods with a vLLM in them, ready or not."""
    return [uid for uid, pod in world.pods().items() if engine_of(pod) is not None]


def is_of_next(pod: JSON) -> bool:
    return bool(pod["spec"].get("hostname") == next_version.HOSTNAME)


def is_updated(world: World) -> bool:
    there = world.pods().values()
    return len(there) == 1 and all(is_of_next(pod) and is_ready(pod) for pod in there)


def test_a_pinned_revision_comes_back_in_the_old_ones_place_where_a_quota_is_full(world: World, record: Record) -> None:
    """The node has room, so its pod is to come first; the quota tells of itself only when that pod is refused."""
    cluster, served = world.cluster, set(world.pods())
    assert world.rollout()["revision"] != world.first
    with world.probe.during("a rollback under a quota"), full_quota(cluster):
        world.strike()
        world.command("rollback", NAME, "--to", world.first)
        told = eventually("a word on it", lambda: rolling.events(cluster, NAMESPACE, NAME, "SurgeFellBack"), 60)
        world.await_ready()
    assert "found no room for 10 s" in told[0]["message"]
    assert "nothing answers" in told[0]["message"]
    rollout = world.rollout()
    assert (rollout["revision"], rollout["pinned"], rollout["strategy"]) == (world.first, True, "Replace")
    assert not served & set(world.pods())
    record(**world.probe.figures("a rollback under a quota"))
    world.only_the_gap_was_felt("a rollback under a quota")


@contextmanager
def full_quota(cluster: Cluster) -> Iterator[None]:
    """As many pods as there are, and no more."""
    there = str(len(cluster.list("pods", NAMESPACE)))
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}}
    quota["spec"] = {"hard": {"pods": there}}
    cluster.apply(quota, NAMESPACE)
    try:
        eventually("the quota counts", lambda: quota_used(cluster) == there, 30)
        yield
    finally:
        cluster.kubectl("delete", "resourcequota", "full", "-n", NAMESPACE)


def quota_used(cluster: Cluster) -> str | None:
    used: str | None = (
        cluster.must_get("resourcequotas", NAMESPACE, "full").get("status", {}).get("used", {}).get("pods")
    )
    return used
