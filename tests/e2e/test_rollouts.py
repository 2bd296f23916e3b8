"""Rollouts that look at the GPUs, on the real node with GPUs that are not there, and with the stand-in for vLLM.

Every story has a resource of its own, so that all go on at once: what one holds, none of the others lacks.
test_no_request_lost.py has rollouts with vLLM itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.network import NODE
from tests.e2e.conftest import own_namespace
from tests.support import rolling
from tests.support.accelerators import advertise, advertised
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.rolling import restarts
from tests.support.services import stand_in

pytestmark = pytest.mark.parallel

NAMESPACE = "e2e-rollouts"
DOMAIN = "rollouts.test"
# How many of its own accelerators the node has for each story.
ROOM = {"surge": 2, "replace": 2, "gap": 1, "waits": 1, "fallback": 2, "broken": 3, "broken-in-turn": 2, "sliced": 4}
SHARES = {f"{DOMAIN}/sliced.replicas": "4", f"{DOMAIN}/sliced.sharing-strategy": "time-slicing"}
"""Node labels: the four devices of one story are shares of one card."""
CHANGE = {"spec": {"batching": {"maxNumSeqs": 7}}}
BROKEN = {"spec": {"runtime": {"env": [{"name": "STAND_IN", "value": '{"fails": "kv-cache-too-small"}'}]}}}


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[None]:
    """The local node with accelerators of each story's own."""
    cluster.kubectl("label", "node", NODE, *(f"{key}={value}" for key, value in SHARES.items()), "--overwrite")
    try:
        with advertised(cluster, {f"{DOMAIN}/{name}": count for name, count in ROOM.items()}):
            yield
    finally:
        cluster.kubectl("label", "node", NODE, *(f"{key}-" for key in SHARES))


@pytest.fixture(scope="module")
def there(cluster: Cluster, node: None) -> Iterator[str]:
    """All services of these tests, rolled out."""
    services = [
        on_gpus("surge"),
        on_gpus("replace", scaling={"replicas": 2}),
        on_gpus("gap"),
        on_gpus("sliced", scaling={"replicas": 2}),
        on_gpus("waits", rollout={"strategy": "Surge"}),
        on_gpus("fallback"),
        on_gpus("broken", scaling={"replicas": 2}, rollout={"autoRollback": True}),
        on_gpus("broken-in-turn", scaling={"replicas": 2}),
        stand_in("pinned", model={"servedModelNames": ["then"]}),
        stand_in("restless", lora={}, scaling={"replicas": 1}),
    ]
    with own_namespace(cluster, NAMESPACE):
        cluster.kubectl("delete", "resourcequota", "team", "-n", NAMESPACE)
        cluster.apply_all(services, NAMESPACE)
        for service in services:
            cluster.wait_condition(NAMESPACE, service["metadata"]["name"], "Ready", "True", timeout=180)
        yield NAMESPACE


def on_gpus(name: str, **spec: Any) -> JSON:
    accelerator = {"type": "nvidia", "resourceName": f"{DOMAIN}/{name}"}
    return stand_in(name, accelerator=accelerator, drain={"timeoutSeconds": 0}, **spec)


def rollout(cluster: Cluster, name: str) -> JSON:
    return rolling.rollout(cluster, NAMESPACE, name)


def pods(cluster: Cluster, name: str) -> dict[str, JSON]:
    return rolling.pods(cluster, NAMESPACE, name)


def fewest_ready(cluster: Cluster, name: str) -> int:
    return rolling.fewest_ready(cluster, NAMESPACE, name, 90)


def change(cluster: Cluster, name: str, what: JSON = CHANGE) -> None:
    cluster.patch("llmservices", NAMESPACE, name, what)


def events(cluster: Cluster, name: str, reason: str) -> list[JSON]:
    return rolling.events(cluster, NAMESPACE, name, reason)


def test_with_a_free_gpu_the_new_pod_comes_first(cluster: Cluster, there: str) -> None:
    change(cluster, "surge")
    assert fewest_ready(cluster, "surge") == 1
    assert rollout(cluster, "surge")["strategy"] == "Surge"


def test_without_one_replica_after_another_is_replaced(cluster: Cluster, there: str) -> None:
    change(cluster, "replace")
    assert fewest_ready(cluster, "replace") == 1
    assert rollout(cluster, "replace")["strategy"] == "Replace"


def test_free_shares_of_one_card_are_no_room_for_one_more(cluster: Cluster, there: str) -> None:
    change(cluster, "sliced")
    assert fewest_ready(cluster, "sliced") == 1
    assert rollout(cluster, "sliced")["strategy"] == "Replace"


def test_a_gap_is_reported_before_there_is_one(cluster: Cluster, there: str) -> None:
    change(cluster, "gap")
    reported = eventually("a word on the gap", lambda: events(cluster, "gap", "GapExpected"), 15)
    assert "nothing answers" in reported[0]["message"]
    assert fewest_ready(cluster, "gap") == 0
    deployment = cluster.must_get("deployments", NAMESPACE, "gap")
    (new,) = pods(cluster, "gap").values()
    assert reported[0]["firstTimestamp"] <= new["metadata"]["creationTimestamp"]
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_surge_waits_for_a_gpu_and_goes_on_when_there_is_one(cluster: Cluster, there: str) -> None:
    before = set(pods(cluster, "waits"))
    change(cluster, "waits")
    waiting = cluster.wait_condition(NAMESPACE, "waits", "Ready", "False", reason="WaitingForGPU", timeout=30)
    assert f"{DOMAIN}/waits" in waiting["message"]
    cluster.must_have(NAMESPACE, "waits", Available="True")
    assert before < set(pods(cluster, "waits"))
    advertise(cluster, {f"{DOMAIN}/waits": 2})
    assert fewest_ready(cluster, "waits") == 1


@pytest.mark.full
def test_a_new_pod_that_finds_no_gpu_falls_back_and_says_so(cluster: Cluster, there: str) -> None:
    """The node has room for one more, but a quota does not: nothing tells of that before a pod is refused."""
    quota = {"hard": {f"requests.{DOMAIN}/fallback": "1"}}
    cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": quota}, NAMESPACE)
    eventually("the quota counts", lambda: counted(cluster, "one"), 30)
    change(cluster, "fallback")
    reported = eventually("a word on it", lambda: events(cluster, "fallback", "SurgeFellBack"), 60)
    assert "found no room for 10 s" in reported[0]["message"]
    fewest_ready(cluster, "fallback")
    assert rollout(cluster, "fallback")["strategy"] == "Replace"
    cluster.kubectl("delete", "resourcequota", "one", "-n", NAMESPACE)


def counted(cluster: Cluster, name: str) -> bool:
    found = cluster.get("resourcequotas", NAMESPACE, name) or {}
    return bool(found.get("status", {}).get("used"))


def test_a_broken_revision_stops_after_one_replica(cluster: Cluster, there: str) -> None:
    before = set(pods(cluster, "broken-in-turn"))
    change(cluster, "broken-in-turn", BROKEN)
    stalled = cluster.wait_condition(NAMESPACE, "broken-in-turn", "Stalled", "True", timeout=60)
    assert stalled["reason"] == "KVCacheTooSmall"
    left = pods(cluster, "broken-in-turn")
    assert len(before & set(left)) == 1
    cluster.must_have(NAMESPACE, "broken-in-turn", Available="True")
    reported = rollout(cluster, "broken-in-turn")
    assert (reported["strategy"], reported["failedRevision"]) == ("Replace", reported["revision"])


def test_a_broken_revision_is_gone_back_from(cluster: Cluster, there: str) -> None:
    before, good = set(pods(cluster, "broken")), rollout(cluster, "broken")["revision"]
    change(cluster, "broken", BROKEN)
    cluster.wait_condition(NAMESPACE, "broken", "Ready", "False", reason="RolledBack", timeout=60)
    eventually("the old pods alone", lambda: set(pods(cluster, "broken")) == before, 30)
    reported = rollout(cluster, "broken")
    assert (reported["revision"], reported["stableRevision"]) == (good, good)
    assert "KVCacheTooSmall" in reported["reason"]
    # An autoscaler's step does not try what failed again; a correction does.
    cluster.kubectl("scale", "llms/broken", "--replicas=1", "-n", NAMESPACE)
    cluster.wait_condition(NAMESPACE, "broken", "Ready", "False", reason="RolledBack", timeout=30)
    eventually("one pod", lambda: len(pods(cluster, "broken")) == 1 and set(pods(cluster, "broken")) < before, 30)
    change(cluster, "broken", {"spec": {"runtime": {"env": None}}})
    cluster.wait_condition(NAMESPACE, "broken", "Ready", "True", timeout=60)
    assert set(pods(cluster, "broken")) < before
    assert "failedRevision" not in rollout(cluster, "broken")


def test_a_pinned_revision_runs_and_an_unknown_one_changes_nothing(cluster: Cluster, there: str) -> None:
    then = rollout(cluster, "pinned")["stableRevision"]
    change(cluster, "pinned", {"spec": {"model": {"servedModelNames": ["now"]}}})
    cluster.wait_condition(NAMESPACE, "pinned", "Ready", "True", timeout=60)
    now = set(pods(cluster, "pinned"))
    change(cluster, "pinned", {"spec": {"rollout": {"pinnedRevision": "0123456789"}}})
    refused = cluster.wait_condition(NAMESPACE, "pinned", "Accepted", "False", reason="RevisionNotFound", timeout=20)
    assert then in refused["message"]
    assert set(pods(cluster, "pinned")) == now
    cluster.run(sys.executable, "-m", "llmservice_cli", "rollback", "pinned", "--to", then, "-n", NAMESPACE)
    cluster.wait_condition(NAMESPACE, "pinned", "Ready", "True", timeout=60)
    status = cluster.status(NAMESPACE, "pinned")
    assert (status["rollout"]["revision"], status["endpoint"]["modelNames"]) == (then, ["then"])


def test_what_needs_no_restart_restarts_nothing(cluster: Cluster, there: str) -> None:
    """Labels that others put on the Service, adapters, replicas; and drain settings wait for the next rollout."""
    before = pods(cluster, "restless")
    cluster.patch("services", NAMESPACE, "restless", {"metadata": {"labels": {"team": "b"}}})
    adapters = [{"name": "formal", "uri": "file:///adapters/formal"}]
    change(cluster, "restless", {"spec": {"adapters": adapters, "drain": {"timeoutSeconds": 33}}})
    change(cluster, "restless", {"spec": {"scaling": {"replicas": 2}}})
    eventually("two pods", lambda: len(pods(cluster, "restless")) == 2, 30)
    cluster.wait_condition(NAMESPACE, "restless", "Ready", "True", timeout=60)
    assert set(before) < set(pods(cluster, "restless"))
    assert rollout(cluster, "restless")["updatePending"] is True
    change(cluster, "restless", {"spec": {"scaling": {"replicas": 1}}})
    cluster.wait_condition(NAMESPACE, "restless", "Ready", "True", timeout=60)
    (left,) = pods(cluster, "restless").values()
    assert restarts(left) == 0
    assert cluster.must_get("services", NAMESPACE, "restless")["metadata"]["labels"]["team"] == "b"
