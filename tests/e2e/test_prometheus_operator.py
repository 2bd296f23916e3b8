"""The chart's monitors and rules as the Prometheus operator itself takes them: docs/monitoring.md, word for word."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from localcluster import install, prometheus
from localcluster.install import RELEASE, local_target
from localcluster.progress import Progress
from monitoring.alerts import GROUPS
from monitoring.rules import Alert
from tests.e2e.conftest import own_namespace
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.documents import DOCS, blocks_of
from tests.support.operator import OPERATOR_NAMESPACE
from tests.support.prometheus import Prometheus
from tests.support.services import MILLION_TOKENS, llmservice, stand_in

pytestmark = pytest.mark.full

NAMESPACE, HEALTHY, TOO_LARGE = "e2e-prometheus-operator", "chat", "too-large"
PAGE = DOCS / "monitoring.md"
BOTH = {"http", "state"}
WITHIN = 180.0
"""Seconds: the operator and the kubelet hand a configuration on within a minute each, then come two scrapes."""


@pytest.fixture(scope="module")
def watched(cluster: Cluster) -> Iterator[Prometheus]:
    """Both kinds of services, and the release as the page's command upgrades it."""
    target = local_target(cluster.paths, os.environ)
    prometheus.install(cluster.paths, os.environ, Progress())
    (upgrade,) = [block for block in blocks_of(PAGE, "sh") if f"release={prometheus.RELEASE}" in block]
    with own_namespace(cluster, NAMESPACE):
        try:
            cluster.run("bash", "-euc", upgrade)
            too_large = llmservice(TOO_LARGE, model={"architecture": MILLION_TOKENS}, batching={"maxModelLen": None})
            cluster.apply_all([stand_in(HEALTHY), too_large], NAMESPACE)
            cluster.wait_condition(NAMESPACE, HEALTHY, "Ready", "True")
            (pod,) = cluster.list("pods", prometheus.NAMESPACE, "app.kubernetes.io/name=prometheus")
            yield Prometheus(f"http://{pod['status']['podIP']}:9090")
        finally:
            install.install(target, Progress())
            prometheus.remove(cluster.paths, os.environ, Progress())


def test_each_kind_of_target_is_scraped(watched: Prometheus) -> None:
    jobs = {f"{RELEASE}-metrics", f"{OPERATOR_NAMESPACE}/{RELEASE}-services"}
    (query,) = (block for block in blocks_of(PAGE, "promql") if "up{job" in block)

    def answering() -> set[str]:
        return {found.labels["job"] for found in watched.query(query) if found.values[0][1] > 0}

    eventually(f"{query} has {jobs}", lambda: answering() == jobs, WITHIN)
    of_pods = f'up{{namespace="{NAMESPACE}",service="{HEALTHY}"}} == 1'
    eventually(
        "both ports of a model pod", lambda: {one.labels["endpoint"] for one in watched.query(of_pods)} == BOTH, WITHIN
    )


def test_every_alert_is_evaluated(watched: Prometheus) -> None:
    expected = {rule.name for group in GROUPS for rule in group.rules if isinstance(rule, Alert)}

    def healthy() -> bool:
        found = {rule["name"] for rule in watched.rules() if rule["type"] == "alerting" and rule["health"] == "ok"}
        return found >= expected

    eventually("all alerts are evaluated", healthy, WITHIN)
    assert [rule["lastError"] for rule in watched.rules() if rule["health"] == "err"] == []


def test_a_broken_service_is_pending_and_a_healthy_one_is_not(watched: Prometheus) -> None:
    def of(service: str) -> dict[str, JSON]:
        own = [one for one in watched.alerts() if one["labels"].get("namespace") == NAMESPACE]
        return {one["labels"]["alertname"]: one for one in own if one["labels"]["service"] == service}

    names = {"LLMServiceNotReady", "LLMServiceStalled"}
    eventually(f"{names} of {TOO_LARGE}", lambda: names <= of(TOO_LARGE).keys(), WITHIN)
    assert of(HEALTHY) == {}
    url = of(TOO_LARGE)["LLMServiceStalled"]["annotations"]["runbook_url"]
    assert url == "https://docs.example.com/latest/runbooks/LLMServiceStalled/"
