"""Long streams and long prompts, by every way to a replica at the same time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import httpx
import pytest

from tests.e2e.conftest import own_namespace
from tests.support.cluster import Cluster, eventually
from tests.support.endpoint_picker import every_way_installed, gateway, install_picker
from tests.support.measured import Record
from tests.support.patience import PATIENCE
from tests.support.services import stand_in

pytestmark = pytest.mark.full

NAMESPACE, STREAMS = "e2e-routing-long", 3
MINUTES, PER_SECOND = 30, 0.5
TOKENS = int(MINUTES * 60 * PER_SECOND)
LONG = 32 << 20
"""Characters."""


class Way(NamedTuple):
    """How a request comes to a replica."""

    url: str
    model: str


@pytest.fixture(scope="module")
def ways(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Way]]:
    slow = {"tokens_per_second": PER_SECOND}
    more = {"batching": {"maxModelLen": 2048}, "scaling": {"replicas": 2}}
    pooled = stand_in("pooled", slow, routing={"mode": "pool"}, **more)
    by_policy = {policy: f"routed-{policy.replace('_', '-')}" for policy in ("cache_aware", "power_of_two")}
    with every_way_installed(cluster), own_namespace(cluster, NAMESPACE):
        for policy, name in by_policy.items():
            cluster.apply(stand_in(name, slow, routing={"mode": "router", "policy": policy}, **more), NAMESPACE)
        cluster.apply(pooled, NAMESPACE)
        install_picker(cluster, NAMESPACE, pooled, tmp_path_factory.mktemp("picker"))
        cluster.wait_condition(NAMESPACE, "pooled", "Ready", "True", timeout=PATIENCE)
        for name in by_policy.values():
            cluster.wait_condition(NAMESPACE, name, "RoutingReady", "True", timeout=PATIENCE)
        addresses = {name: cluster.service_url(NAMESPACE, name) for name in ("pooled", *by_policy.values())}
        with gateway(cluster, NAMESPACE, "pooled-epp", tmp_path_factory.mktemp("gateway")) as made:
            found = {"none": Way(addresses["pooled"], "pooled"), "pool": Way(made.url, "pooled")}
            found |= {policy: Way(addresses[name], name) for policy, name in by_policy.items()}
            for name, way in found.items():
                eventually(f"{name} answers", lambda way=way: models(way) == 200, PATIENCE)  # type: ignore[misc]
            yield found


def models(way: Way) -> int:
    return httpx.get(f"{way.url}/v1/models", timeout=PATIENCE, trust_env=False).status_code


def stream(way: Way) -> tuple[int, str]:
    """How many tokens came, and why they ended."""
    body = {"model": way.model, "prompt": "Once", "max_tokens": TOKENS, "stream": True}
    found, why = 0, "cut"
    with httpx.stream("POST", f"{way.url}/v1/completions", json=body, timeout=PATIENCE, trust_env=False) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            found += bool(choice["text"])
            why = choice["finish_reason"] or why
    return found, why


def test_streams_of_half_an_hour_are_whole_by_each_way(ways: Mapping[str, Way], record: Record) -> None:
    asked = [(name, way) for name, way in ways.items() for _ in range(STREAMS)]
    with ThreadPoolExecutor(len(asked)) as clients:
        came = list(clients.map(lambda each: stream(each[1]), asked))
    record(streams=dict.fromkeys(ways, STREAMS), tokens=TOKENS, minutes=MINUTES)
    assert came == [(TOKENS, "length")] * len(asked)


@pytest.mark.parametrize("name", ["none", "pool", "cache_aware", "power_of_two"])
def test_a_prompt_of_32_mib_comes_whole_by_each_way(ways: Mapping[str, Way], name: str) -> None:
    """Longer than the model takes: the refusal is vLLM's own, and not a limit of the way."""
    body = {"model": ways[name].model, "prompt": "x" * LONG, "max_tokens": 1}
    answer = httpx.post(f"{ways[name].url}/v1/completions", json=body, timeout=PATIENCE, trust_env=False)
    assert (answer.status_code, "maximum context length" in answer.text) == (400, True)
