"""`llmservice bench` of a service on a real cluster: sweeps, an objective, the comparison, and its errors.

By its address, or with an API key: the stand-in takes no chunked request, as they come through the API server. By its
name a real server is measured in test_cli.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.patience import PATIENCE
from tests.support.services import stand_in

pytestmark = pytest.mark.parallel

LOAD = ("--requests", "12", "--output-tokens", "2,4", "--warmup", "2")
TOKENS_PER_SECOND = 100.0


@pytest.fixture
def url(cluster: Cluster, namespace: str) -> str:
    """Of a service whose requests have a first token after a fifth of a second, and the others at a fixed rate."""
    cluster.apply(stand_in("chat", {"prefill_seconds": 0.2, "tokens_per_second": TOKENS_PER_SECOND}), namespace)
    cluster.wait_condition(namespace, "chat", "Ready", "True")
    return cluster.service_url(namespace, "chat")


def bench(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "llmservice_cli", "bench", *words)
    return subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_sweeps_and_their_comparison(cluster: Cluster, url: str, tmp_path: Path) -> None:
    clients, rates, page = tmp_path / "clients.json", tmp_path / "rates.json", tmp_path / "rates.html"
    ran = bench(cluster, "--url", url, *LOAD, "--concurrency", "1,4", "--out", str(clients))
    assert ran.returncode == 0, ran.stderr
    assert "2/2 continuous 4 clients" in ran.stderr, "progress"
    alone, together = _runs(clients)
    assert (alone["concurrency"], together["concurrency"]) == (1, 4)
    for run in (alone, together):
        assert (run["summary"]["answered"], run["summary"]["failures"]) == (12, {})
        assert run["vllmBenchServe"]["median_ttft_ms"] >= 200
    assert together["summary"]["requestsPerSecond"] > 1.2 * alone["summary"]["requestsPerSecond"]

    objective = ("--slo", "ttft:100ms", "--html", str(page))
    ran = bench(cluster, "--url", url, *LOAD, "--rate", "5,10", *objective, "--out", str(rates))
    assert ran.returncode == 0, ran.stderr
    assert "continuous: no load keeps the SLO (ttft 100 ms, for 99% of the requests)" in ran.stdout
    assert [(run["rate"], run["summary"]["good"]) for run in _runs(rates)] == [(5, 0), (10, 0)]
    assert "<svg" in page.read_text()

    ran = bench(cluster, "compare", str(rates), str(rates), "--max-regression", "0%")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "continuous, 10/s" in ran.stdout
    ran = bench(cluster, "compare", str(clients), str(rates))
    assert ran.returncode == 2
    assert "the files have no run in common" in ran.stderr


KEY = "sk-of-the-secret"


def test_a_service_with_an_api_key_through_a_port_forward(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"api-key": KEY}}
    cluster.apply(secret, namespace)
    guarded = stand_in(
        "guarded",
        {"tokens_per_second": TOKENS_PER_SECOND},
        endpoint={"apiKeySecretRef": {"name": "keys", "key": "api-key"}},
        scaling={"replicas": 0},
    )
    cluster.apply(guarded, namespace)
    words = ("guarded", "-n", namespace, *LOAD, "--concurrency", "4")
    ran = bench(cluster, *words)
    assert ran.returncode == 1
    assert "guarded has no ready replica to forward a port to: " in ran.stderr
    cluster.kubectl("scale", "llms/guarded", "--replicas=1", "-n", namespace)
    cluster.wait_condition(namespace, "guarded", "Ready", "True", reason="RolledOut")
    out = tmp_path / "out.json"
    ran = bench(cluster, *words, "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    assert "the API key is from the key 'api-key' of the Secret 'keys'" in ran.stderr
    (pod,) = cluster.pods(namespace, "guarded")
    found = json.loads(out.read_text())
    assert found["target"]["way"] == "through a port-forward"
    assert found["target"]["notes"][0] == f"pod {pod['metadata']['name']}"
    assert (_runs(out)[0]["summary"]["answered"], _runs(out)[0]["summary"]["failures"]) == (12, {})
    assert KEY not in ran.stdout + ran.stderr + out.read_text()
    ran = bench(cluster, *words, "--api-key-env", "PATH")
    assert (ran.returncode, "answers 401" in ran.stderr) == (1, True), ran.stderr


def test_a_name_that_nobody_has_and_a_service_without_a_replica(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("chat", scaling={"replicas": 0}), namespace)
    ran = bench(cluster, "compare", "-n", namespace)
    assert ran.returncode == 1
    assert "there is no LLMService 'compare'" in ran.stderr
    assert "choose one of: chat" in ran.stderr
    ran = bench(cluster, "chat", "-n", namespace, "--rate", "1,2")
    assert ran.returncode == 1
    assert f"llmservice status chat -n {namespace}" in ran.stderr


def _runs(path: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(path.read_text())["disciplines"]
    return runs
