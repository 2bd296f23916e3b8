"""The chart's monitors, rules and dashboards with a real Prometheus that scrapes the cluster."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
import yaml

from localcluster.install import NAMESPACE as OPERATORS
from localcluster.install import RELEASE
from monitoring.__main__ import thresholds
from monitoring.alerts import GROUPS
from monitoring.dashboards import DASHBOARDS
from monitoring.rules import Recording, filled, rule_file
from tests.e2e._chart import JSON, only, render
from tests.e2e.conftest import own_namespace
from tests.e2e.model_places import BRIDGE
from tests.e2e.monitored import (
    CRASHING,
    FETCHING,
    HEALTHY,
    ON_GPU,
    SERVICES,
    VARIABLES,
    WITHIN,
    monitored,
    queries,
    rendered,
)
from tests.support.accelerators import advertised
from tests.support.cluster import Cluster, eventually
from tests.support.documents import PAGES, blocks_of
from tests.support.fetching import model_files
from tests.support.hub import Hub, Repo
from tests.support.hub import serving as serving_hub
from tests.support.patience import PATIENCE
from tests.support.prometheus import Prometheus, wait_for_samples
from tests.support.services import MILLION_TOKENS, SMALL, llmservice, stand_in

pytestmark = pytest.mark.parallel

NAMESPACE = "test-monitoring"
TOO_LARGE = "too-large"
GPU = "monitoring.test/gpu"
THRESHOLDS = {
    "notReadyFor": "20s",
    "stalledFor": "5s",
    "sloMinRequests": 1,
    "restarts": 1,
    "ttftSeconds": 40,
    "itlSeconds": 10,
}
"""Short enough to wait for; and targets that a healthy service meets on a busy machine."""
VALUES: JSON = {"watch": {"namespaces": [NAMESPACE]}, "metrics": {"prometheusRule": {"thresholds": THRESHOLDS}}}


@contextmanager
def load(url: str, model: str) -> Iterator[None]:
    """Two clients, each with one request after another. A pod that missed a probe has no endpoint for a moment."""
    stop, answered = threading.Event(), threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
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


@pytest.fixture(scope="module")
def watched(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A fleet of a healthy and several broken services, and the Prometheus that scrapes it."""
    hub = Hub({"team/large": Repo(model_files({"model.safetensors": 20_000_000}))}, bytes_per_second=100_000)
    with ExitStack() as stack:
        stack.enter_context(serving_hub(hub, BRIDGE, BRIDGE))
        stack.enter_context(own_namespace(cluster, NAMESPACE))
        stack.enter_context(advertised(cluster, {GPU: 1}))
        prometheus = stack.enter_context(monitored(tmp_path_factory.mktemp("prometheus"), VALUES))
        cluster.apply(stand_in(HEALTHY, model={"architecture": SMALL}, fitPolicy="Warn"), NAMESPACE)
        at_the_hub = [{"name": "HF_ENDPOINT", "value": hub.url}]
        broken = [
            llmservice(TOO_LARGE, model={"architecture": MILLION_TOKENS}, batching={"maxModelLen": None}),
            stand_in(CRASHING, {"exit_loading": 1}),
            stand_in(FETCHING, model={"uri": "hf://team/large"}, runtime={"env": at_the_hub}),
            stand_in(ON_GPU, accelerator={"type": "nvidia", "resourceName": GPU}),
        ]
        cluster.apply_all(broken, NAMESPACE)
        cluster.wait_condition(NAMESPACE, HEALTHY, "Ready", "True")
        with load(cluster.service_url(NAMESPACE, HEALTHY), HEALTHY):
            yield prometheus


def test_the_chart_fills_the_rules_as_the_unit_tests_do() -> None:
    names = {"name": "llmservice-operator", "job": f"{RELEASE}-metrics", "namespace": OPERATORS, "healthPort": 8080}
    expected = filled(rule_file(GROUPS), {**thresholds(), **THRESHOLDS, **names}, "docs/runbooks/{alert}.md")
    assert only(rendered(VALUES), "PrometheusRule")["spec"] == yaml.safe_load(expected)


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
    found = only(rendered(VALUES), "ConfigMap", "-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text)["uid"] for name, text in found["data"].items()} == {
        f"{dashboard.uid}.json": dashboard.uid for dashboard in DASHBOARDS
    }


def test_every_query_of_every_dashboard_has_data(cluster: Cluster, watched: Prometheus) -> None:
    """But those of services that are not here (monitored.py says who asks them)."""
    # An increase of what was counted before.
    assert wait_for_samples(watched, ["llmservice_failures_total > 0"], WITHIN) == []
    cluster.apply(stand_in("crashing-later", {"exit_loading": 1}), NAMESPACE)
    exprs = {
        query.concrete({**VARIABLES, "namespace": NAMESPACE, "service": SERVICES[query.empty_when]}, "30s")
        for query in queries()
        if query.empty_when in SERVICES
    }
    assert wait_for_samples(watched, sorted(exprs), WITHIN) == []


def test_every_recorded_series_has_data_and_every_rule_is_evaluated(watched: Prometheus) -> None:
    names = [rule.name for group in GROUPS for rule in group.rules if isinstance(rule, Recording)]
    series = [f'{name}{{namespace="{NAMESPACE}",service="{HEALTHY}"}}' for name in names]
    assert wait_for_samples(watched, series, WITHIN) == []
    assert [rule["lastError"] for rule in watched.rules() if rule["health"] != "ok"] == []


def test_prometheus_takes_every_query_of_the_pages(watched: Prometheus) -> None:
    lines = {line for page in PAGES for block in blocks_of(page, "promql") for line in block.splitlines()}
    assert len(lines) > 20
    for line in lines:
        watched.query(line.replace("NAMESPACE", NAMESPACE).replace("NAME", HEALTHY))


def test_broken_services_raise_alerts_and_a_healthy_one_none(watched: Prometheus) -> None:
    def firing(service: str) -> dict[str, JSON]:
        ours = {"namespace": NAMESPACE, "service": service}.items()
        firing = [one for one in watched.alerts() if one["state"] == "firing"]
        return {one["labels"]["alertname"]: one for one in firing if ours <= one["labels"].items()}

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
