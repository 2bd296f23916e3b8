"""A service as a pool: the real endpoint picker of the inference extension, asked by Envoy, chooses a replica."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from llmservice_vllm import metrics

from localcluster import gateway as gateway_api
from localcluster import install
from localcluster.progress import Progress
from tests.e2e.conftest import own_namespace
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.endpoint_picker import Gateway, gateway, install_picker
from tests.support.measured import Record
from tests.support.patience import PATIENCE
from tests.support.services import stand_in

pytestmark = pytest.mark.full

NAME, REPLICAS = "chat", 3
COUNTS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With a service that serves as a pool, and its endpoint picker."""
    target = install.local_target(cluster.paths, os.environ)
    gateway_api.install(cluster.paths, os.environ, Progress())
    install.install(target, Progress(), gateway=True)
    try:
        with own_namespace(cluster, "e2e-endpoint-picker") as made:
            limits = {"maxModelLen": 2048}
            service = stand_in(NAME, routing={"mode": "pool"}, scaling={"replicas": REPLICAS}, batching=limits)
            cluster.apply(service, made)
            install_picker(cluster, made, service, tmp_path_factory.mktemp("picker"))
            cluster.wait_condition(made, NAME, "Ready", "True", timeout=PATIENCE)
            yield made
    finally:
        install.install(target, Progress())
        gateway_api.remove(cluster.paths, os.environ, Progress())


@pytest.fixture(scope="module")
def picked(cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(cluster, namespace, f"{NAME}-epp", tmp_path_factory.mktemp("gateway")) as made:
        eventually("it chooses", lambda: status(made.url, "Hello") == 200, PATIENCE)
        yield made


def status(url: str, prompt: str, **more: object) -> int:
    body = {"model": NAME, "prompt": prompt, "max_tokens": 4, **more}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE, trust_env=False).status_code


def pods(cluster: Cluster, namespace: str) -> list[JSON]:
    return [pod for pod in cluster.pods(namespace, NAME) if "deletionTimestamp" not in pod["metadata"]]


def counted(cluster: Cluster, namespace: str) -> dict[str, float]:
    """Of all replicas."""
    found = dict.fromkeys(COUNTS, 0.0)
    for pod in pods(cluster, namespace):
        page = httpx.get(f"http://{pod['status']['podIP']}:8000/metrics", timeout=PATIENCE, trust_env=False).text
        for name, value in metrics.totals(page, COUNTS).items():
            found[name] += value
    return found


def share_of_hits(cluster: Cluster, namespace: str, url: str, tag: str) -> float:
    """Of conversations of twelve users, six turns each, in which each turn repeats the ones before."""
    before = counted(cluster, namespace)

    def talk(user: int) -> None:
        said = f"{tag}, user {user}: " + f"{user} " * 200
        for turn in range(6):
            said += f"turn {turn} of {user}: " + f"{turn}{user} " * 50
            assert status(url, said) == 200

    with ThreadPoolExecutor(4) as users:
        list(users.map(talk, range(12)))
    after = counted(cluster, namespace)
    asked, hits = (after[name] - before[name] for name in COUNTS)
    return hits / asked


def test_conversations_find_their_beginning_again(
    cluster: Cluster, namespace: str, picked: Gateway, record: Record
) -> None:
    service = cluster.must_get("services", namespace, NAME)["spec"]["clusterIP"]
    by_pool = share_of_hits(cluster, namespace, picked.url, "pool")
    by_service = share_of_hits(cluster, namespace, f"http://{service}", "plain")
    record(hits={"pool": round(by_pool, 3), "service": round(by_service, 3)})
    assert by_pool > by_service


def test_a_replica_that_goes_is_asked_no_more(cluster: Cluster, namespace: str, picked: Gateway) -> None:
    gone = pods(cluster, namespace)[0]
    cluster.kubectl("delete", "pod", gone["metadata"]["name"], "-n", namespace, "--wait=false")
    statuses = [status(picked.url, f"prompt {n}") for n in range(200)]
    assert set(statuses) == {200}
    eventually("all of them", lambda: cluster.status(namespace, NAME).get("readyReplicas") == REPLICAS, PATIENCE)


def test_the_route_leads_past_a_pool_without_replicas(cluster: Cluster, namespace: str, picked: Gateway) -> None:
    cluster.patch("llmservices", namespace, NAME, {"spec": {"endpoint": {"gateway": {"ref": {"name": "public"}}}}})

    def leads_to(kind: str) -> bool:
        route = cluster.get("httproutes", namespace, NAME)
        return route is not None and route["spec"]["rules"][0]["backendRefs"][0]["kind"] == kind

    eventually("to the pool", lambda: leads_to("InferencePool"), PATIENCE)
    cluster.patch("llmservices", namespace, NAME, {"spec": {"scaling": {"replicas": 0}}})
    eventually("to the Service", lambda: leads_to("Service"), PATIENCE)
    eventually("the picker has none", lambda: status(picked.url, "Hello") == 503, PATIENCE)
    cluster.patch("llmservices", namespace, NAME, {"spec": {"scaling": {"replicas": REPLICAS}}})
    eventually("to the pool again", lambda: leads_to("InferencePool"), PATIENCE)
    eventually("it chooses again", lambda: status(picked.url, "Hello") == 200, PATIENCE)


def test_after_a_picker_or_a_gateway_was_killed_it_chooses_again(
    cluster: Cluster, namespace: str, picked: Gateway
) -> None:
    picked.kill()
    picked.start()
    assert status(picked.url, "Hello") == 200
    (picker,) = cluster.list("pods", namespace, f"app.kubernetes.io/instance={NAME}-epp")
    cluster.kubectl("delete", "pod", picker["metadata"]["name"], "-n", namespace, "--grace-period=0", "--force")
    eventually("it chooses again", lambda: status(picked.url, "Hello") == 200, PATIENCE)


def test_a_long_prompt_comes_whole(cluster: Cluster, namespace: str, picked: Gateway) -> None:
    """Longer than the model takes: the refusal is vLLM's own, and not a limit of the way."""
    body = {"model": NAME, "prompt": "x" * (16 << 20), "max_tokens": 1}
    answer = httpx.post(f"{picked.url}/v1/completions", json=body, timeout=PATIENCE, trust_env=False)
    assert (answer.status_code, "maximum context length" in answer.text) == (400, True)
