"""Who may send requests to a service without a replica: keys, addresses, and clients that take their time."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from llmservice_activator.holding.limits import Limits

from tests.e2e.scaled_to_zero import granted, half_a_request, keys, namespace_with, of_service
from tests.support.client import ClientPod
from tests.support.cluster import JSON, Cluster
from tests.support.on_demand import OnDemand, on_demand
from tests.support.watching import watching

pytestmark = pytest.mark.full

NAMESPACE = "e2e-zero-access"
FIELDS = {"message", "type", "param", "code"}
"""Of an error of OpenAI's API."""


@pytest.fixture(scope="module")
def there(cluster: Cluster) -> Iterator[str]:
    ours: list[JSON] = [{"podSelector": {}}]
    with namespace_with(cluster, NAMESPACE, [on_demand("slow-client"), on_demand("ours", holding={"from": ours})]):
        yield NAMESPACE


def test_a_body_that_does_not_arrive_is_refused_and_wakes_nobody(cluster: Cluster, there: str) -> None:
    service = OnDemand(cluster, there, "slow-client")
    service.at_zero()
    with watching(cluster, "llmservices", there) as seen, half_a_request(service) as connection:
        connection.settimeout(2 * Limits().body_seconds)
        answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        woken = seen.first(lambda obj: of_service(obj, service) and obj["spec"]["scaling"]["replicas"])
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 408 "), answer
    assert set(json.loads(body)["error"]) == FIELDS
    assert woken is None


def test_only_pods_of_from_start_a_replica(cluster: Cluster, there: str, client: ClientPod) -> None:
    """A podSelector alone means pods of the service's own namespace; the host is no pod."""
    service = OnDemand(cluster, there, "ours")
    service.at_zero()
    url, body = f"{service.url}/v1/completions", {"model": "ours", "prompt": "Hello", "max_tokens": 3}
    with watching(cluster, "llmservices", there) as seen:
        theirs = client.request(url, body)
        assert (theirs.status, set(theirs.json["error"])) == (403, FIELDS), theirs
        assert service.ask().status_code == 403
        assert seen.unwanted(lambda obj: of_service(obj, service) and obj["spec"]["scaling"]["replicas"], 10) is None
    assert ClientPod.start(cluster, there).request(url, body).status == 200


def test_keys_that_nobody_granted_keep_a_replica(cluster: Cluster, there: str) -> None:
    """The condition says which Role; with it the service goes to zero."""
    reference = {"endpoint": {"apiKeySecretRef": {"name": "their-keys", "key": "api-key"}}}
    cluster.apply_all([keys("their-keys"), on_demand("ungranted", **reference)], there)
    said = cluster.wait_condition(there, "ungranted", "Autoscaled", "False", reason="HoldingUnavailable", timeout=120)
    assert "their-keys" in said["message"]
    service = OnDemand(cluster, there, "ungranted")
    assert len(cluster.pods(there, "ungranted")) == 1
    assert service.post({}, headers={"Authorization": "Bearer wrong"}).status_code == 401
    cluster.apply_all(granted(there, "ungranted", "their-keys"), there)
    service.at_zero()
