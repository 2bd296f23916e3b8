"""The operator may be killed, stopped or doubled at any moment: the work goes on and nothing is written twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import own_namespace
from tests.support.audit import writes_since
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.operator import host_process, leader, operator_pods, scale_operator
from tests.support.patience import KUBECTL_TIMEOUT, at_latest
from tests.support.services import idle
from tests.support.watching import settled

NAMESPACE = "e2e-operator"
TAKEOVER_WITHIN = 15.0
CHILDREN = ("deployments", "services", "poddisruptionbudgets", "controllerrevisions", "persistentvolumeclaims")


@pytest.fixture(scope="module")
def busy(cluster: Cluster) -> Iterator[str]:
    with own_namespace(cluster, NAMESPACE):
        yield NAMESPACE


def wanted_revision(cluster: Cluster, namespace: str, name: str) -> str | None:
    deployment: JSON = cluster.get("deployments", namespace, name) or {}
    labels = deployment.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
    revision: str | None = labels.get("llmservice.dev/revision")
    return revision


def test_an_edit_made_while_the_operator_is_dead_is_carried_out(cluster: Cluster, busy: str) -> None:
    cluster.apply(idle("edited"), busy)
    before = eventually("the Deployment", lambda: wanted_revision(cluster, busy, "edited"), 30)
    (pod,) = operator_pods(cluster)
    os.kill(host_process(cluster, pod), signal.SIGKILL)
    cluster.patch("llmservices", busy, "edited", {"spec": {"batching": {"maxNumSeqs": 9}}})
    eventually("a new revision", lambda: wanted_revision(cluster, busy, "edited") not in (None, before), 60)
    cluster.wait_condition(busy, "edited", "Accepted", "True", timeout=30)


def test_a_restart_with_nothing_to_do_writes_nothing(cluster: Cluster, busy: str) -> None:
    for number in range(5):
        cluster.apply(idle(f"quiet-{number}"), busy)
    for number in range(5):
        cluster.wait_condition(busy, f"quiet-{number}", "Accepted", "True", timeout=30)
    eventually("five Services", lambda: len(cluster.list("services", busy)) >= 5, 10)
    settled(cluster, busy)
    with scale_operator(cluster, 0):
        moment = time.time()
    # An edit that the new process serves proves that it has read everything and is at work.
    cluster.patch("llmservices", busy, "edited", {"spec": {"batching": {"maxNumSeqs": 10}}})
    changed = cluster.must_get("llmservices", busy, "edited")["metadata"]["generation"]
    eventually(
        "the edit served",
        lambda: cluster.must_get("llmservices", busy, "edited")["status"]["observedGeneration"] == changed,
        30,
    )
    written = [entry for entry in writes_since(cluster, moment) if entry.namespace == busy and "quiet" in entry.name]
    assert written == []


def test_deleting_removes_everything_while_the_operator_is_down(cluster: Cluster, namespace: str) -> None:
    cached = {"uri": "hf://example/model", "cache": {"size": "1Gi"}}
    cluster.apply(idle("leaving", fitPolicy="Ignore", model=cached), namespace)
    eventually("the claim", lambda: cluster.get("persistentvolumeclaims", namespace, "leaving-cache"), 15)
    with scale_operator(cluster, 0):
        cluster.kubectl("delete", "llms", "leaving", "-n", namespace, KUBECTL_TIMEOUT)
        eventually("no child", lambda: not any(cluster.list(plural, namespace) for plural in CHILDREN), 30)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_other_replica_takes_over(cluster: Cluster, busy: str, blow: signal.Signals) -> None:
    with scale_operator(cluster, 2):
        name = eventually("a leader", lambda: current_leader(cluster), 30)
        pod = next(pod for pod in operator_pods(cluster) if pod["metadata"]["name"] == name)
        process = host_process(cluster, pod)
        os.kill(process, blow)
        struck = time.monotonic()
        try:
            service = f"after-{blow.name.lower()}"
            cluster.apply(idle(service), busy)
            eventually("its Deployment", lambda: cluster.get("deployments", busy, service), TAKEOVER_WITHIN)
            assert time.monotonic() - struck <= at_latest(TAKEOVER_WITHIN)
            if blow is signal.SIGSTOP:
                assert current_leader(cluster) != name
        finally:
            if blow is signal.SIGSTOP:
                os.kill(process, signal.SIGCONT)


def current_leader(cluster: Cluster) -> str | None:
    holder = leader(cluster)
    return next((pod["metadata"]["name"] for pod in operator_pods(cluster) if pod["metadata"]["name"] in holder), None)
