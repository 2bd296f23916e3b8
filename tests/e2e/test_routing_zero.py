"""A routed service without a replica: requests are held by the activators and answered, at each step of the router."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from localcluster import images, install
from localcluster.progress import Progress
from tests.e2e.scaled_to_zero import another_namespace_with
from tests.support.cluster import Cluster, eventually
from tests.support.keda import autoscaling_installed
from tests.support.measured import Record
from tests.support.on_demand import OnDemand, clients, on_demand
from tests.support.patience import PATIENCE
from tests.support.routing import ROUTED, addresses, leads_to, ready_routers

pytestmark = pytest.mark.full

NAME, NAMESPACE, AT_ONCE = "routed", "e2e-routing-zero", 20


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[OnDemand]:
    """On its way to zero, with KEDA and a router."""
    images.build_all(cluster.paths, Progress(), only=("router",))
    with autoscaling_installed(cluster):
        install.install(install.local_target(cluster.paths, os.environ), Progress(), autoscaling=True, routing=True)
        with another_namespace_with(cluster, NAMESPACE, [on_demand(NAME, routing=ROUTED)]):
            yield OnDemand(cluster, NAMESPACE, NAME)


def leads_to_routers(service: OnDemand) -> bool:
    pods = ready_routers(service.cluster, NAMESPACE, NAME)
    return bool(pods) and leads_to(service.cluster, NAMESPACE, NAME) == addresses(pods)


@pytest.mark.parametrize("turn", range(2))
def test_requests_that_find_no_replica_are_held_and_the_next_ones_are_routed(
    service: OnDemand, turn: int, record: Record
) -> None:
    seconds = service.at_zero()
    with clients(service) as asking:
        asking.send(AT_ONCE)
        eventually("it leads to the router", lambda: leads_to_routers(service), PATIENCE)
        asking.send(AT_ONCE)
        rows = asking.rows()
        assert asking.lost() == []
    service.cluster.wait_condition(NAMESPACE, NAME, "RoutingReady", "True", timeout=PATIENCE)
    record(turn=turn, secondsToZero=seconds, slowest=round(max(row.ended - row.sent for row in rows), 2))


def test_requests_that_come_as_the_last_replica_goes_are_answered(service: OnDemand) -> None:
    with clients(service) as asking:
        asking.send(1)
        eventually("it serves", lambda: leads_to_routers(service), PATIENCE)
        eventually("it is to go", lambda: service.replicas == 0, PATIENCE)
        for _ in range(10):
            asking.send(2)
            asking.rows()
        assert asking.lost() == []
