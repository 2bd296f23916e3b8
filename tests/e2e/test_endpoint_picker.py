"""A service as a pool: the real endpoint picker of the inference extension, asked by Envoy, chooses a replica.

Beside it the other ways to one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import pytest

from tests.e2e.conftest import own_namespace
from tests.e2e.disturbances import words
from tests.support.advice import advice_beside
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.endpoint_picker import Gateway, every_way_installed, gateway, install_picker
from tests.support.host import cpu_seconds, pause, processes_of, resident_bytes_of, without
from tests.support.measured import Record
from tests.support.patience import PATIENCE
from tests.support.routing import COUNTS, counted, is_by_prompts
from tests.support.services import stand_in

pytestmark = pytest.mark.full

NAME, REPLICAS = "chat", 4
USERS, TURNS, WATCH_SECONDS = 32, 6, 60
ASKED = 500


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With a service that serves as a pool, and its endpoint picker."""
    with every_way_installed(cluster), own_namespace(cluster, "e2e-endpoint-picker") as made:
        limits = {"maxModelLen": 2048}
        service = stand_in(NAME, routing={"mode": "pool"}, scaling={"replicas": REPLICAS}, batching=limits)
        cluster.apply(service, made)
        install_picker(cluster, made, service, tmp_path_factory.mktemp("picker"))
        cluster.wait_condition(made, NAME, "Ready", "True", timeout=PATIENCE)
        yield made


@pytest.fixture(scope="module")
def picked(cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(cluster, namespace, f"{NAME}-epp", tmp_path_factory.mktemp("gateway")) as made:
        eventually("it chooses", lambda: status(made.url, "Hello") == 200, PATIENCE)
        yield made


def status(url: str, prompt: str, *, again: bool = False) -> int:
    """`again`: a second time where no server began with it."""
    body = {"model": NAME, "prompt": prompt, "max_tokens": 4}
    code = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE, trust_env=False).status_code
    return status(url, prompt) if again and code == 503 else code


def pods(cluster: Cluster, namespace: str) -> list[JSON]:
    return [pod for pod in cluster.pods(namespace, NAME) if "deletionTimestamp" not in pod["metadata"]]


def share_of_hits(cluster: Cluster, namespace: str, url: str, tag: str) -> float:
    """Of conversations of so many users, in which each turn repeats the ones before."""
    before = counted(cluster, namespace, NAME)

    def talk(user: int) -> None:
        said = f"{tag}, user {user}: " + f"{user} " * 200
        for turn in range(TURNS):
            said += f"turn {turn} of {user}: " + f"{turn}{user} " * 50
            assert status(url, said) == 200

    with ThreadPoolExecutor(4) as users:
        list(users.map(talk, range(USERS)))
    after = counted(cluster, namespace, NAME)
    asked, hits = (after[name] - before[name] for name in COUNTS)
    return hits / asked


def test_conversations_by_each_way_and_what_the_advice_said(
    cluster: Cluster, namespace: str, picked: Gateway, record: Record
) -> None:
    """The same conversations with other names, so that none finds what an earlier one left."""
    url = cluster.service_url(namespace, NAME)
    hits: dict[str, float] = {}

    def ask_plainly() -> None:
        hits["none"] = share_of_hits(cluster, namespace, url, "plain")

    _, advice = advice_beside(cluster, namespace, NAME, WATCH_SECONDS, ask_plainly)
    hits["pool"] = share_of_hits(cluster, namespace, picked.url, "pool")
    try:
        by_prompts = {"mode": "router", "policy": "cache_aware"}
        cluster.patch("llmservices", namespace, NAME, {"spec": {"routing": by_prompts}})
        cluster.wait_condition(namespace, NAME, "RoutingReady", "True", timeout=PATIENCE)
        eventually("the Service leads to the router", lambda: is_by_prompts(url, NAME), PATIENCE)
        hits["router"] = share_of_hits(cluster, namespace, url, "router")
    finally:
        cluster.patch("llmservices", namespace, NAME, {"spec": {"routing": {"mode": "pool", "policy": None}}})
    eventually("it is a pool again", lambda: cluster.get("inferencepools", namespace, NAME), PATIENCE)
    record(hits={way: round(share, 3) for way, share in hits.items()}, advice=advice["gain"], said=advice["verdict"])
    assert min(hits["pool"], hits["router"]) > hits["none"]
    # By counters alone, which bound it: the stand-in has no events.
    assert hits["router"] - hits["none"] <= advice["gain"]["high"] + 0.02


def test_what_the_way_costs(cluster: Cluster, namespace: str, picked: Gateway, record: Record) -> None:
    """Recorded and not judged: this machine is shared."""
    (picker,) = cluster.list("pods", namespace, f"app.kubernetes.io/instance={NAME}-epp")
    (of_picker,) = (pid for pid, line in processes_of(picker).items() if "--pool-name" in line)
    assert picked.process is not None
    spent = {"picker": of_picker, "Envoy": picked.process.pid}
    seconds: dict[str, list[float]] = {}
    for way, url in (("none", cluster.service_url(namespace, NAME)), ("pool", picked.url)):
        before = {name: cpu_seconds(pid) for name, pid in spent.items()}
        with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
            seconds[way] = sorted(timed(client, number) for number in range(ASKED))
    cpu = {name: round(100 * (cpu_seconds(pid) - before[name]) / ASKED, 3) for name, pid in spent.items()}
    memory = {name: resident_bytes_of(pid) >> 20 for name, pid in spent.items()}
    added = {
        name: round(1000 * (seconds["pool"][at] - seconds["none"][at]), 2)
        for name, at in (("p50", ASKED // 2), ("p99", ASKED * 99 // 100))
    }
    record(addedMilliseconds=added, cpuSecondsFor100=cpu, memoryMib=memory)


def timed(client: httpx.Client, number: int) -> float:
    body = {"model": NAME, "prompt": f"{number} and so on", "max_tokens": 1}
    began = time.perf_counter()
    assert client.post("/v1/completions", json=body).status_code == 200
    return time.perf_counter() - began


def test_a_replica_that_goes_is_asked_no_more(cluster: Cluster, namespace: str, picked: Gateway) -> None:
    gone = pods(cluster, namespace)[0]
    cluster.kubectl("delete", "pod", gone["metadata"]["name"], "-n", namespace, "--wait=false")
    statuses = [status(picked.url, f"prompt {n}") for n in range(200)]
    assert set(statuses) == {200}
    eventually("all of them", lambda: cluster.status(namespace, NAME).get("readyReplicas") == REPLICAS, PATIENCE)


def rollout(cluster: Cluster, namespace: str) -> None:
    before = {pod["metadata"]["uid"] for pod in pods(cluster, namespace)}
    cluster.patch("llmservices", namespace, NAME, {"spec": {"batching": {"maxNumSeqs": 7}}})
    eventually("new pods", lambda: before.isdisjoint(pod["metadata"]["uid"] for pod in pods(cluster, namespace)), 180)
    cluster.wait_condition(namespace, NAME, "Ready", "True", timeout=PATIENCE)


def down_to_one_and_up(cluster: Cluster, namespace: str) -> None:
    for replicas in (1, REPLICAS):
        cluster.patch("llmservices", namespace, NAME, {"spec": {"scaling": {"replicas": replicas}}})
        eventually(f"{replicas} replicas", lambda wanted=replicas: ready(cluster, namespace) == wanted, PATIENCE)  # type: ignore[misc]


def ready(cluster: Cluster, namespace: str) -> int:
    """Replicas, where no others are left."""
    found = cluster.pods(namespace, NAME)
    return len(found) if all(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in found) else 0


def no_api_server(cluster: Cluster, namespace: str) -> None:
    with without(cluster, "kube-apiserver"):
        pause(5)


@pytest.mark.parametrize("story", [rollout, down_to_one_and_up, no_api_server], ids=words)
def test_no_request_is_lost(
    story: Callable[[Cluster, str], None], cluster: Cluster, namespace: str, picked: Gateway, record: Record
) -> None:
    ends = Event()

    def ask(client: int) -> list[int]:
        """Statuses; one that is not answered is asked once more, as clients do."""
        found: list[int] = []
        while not ends.is_set():
            found.append(status(picked.url, f"client {client}, {len(found)}", again=True))
        return found

    with ThreadPoolExecutor(8) as clients:
        asking = [clients.submit(ask, number) for number in range(8)]
        try:
            story(cluster, namespace)
        finally:
            ends.set()
        statuses = Counter(each for one in asking for each in one.result())
    record(story=words(story), statuses={str(code): count for code, count in statuses.items()})
    assert set(statuses) == {200}


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
