"""Rounds up and down lose no request: of one service, of several at a time, and of vLLM itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.scaled_to_zero import attack, namespace_with, reported, up_and_down
from tests.support.cluster import Cluster
from tests.support.measured import Record
from tests.support.on_demand import ON_DEMAND, ZERO_WITHIN, OnDemand, on_demand
from tests.support.services import llmservice

pytestmark = pytest.mark.autoscaling

NAMESPACE = "e2e-zero-rounds"
SEVERAL = tuple(f"rounds-of-{number}" for number in range(5))


@pytest.fixture(scope="module")
def there(cluster: Cluster) -> Iterator[str]:
    with namespace_with(cluster, NAMESPACE, [on_demand("rounds")]):
        yield NAMESPACE


def test_two_rounds_lose_nothing(cluster: Cluster, there: str, record: Record) -> None:
    service = OnDemand(cluster, there, "rounds")
    service.at_zero()
    reported(record, [up_and_down(service, 2)])


@pytest.mark.full
def test_fifty_rounds_of_five_services_lose_nothing(cluster: Cluster, there: str, record: Record) -> None:
    """Ten of each, side by side: the activators hold, forward and let go of several at a time, and are attacked."""
    cluster.apply_all(map(on_demand, SEVERAL), there)
    services = [OnDemand(cluster, there, name) for name in SEVERAL]
    for service in services:
        service.at_zero()
    with attack(cluster, services) as attacks:
        with ThreadPoolExecutor(len(services)) as pool:
            rounds = list(pool.map(lambda service: up_and_down(service, 10), services))
        reported(record, rounds, attacks=attacks())
        for service in services:
            service.at_zero(2 * ZERO_WITHIN)  # by KEDA alone, which is answered, and although models are listed


@pytest.mark.full
def test_rounds_of_vllm_lose_nothing(cluster: Cluster, there: str, record: Record) -> None:
    cluster.apply(llmservice("vllm", **ON_DEMAND), there)
    service = OnDemand(cluster, there, "vllm")
    service.at_zero(2 * ZERO_WITHIN)
    reported(record, [up_and_down(service, 3)])
