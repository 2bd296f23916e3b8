"""What the dashboards show of a service that wakes, by a real Prometheus that scrapes the operator and activators."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localcluster.scaler import CLIENT_SECRET, KEDA_NAMESPACE, SERVER_SECRET
from tests.e2e._chart import JSON
from tests.e2e.monitored import AUTOSCALED, VARIABLES, WITHIN, monitored, queries
from tests.e2e.scaled_to_zero import namespace_with
from tests.support.cluster import Cluster
from tests.support.on_demand import OnDemand, on_demand
from tests.support.prometheus import wait_for_samples

pytestmark = [pytest.mark.autoscaling, pytest.mark.full]
NAMESPACE, NAME = "e2e-zero-monitored", "resting"
VALUES: JSON = {
    "autoscaling": {
        "enabled": True,
        "tls": {"secretName": SERVER_SECRET},
        "keda": {"namespace": KEDA_NAMESPACE, "clientSecretName": CLIENT_SECRET},
    }
}


@pytest.fixture
def service(cluster: Cluster) -> Iterator[OnDemand]:
    """One that takes a while to start."""
    with namespace_with(cluster, NAMESPACE, [on_demand(NAME, {"start_seconds": 15})]) as namespace:
        yield OnDemand(cluster, namespace, NAME)


def test_every_query_of_an_autoscaled_service_has_data(service: OnDemand, tmp_path: Path) -> None:
    found = [query for query in queries() if query.empty_when in AUTOSCALED]
    assert {query.empty_when for query in found} == AUTOSCALED
    variables = {**VARIABLES, "namespace": NAMESPACE, "service": NAME}
    exprs = [query.concrete(variables, "30s") for query in found]
    service.at_zero()
    with monitored(tmp_path, VALUES) as prometheus, ThreadPoolExecutor() as asking:
        answer = asking.submit(service.ask)
        assert wait_for_samples(prometheus, exprs, WITHIN) == []
        assert answer.result().status_code == 200
