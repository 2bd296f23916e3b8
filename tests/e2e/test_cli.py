"""The command line against a serving model: status as text and JSON, and one load by three client disciplines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.ahead import ahead
from tests.support.cluster import JSON, Cluster
from tests.support.measured import Record
from tests.support.serving import Server, serving

NAME = "cli-chat"
REQUESTS = 64
# Batches so small that a static client can send but a third of what arrives: its backlog costs far more than the
# moods of a busy machine.
LOAD = ("--requests", str(REQUESTS), "--rate", "20", "--batch", "2", "--output-tokens", "8,8,8,128", "--warmup", "8")
DISCIPLINES = ["static", "dynamic", "continuous"]


pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def server(cluster: Cluster, shared_namespace: str) -> Iterator[Server]:
    with serving(cluster, shared_namespace, NAME) as ready:
        yield ready


def llmservice(server: Server, *words: str, expect: int = 0) -> str:
    """What the command prints; the cluster is found by $KUBECONFIG, as a user's is."""
    command = (sys.executable, "-m", "llmservice_cli", *words, "-n", server.namespace)
    return server.cluster.run(*command, expect=expect, timeout=600)


def test_status_says_in_one_screen_how_a_service_is(server: Server) -> None:
    (pod,) = server.pods()
    screen = llmservice(server, "status", NAME)
    assert screen.startswith(f"{NAME} in namespace {server.namespace}: Ready is True: RolledOut\n")
    assert f"http://{NAME}.{server.namespace}.svc/v1 as {NAME}" in screen
    assert "1/1 ready" in screen
    assert "requests refused by a queue limit: none" in screen
    assert "no live figures" not in screen
    assert pod["metadata"]["name"] in screen
    assert NAME in llmservice(server, "status")


def test_status_as_json_has_what_vllm_counts(server: Server) -> None:
    (pod,) = server.pods()
    (reported,) = json.loads(llmservice(server, "status", NAME, "-o", "json"))["services"]
    assert reported["status"] == server.cluster.must_get("llmservices", server.namespace, NAME)["status"]
    (seen,) = reported["pods"]
    assert (seen["name"], seen["ready"]) == (pod["metadata"]["name"], True)
    live = seen["live"]
    assert (live["requestsRunning"], live["requestsWaiting"], live["preemptions"]) == (0, 0, 0)
    assert set(live["admissionRejections"]) == {"max_num_queued_reqs", "max_num_queued_tokens"}
    assert "does not speculate" in live["absent"]["draftAcceptanceRate"]


def test_kubectl_finds_it_as_a_plugin(server: Server) -> None:
    scripts = Path(sys.executable).parent
    path = f"PATH={scripts}:{server.cluster.paths.bin}:{os.environ['PATH']}"
    printed = server.cluster.run("env", path, "kubectl", "llmservice", "status", NAME, "-n", server.namespace)
    assert "Ready is True" in printed


def test_wrong_names_are_reported_with_those_that_there_are(server: Server) -> None:
    assert f"choose one of: {NAME}" in llmservice(server, "status", "no-such", expect=1)
    assert f"--model: {NAME}" in llmservice(server, "bench", NAME, "--model", "no-such", expect=1)


def test_a_service_is_measured_by_its_name(server: Server, tmp_path: Path) -> None:
    """Through the API server, which needs no way into the cluster's network."""
    out = tmp_path / "result.json"
    llmservice(server, "bench", NAME, "--requests", "8", "--discipline", "continuous", "--out", str(out))
    (run,) = json.loads(out.read_text())["disciplines"]
    assert (run["summary"]["answered"], run["summary"]["failures"]) == (8, {})


def test_a_service_is_probed_from_inside_the_cluster(server: Server) -> None:
    """vLLM's own answers are whole by the probe's account, and of its pod nothing is left."""
    words = ("--duration", "4", "--rate", "3", "--api", "chat", "--retries", "0", "-o", "json")
    reported = json.loads(llmservice(server, "probe", NAME, *words))
    assert reported["target"]["name"] == f"http://{NAME}.{server.namespace}.svc"
    assert (reported["summary"]["sent"], reported["summary"]["complete"], reported["losses"]) == (12, 12, [])
    pods = server.cluster.list("pods", server.namespace, "app.kubernetes.io/name=llmservice-probe")
    assert [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]] == []


def test_one_load_by_three_disciplines(server: Server, tmp_path: Path, record: Record) -> None:
    """The same requests, the same server, the same answers: only who waits for whom differs."""
    out, picture = tmp_path / "result.json", tmp_path / "result.svg"
    before = server.metrics()
    with ahead():
        printed = llmservice(server, "bench", "--url", server.url, *LOAD, "--out", str(out), "--picture", str(picture))
    after = server.metrics()
    result = json.loads(out.read_text())
    runs = {each["discipline"]: each for each in result["disciplines"]}
    record(**{name: _figures(run["summary"]) for name, run in runs.items()})
    assert list(runs) == DISCIPLINES
    assert all(name in printed for name in DISCIPLINES)
    for run in runs.values():
        summary = run["summary"]
        assert (summary["answered"], summary["failures"], summary["shorterThanAsked"]) == (REQUESTS, {}, 0)
    asked = {name: [(row["arrival"], row["outputTokens"]) for row in run["requests"]] for name, run in runs.items()}
    assert asked["static"] == asked["dynamic"] == asked["continuous"]
    _sent_as_the_discipline_says(runs)
    _continuous_wins(runs)
    # What the client counted is what vLLM counted, and no discipline profited from another one's prompts.
    warm_up = sum(tokens for _, tokens in asked["static"][:8])
    counted = after.value("vllm:generation_tokens_total") - before.value("vllm:generation_tokens_total")
    assert counted == warm_up + sum(run["summary"]["outputTokens"] for run in runs.values())
    hits = after.value("vllm:prefix_cache_hits_total") - before.value("vllm:prefix_cache_hits_total")
    assert hits == 0
    assert picture.read_text().startswith("<?xml")


def _figures(summary: Mapping[str, Any]) -> JSON:
    return {
        "requestsPerSecond": summary["requestsPerSecond"],
        "outputTokensPerSecond": summary["outputTokensPerSecond"],
        "latencyP50": summary["latency"]["p50"],
        "latencyP95": summary["latency"]["p95"],
        "makespan": summary["makespan"],
    }


def _sent_as_the_discipline_says(runs: Mapping[str, JSON]) -> None:
    for name in ("static", "dynamic"):
        batches: dict[int, list[JSON]] = {}
        for row in runs[name]["requests"]:
            batches.setdefault(row["batch"], []).append(row)
        for number in range(1, len(batches)):
            assert min(row["sent"] for row in batches[number]) >= max(row["ended"] for row in batches[number - 1])
        sizes = {len(batch) for batch in batches.values()}
        assert sizes == {2} if name == "static" else max(sizes) <= 2
    rows = runs["continuous"]["requests"]
    long = [row for row in rows if row["askedTokens"] == 128]
    overtaken = [
        row for row in rows if any(row["arrival"] > one["arrival"] and row["ended"] < one["ended"] for one in long)
    ]
    assert overtaken, "no request that came later ended before a long one that came first"


def _continuous_wins(runs: Mapping[str, JSON]) -> None:
    static, continuous = runs["static"]["summary"], runs["continuous"]["summary"]
    assert continuous["makespan"] <= static["makespan"]
    for percentile in ("p50", "p95"):
        assert continuous["latency"][percentile] <= static["latency"][percentile], percentile
