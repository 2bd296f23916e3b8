"""The chart's monitors, rules and dashboards with a real Prometheus that scrapes the cluster."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest
import yaml

from localcluster.install import NAMESPACE as OPERATORS
from localcluster.install import RELEASE
from localcluster.paths import ClusterPaths
from monitoring.__main__ import thresholds
from monitoring.alerts import GROUPS
from monitoring.dashboards import DASHBOARDS
from monitoring.rules import Recording, filled, rule_file
from tests.e2e._chart import CHART, JSON, helm_offline, of_kind, only, render
from tests.e2e.conftest import own_namespace
from tests.support.cluster import Cluster, eventually
from tests.support.documents import PAGES, blocks_of
from tests.support.prometheus import Prometheus, running, scrape_configs, wait_for_samples
from tests.support.services import MILLION_TOKENS, llmservice, stand_in

pytestmark = pytest.mark.parallel

NAMESPACE, HEALTHY, TOO_LARGE, CRASHING = "test-monitoring", "chat", "too-large", "crashing"
INTERVAL = "1s"
WITHIN = 120.0
"""Seconds for a sample of every query, and for alerts: much longer than a machine takes that is not busy."""
THRESHOLDS = {
    "notReadyFor": "20s",
    "stalledFor": "5s",
    "sloMinRequests": 1,
    "restarts": 1,
    "ttftSeconds": 40,
    "itlSeconds": 10,
}
"""Short enough to wait for; and targets that a healthy service meets on a busy machine."""
VALUES: JSON = {
    "watch": {"namespaces": [NAMESPACE]},
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True, "thresholds": THRESHOLDS},
        "dashboards": {"enabled": True},
    },
}


def rendered() -> list[JSON]:
    """The chart's objects, as the release of the cluster would have them."""
    printed = helm_offline("template", RELEASE, str(CHART), "--namespace", OPERATORS, values=VALUES)
    return [document for document in yaml.safe_load_all(printed) if document]


@contextmanager
def load(url: str, model: str) -> Iterator[None]:
    """Two clients, each with one request after another. A pod that missed a probe has no endpoint for a moment."""
    stop, answered = threading.Event(), threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            while not stop.is_set():
                body = {"model": model, "prompt": "Hello", "max_tokens": 8}
                try:
                    if client.post("/v1/completions", json=body).status_code == 200:
                        answered.set()
                except httpx.TransportError:
                    stop.wait(0.5)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert answered.wait(WITHIN)
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@dataclass(frozen=True)
class Watched:
    """A fleet of a healthy and a broken service, and the Prometheus that scrapes it."""

    prometheus: Prometheus
    values: dict[str, str]
    """Of the dashboards' variables."""


@pytest.fixture(scope="module")
def watched(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    manifests = rendered()
    monitors = [*of_kind(manifests, "ServiceMonitor"), *of_kind(manifests, "PodMonitor")]
    scrapes = list(scrape_configs(monitors, str(ClusterPaths.of_this_clone().kubeconfig), INTERVAL))
    rules = only(manifests, "PrometheusRule")["spec"]
    folder = tmp_path_factory.mktemp("prometheus")
    with own_namespace(cluster, NAMESPACE), running(folder, scrapes, rules, INTERVAL) as prometheus:
        cluster.apply(stand_in(HEALTHY, fitPolicy="Warn"), NAMESPACE)
        too_large = llmservice(TOO_LARGE, model={"architecture": MILLION_TOKENS}, batching={"maxModelLen": None})
        cluster.apply_all([too_large, stand_in(CRASHING, {"exit_loading": 1})], NAMESPACE)
        cluster.wait_condition(NAMESPACE, HEALTHY, "Ready", "True")
        address = cluster.must_get("services", NAMESPACE, HEALTHY)["spec"]["clusterIP"]
        with load(f"http://{address}", HEALTHY):
            yield Watched(prometheus, {"namespace": NAMESPACE, "service": HEALTHY, "job": f"{RELEASE}-metrics"})


def test_the_chart_fills_the_rules_as_the_unit_tests_do() -> None:
    names = {"name": "llmservice-operator", "job": f"{RELEASE}-metrics", "namespace": OPERATORS, "healthPort": 8080}
    expected = filled(rule_file(GROUPS), {**thresholds(), **THRESHOLDS, **names}, "docs/runbooks/{alert}.md")
    assert only(rendered(), "PrometheusRule")["spec"] == yaml.safe_load(expected)


def test_the_rules_have_the_charts_port_and_any_url_of_runbooks() -> None:
    rule = {"enabled": True, "runbookUrl": "https://example.com/$1/${alert}/{alert}"}
    rules = only(render({"metrics": {"prometheusRule": rule}, "ports": {"health": 8181}}), "PrometheusRule")["spec"]
    alerts = {
        each["alert"]: each["annotations"] for group in rules["groups"] for each in group["rules"] if "alert" in each
    }
    stale = alerts["LLMServiceOperatorWatchStale"]
    assert "{{ $labels.pod }}:8181/proxy/readyz" in stale["description"]
    assert stale["runbook_url"] == "https://example.com/$1/$LLMServiceOperatorWatchStale/LLMServiceOperatorWatchStale"


def test_the_dashboards_are_in_a_config_map_that_grafanas_sidecar_finds() -> None:
    found = only(rendered(), "ConfigMap", "-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text)["uid"] for name, text in found["data"].items()} == {
        f"{dashboard.uid}.json": dashboard.uid for dashboard in DASHBOARDS
    }


def test_every_query_of_every_dashboard_has_data(watched: Watched) -> None:
    queries = [query for dashboard in DASHBOARDS for panel in dashboard.panels for query in panel.queries]
    exprs = {query.concrete(watched.values, "30s"): query.empty_when for query in queries}
    always = [expr for expr, reason in exprs.items() if not reason]
    assert wait_for_samples(watched.prometheus, always, WITHIN) == []
    for expr in exprs.keys() - always:
        watched.prometheus.query(expr)


def test_every_recorded_series_has_data_and_every_rule_is_evaluated(watched: Watched) -> None:
    names = [rule.name for group in GROUPS for rule in group.rules if isinstance(rule, Recording)]
    assert wait_for_samples(watched.prometheus, [f'{name}{{service="{HEALTHY}"}}' for name in names], WITHIN) == []
    assert [rule["lastError"] for rule in watched.prometheus.rules() if rule["health"] != "ok"] == []


def test_prometheus_takes_every_query_of_the_pages(watched: Watched) -> None:
    lines = {line for page in PAGES for block in blocks_of(page, "promql") for line in block.splitlines()}
    assert len(lines) > 20
    for line in lines:
        watched.prometheus.query(line.replace("NAMESPACE", NAMESPACE).replace("NAME", HEALTHY))


def test_broken_services_raise_alerts_and_a_healthy_one_none(watched: Watched) -> None:
    def firing(service: str) -> dict[str, JSON]:
        alerts = watched.prometheus.alerts()
        of_service = [one for one in alerts if one["labels"].get("service") == service and one["state"] == "firing"]
        return {one["labels"]["alertname"]: one for one in of_service}

    def raised(service: str, *names: str) -> dict[str, JSON]:
        def look() -> dict[str, JSON] | None:
            found = firing(service)
            return found if set(names) <= found.keys() else None

        return eventually(f"{names} of {service}", look, WITHIN)

    stalled = raised(TOO_LARGE, "LLMServiceNotReady", "LLMServiceStalled")["LLMServiceStalled"]
    assert stalled["annotations"]["summary"] == f"{NAMESPACE}/{TOO_LARGE} is stalled: DoesNotFit."
    assert stalled["annotations"]["runbook_url"] == "docs/runbooks/LLMServiceStalled.md"
    looping = raised(CRASHING, "LLMServiceNotReady", "LLMServiceCrashLooping")["LLMServiceCrashLooping"]
    assert re.match(
        r"\d+ restarts within an hour[.] Run: llmservice logs crashing ", looping["annotations"]["description"]
    )
    assert firing(HEALTHY) == {}
