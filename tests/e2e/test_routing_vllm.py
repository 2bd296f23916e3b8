"""The first token of conversations with two replicas of vLLM, by each way to one.

Recorded and never judged: to compute the prompt of so small a model takes no longer than the way to it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.conftest import own_namespace
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.endpoint_picker import Gateway, every_way_installed, gateway, install_picker
from tests.support.measured import Record
from tests.support.patience import PATIENCE, at_most
from tests.support.routing import counted, is_by_prompts
from tests.support.services import one_of_several
from tests.support.serving import READY_WITHIN

pytestmark = pytest.mark.full

NAMESPACE, NAME = "e2e-routing-vllm", "twice"
USERS, TURNS, ROUNDS = 8, 4, 3
POOL: JSON = {"mode": "pool", "policy": None}
ROUTER: JSON = {"mode": "router", "policy": "cache_aware"}


@pytest.fixture(scope="module")
def picked(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A Gateway in front of the service, which is a pool."""
    with every_way_installed(cluster), own_namespace(cluster, NAMESPACE):
        service = one_of_several(NAME, scaling={"replicas": 2}, routing={"mode": "pool"})
        cluster.apply(service, NAMESPACE)
        install_picker(cluster, NAMESPACE, service, tmp_path_factory.mktemp("picker"))
        cluster.wait_condition(NAMESPACE, NAME, "Ready", "True", timeout=at_most(READY_WITHIN))
        with gateway(cluster, NAMESPACE, f"{NAME}-epp", tmp_path_factory.mktemp("gateway")) as made:
            eventually("it chooses", lambda: first_token(made.url, "Hello") > 0, PATIENCE)
            yield made


def first_token(url: str, prompt: str) -> float:
    """Seconds; 0 where it is refused."""
    body = {"model": NAME, "prompt": prompt, "max_tokens": 2, "stream": True, "temperature": 0}
    began = time.perf_counter()
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE, trust_env=False) as answer:
        if answer.status_code != 200:
            return 0.0
        arrived = [time.perf_counter() for line in answer.iter_lines() if line.startswith("data: ")]
    return arrived[0] - began


def conversations(url: str, seed: int) -> list[float]:
    """Of each turn, which repeats the ones before. The first of a conversation is left out: no way finds it."""
    taken = []
    for user in range(USERS):
        said = f"{seed * USERS + user:02d}" * 32
        for turn in range(TURNS):
            said += f" {turn}" * 32
            seconds = first_token(url, said)
            assert seconds > 0, "it was answered"
            taken += [seconds] if turn else []
    return taken


def test_the_first_token_by_each_way(cluster: Cluster, picked: Gateway, record: Record) -> None:
    plain = cluster.service_url(NAMESPACE, NAME)
    taken: dict[str, list[float]] = {"none": [], "pool": [], "router": []}
    found: dict[str, list[float]] = {way: [0.0, 0.0] for way in taken}

    def measure(way: str, url: str, seed: int) -> None:
        before = counted(cluster, NAMESPACE, NAME)
        taken[way] += conversations(url, seed)
        after = counted(cluster, NAMESPACE, NAME)
        found[way] = [sum(each) for each in zip(found[way], after.values(), strict=True)]
        found[way] = [total - was for total, was in zip(found[way], before.values(), strict=True)]

    for number in range(ROUNDS):
        # None finds what another one computed.
        measure("none", plain, 3 * number)
        measure("pool", picked.url, 3 * number + 1)
        cluster.patch("llmservices", NAMESPACE, NAME, {"spec": {"routing": ROUTER}})
        cluster.wait_condition(NAMESPACE, NAME, "RoutingReady", "True", timeout=PATIENCE)
        eventually("the Service leads to the router", lambda: is_by_prompts(plain, NAME), PATIENCE)
        measure("router", plain, 3 * number + 2)
        cluster.patch("llmservices", NAMESPACE, NAME, {"spec": {"routing": POOL}})
        eventually("it is a pool again", lambda: cluster.get("inferencepools", NAMESPACE, NAME), PATIENCE)
        eventually("it chooses", lambda: first_token(picked.url, "Hello") > 0, PATIENCE)
    quartiles = {way: [round(each, 4) for each in statistics.quantiles(seconds)] for way, seconds in taken.items()}
    median = quartiles["none"][1]
    hits = {way: round(hits / asked, 3) for way, (asked, hits) in found.items()}
    record(seconds=quartiles, medians={way: round(each[1] / median, 2) for way, each in quartiles.items()}, hits=hits)
