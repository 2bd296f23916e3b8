"""Releases that run: over their own namespaces, side by side, upgraded, rolled back, uninstalled and succeeded."""

from __future__ import annotations

import time

import pytest
import yaml

from tests.e2e._chart import CHART, EVERYTHING, IMAGES, OTHER, TEAM, of_kind, render
from tests.support.audit import requests_since
from tests.support.cluster import Cluster, eventually
from tests.support.patience import PATIENCE
from tests.support.services import idle


def release(cluster: Cluster, name: str, namespace: str, watched: str, *more: str) -> None:
    """Install or upgrade, and wait until its pods are ready."""
    arguments = ["-n", namespace, "--set", IMAGES, "--set", f"watch.namespaces={{{watched}}}", *more]
    cluster.helm("upgrade", "--install", name, str(CHART), *arguments, "--wait", "--timeout", "120s")


def has_children(cluster: Cluster, namespace: str, name: str, port: int = 80) -> bool:
    service = cluster.get("services", namespace, name)
    return bool(cluster.get("deployments", namespace, name)) and _port(service) == port


def _port(service: dict[str, object] | None) -> int | None:
    if service is None:
        return None
    port: int = service["spec"]["ports"][0]["port"]  # type: ignore[index]
    return port


def test_the_life_of_a_release_over_one_namespace(cluster: Cluster, two_namespaces: None) -> None:
    release(cluster, "first", TEAM, TEAM, "--set", "replicas=2")
    cluster.apply(idle("served"), TEAM)
    cluster.apply(idle("ignored"), OTHER)
    eventually("children of served", lambda: has_children(cluster, TEAM, "served"), 30)
    assert cluster.get("deployments", OTHER, "ignored") is None

    pods_before = _pods(cluster, TEAM)
    release(cluster, "first", TEAM, TEAM, "--set", "logging.level=debug")
    assert not _pods(cluster, TEAM) & pods_before, "a changed setting must reach the pods"
    cluster.helm("rollback", "first", "1", "-n", TEAM, "--wait", "--timeout", "120s")
    assert cluster.must_get("deployments", TEAM, "first-llmservice-operator")["spec"]["replicas"] == 2
    cluster.patch("llmservices", TEAM, "served", {"spec": {"endpoint": {"port": 8080}}})
    eventually("the edit after the rollback", lambda: has_children(cluster, TEAM, "served", 8080), 60)

    cluster.helm("uninstall", "first", "-n", TEAM, "--wait", "--timeout", "120s")
    assert has_children(cluster, TEAM, "served", 8080), "models serve on without an operator"

    release(cluster, "second", OTHER, TEAM)
    cluster.patch("llmservices", TEAM, "served", {"spec": {"endpoint": {"port": 8081}}})
    eventually("the edit under another release", lambda: has_children(cluster, TEAM, "served", 8081), 60)


def _pods(cluster: Cluster, namespace: str) -> set[str]:
    pods = cluster.list("pods", namespace, "app.kubernetes.io/name=llmservice-operator")
    return {pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}


def test_two_releases_each_serve_their_own_namespace(cluster: Cluster, two_namespaces: None) -> None:
    started = time.time()
    for namespace in (TEAM, OTHER):
        release(cluster, "same-name", namespace, namespace)
        cluster.apply(idle("served"), namespace)
    for namespace in (TEAM, OTHER):
        eventually(f"children in {namespace}", lambda where=namespace: has_children(cluster, where, "served"), 30)  # type: ignore[misc]
    for namespace in (TEAM, OTHER):
        user = f"system:serviceaccount:{namespace}:same-name-llmservice-operator"
        asked = list(requests_since(cluster, started, user))
        assert {request.namespace for request in asked if request.resource} == {namespace}
        # The CRD may be younger than the operator's rights in an aggregated role; nothing else may be refused.
        assert [request for request in asked if request.code == 403] == []


@pytest.mark.parallel
def test_everything_that_can_be_rendered_is_valid_to_the_api_server(cluster: Cluster, namespace: str) -> None:
    values = {**EVERYTHING, "watch": {"namespaces": [namespace]}}
    objects = render(values, "--namespace", namespace)
    foreign = {"ServiceMonitor", "PodMonitor", "CustomResourceDefinition"}
    known = [each for each in objects if each["kind"] not in foreign]
    assert of_kind(known, "NetworkPolicy")
    cluster.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(known), timeout=PATIENCE
    )
