"""Services without a replica, many at once: a flood, ports, and rollouts that hold requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from llmservice_cli.probe import Mode
from llmservice_operator.behaviours.holding import HELD

from tests.e2e import disturbances
from tests.e2e.conftest import own_namespace
from tests.e2e.scaled_to_zero import namespace_with, of_service
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.measured import Record
from tests.support.on_demand import ANSWERED_WITHIN, OnDemand, clients, held, on_demand
from tests.support.operator import OPERATOR_NAMESPACE
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import stand_in
from tests.support.traffic import traffic
from tests.support.watching import watching

pytestmark = pytest.mark.full

NAMESPACE = "e2e-zero-many"
NAMES = tuple(f"one-of-{number}" for number in range(5))


@pytest.fixture(scope="module")
def there(cluster: Cluster) -> Iterator[str]:
    with namespace_with(cluster, NAMESPACE, map(on_demand, NAMES)):
        yield NAMESPACE


def test_a_flood_in_one_namespace_does_not_delay_another(cluster: Cluster, there: str, record: Record) -> None:
    """Both at zero; the one request of the other is among the first that are answered after its pod is ready."""
    slow = {"start_seconds": 8, "tokens_per_second": 5}
    with own_namespace(cluster, "e2e-zero-flood") as theirs:
        cluster.apply(on_demand("flood", slow, {"maxRequests": 2000}, batching={"maxNumSeqs": 2}), theirs)
        cluster.apply(on_demand("other"), there)
        flood, other = OnDemand(cluster, theirs, "flood"), OnDemand(cluster, there, "other")
        flood.at_zero()
        other.at_zero()
        with clients(flood) as many:
            many.send(400, [Mode.WHOLE_FRESH], [4])
            held(flood, 400)
            with clients(other) as one:
                one.send(1)
                (row,) = one.rows()
            assert one.lost() == []
            assert many.waiting() > 200, "the flood was over before"
            cluster.kubectl("delete", "llms", "flood", "-n", theirs, "--wait=true", KUBECTL_TIMEOUT)
            many.rows()
    record(secondsToAnswer=round(row.ended - row.sent, 2))
    assert row.ended - row.sent < ANSWERED_WITHIN / 4


def test_two_services_never_have_one_port(cluster: Cluster, there: str) -> None:
    ports = {name: cluster.status(there, name)["holding"]["port"] for name in NAMES}
    assert len(set(ports.values())) == len(ports)
    for name, port in ports.items():
        (uid,) = (cluster.must_get("llmservices", there, name)["metadata"]["uid"],)
        lease = cluster.must_get("leases", OPERATOR_NAMESPACE, f"llmservice-port-{port}")
        assert lease["spec"]["holderIdentity"] == f"{there}/{name}/{uid}"


@pytest.mark.parametrize(("strategy", "replicas"), [("Recreate", 2), ("Replace", 1)])
def test_a_rollout_that_leaves_no_replica_loses_nothing(
    cluster: Cluster, there: str, strategy: str, replicas: int, record: Record
) -> None:
    """Without autoscaling; the same without holding is in test_no_request_lost.py, with the requests that it costs."""
    name, within, load = disturbances.NAME, 90, ("--rate", "8", "--output-tokens", "10,20,80")
    scaling = {"replicas": replicas, "holding": {"rollouts": True, "maxRequests": 1000}}
    behaviour = {"start_seconds": 2, "tokens_per_second": 30}
    cluster.apply(stand_in(name, behaviour, scaling=scaling, rollout={"strategy": strategy}), there)
    cluster.wait_condition(there, name, "Ready", "True", timeout=within)
    service = OnDemand(cluster, there, name)
    with (
        watching(cluster, "llmservices", there) as services,
        traffic(cluster, there, name, "--duration", "1h", *load) as probe,
    ):
        world = disturbances.World(cluster, there, disturbances.STAND_IN, load, probe, within)
        world.settled()
        disturbances.nothing_is_lost(world, disturbances.rolling_update, record)
        assert services.first(lambda obj: of_service(obj, service) and gap_of(obj) == HELD), "the status tells of it"
        eventually("the activators are out of the path", lambda: not service.slices(), 30)
    assert probe.unaccounted() == [], "after the rollout"
    assert gap_of(cluster.must_get("llmservices", there, name)) == ""


def gap_of(obj: JSON) -> str:
    return str(obj.get("status", {}).get("rollout", {}).get("gap", ""))
