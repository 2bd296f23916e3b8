"""A service behind a Gateway: its route at the real API server, with the projects' own CRDs. What a Gateway's
controller says is written into the status as controllers do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from localcluster import gateway, install
from localcluster.progress import Progress
from tests.e2e.conftest import own_namespace
from tests.support.audit import since_installed
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.patience import PATIENCE
from tests.support.services import stand_in

ROUTES, POOLS = "httproutes", "inferencepools"
REF = {"name": "public", "namespace": "gateways"}


@pytest.fixture(scope="module")
def enabled(cluster: Cluster) -> Iterator[None]:
    """The operator with Gateways, before their kinds are there; afterwards as it was."""
    target = install.local_target(cluster.paths, os.environ)
    gateway.remove(cluster.paths, os.environ, Progress())
    install.install(target, Progress(), gateway=True)
    try:
        yield
    finally:
        install.install(target, Progress())
        gateway.remove(cluster.paths, os.environ, Progress())


@pytest.fixture(scope="module")
def kinds(cluster: Cluster, enabled: None) -> None:
    gateway.install(cluster.paths, os.environ, Progress())


def behind(name: str, *, routing: Any = None, **of_gateway: Any) -> JSON:
    """A service that a Gateway is to lead to."""
    asked = {"ref": REF, "hostnames": ["models.example.com"], **of_gateway}
    more = {} if routing is None else {"routing": routing}
    return stand_in(name, {"start_seconds": 1}, endpoint={"gateway": asked}, scaling={"replicas": 1}, **more)


def say(cluster: Cluster, plural: str, namespace: str, name: str, *conditions: tuple[str, str, str]) -> None:
    """As the controller of the Gateway: type, status and reason of each condition."""
    generation = cluster.must_get(plural, namespace, name)["metadata"]["generation"]
    said = [
        {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": "said by the test",
            "observedGeneration": generation,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for type_, status, reason in conditions
    ]
    parent = {"parentRef": REF, "controllerName": "example.com/gateway", "conditions": said}
    cluster.kubectl(
        *("patch", plural, name, "-n", namespace, "--subresource=status", "--type=merge"),
        "-p", json.dumps({"status": {"parents": [parent]}}),
    )  # fmt: skip


def leads_to(cluster: Cluster, namespace: str, name: str) -> str | None:
    """Kind of what the route leads to."""
    route = cluster.get(ROUTES, namespace, name)
    return None if route is None else str(route["spec"]["rules"][0]["backendRefs"][0]["kind"])


ATTACHED = (("Accepted", "True", "Accepted"), ("ResolvedRefs", "True", "ResolvedRefs"))


def test_before_the_kinds_are_there_a_service_serves_and_says_so(
    cluster: Cluster, enabled: None, namespace: str
) -> None:
    cluster.apply(behind("early"), namespace)
    cluster.wait_condition(namespace, "early", "Ready", "True", timeout=PATIENCE)
    cluster.wait_condition(namespace, "early", "RoutingReady", "False", reason="GatewayAPIMissing", timeout=PATIENCE)
    gateway.install(cluster.paths, os.environ, Progress())
    cluster.wait_condition(namespace, "early", "RoutingReady", "Unknown", reason="RouteNotAccepted", timeout=PATIENCE)
    assert cluster.must_get(ROUTES, namespace, "early")["spec"]["hostnames"] == ["models.example.com"]


def test_a_route_and_a_pool_follow_their_service(cluster: Cluster, kinds: None, namespace: str) -> None:
    cluster.apply(behind("chat", routing={"mode": "pool"}, byModel=True, hostnames=["a.example.com"]), namespace)
    cluster.wait_condition(namespace, "chat", "Ready", "True", timeout=PATIENCE)
    pool = eventually("a pool", lambda: cluster.get(POOLS, namespace, "chat"), PATIENCE)
    assert pool["spec"]["endpointPickerRef"]["name"] == "chat-epp"

    eventually("it leads to the pool", lambda: leads_to(cluster, namespace, "chat") == "InferencePool", PATIENCE)
    (rule,) = cluster.must_get(ROUTES, namespace, "chat")["spec"]["rules"]
    assert [match["headers"][0]["value"] for match in rule["matches"]] == ["chat"]
    cluster.wait_condition(namespace, "chat", "RoutingReady", "Unknown", timeout=PATIENCE)
    for plural in (ROUTES, POOLS):
        say(cluster, plural, namespace, "chat", *ATTACHED)
    cluster.wait_condition(namespace, "chat", "RoutingReady", "True", reason="Attached", timeout=PATIENCE)
    say(cluster, ROUTES, namespace, "chat", ("Accepted", "False", "NotAllowedByListeners"), ATTACHED[1])
    told = cluster.wait_condition(namespace, "chat", "RoutingReady", "False", timeout=PATIENCE)
    assert "NotAllowedByListeners" in told["message"]
    cluster.must_have(namespace, "chat", Ready="True")

    cluster.patch("llmservices", namespace, "chat", {"spec": {"scaling": {"replicas": 0}}})
    eventually("at zero it leads to the Service", lambda: leads_to(cluster, namespace, "chat") == "Service", PATIENCE)
    cluster.patch("llmservices", namespace, "chat", {"spec": {"scaling": {"replicas": 1}}})
    eventually("and back to the pool", lambda: leads_to(cluster, namespace, "chat") == "InferencePool", PATIENCE)

    before = cluster.must_get(ROUTES, namespace, "chat")["metadata"]["uid"]
    cluster.patch(ROUTES, namespace, "chat", {"spec": {"hostnames": ["theirs.example.com"]}})
    restored = ["a.example.com"]
    eventually(
        "what was changed by hand is restored",
        lambda: cluster.must_get(ROUTES, namespace, "chat")["spec"]["hostnames"] == restored,
        PATIENCE,
    )
    cluster.kubectl("delete", ROUTES, "chat", "-n", namespace)
    made = eventually("it is made anew", lambda: cluster.get(ROUTES, namespace, "chat"), PATIENCE)
    assert made["metadata"]["uid"] != before

    cluster.patch("llmservices", namespace, "chat", {"spec": {"endpoint": None, "routing": None}})
    eventually("no route", lambda: cluster.get(ROUTES, namespace, "chat") is None, PATIENCE)
    eventually("no pool", lambda: cluster.get(POOLS, namespace, "chat") is None, PATIENCE)
    assert cluster.condition(namespace, "chat", "RoutingReady") is None


def test_what_the_api_server_fills_in_is_no_difference(cluster: Cluster, kinds: None, namespace: str) -> None:
    asked = behind("still", routing={"mode": "pool"}, hostnames=[], ref={"name": "quiet"})
    cluster.apply(asked, namespace)
    cluster.wait_condition(namespace, "still", "Ready", "True", timeout=PATIENCE)
    eventually("it leads to the pool", lambda: leads_to(cluster, namespace, "still") == "InferencePool", PATIENCE)
    generations = [cluster.must_get(each, namespace, "still")["metadata"]["generation"] for each in (ROUTES, POOLS)]
    versions = [cluster.must_get(each, namespace, "still")["metadata"]["resourceVersion"] for each in (ROUTES, POOLS)]
    # An edit that concerns neither, of which the operator's next writes are seen.
    cluster.patch("llmservices", namespace, "still", {"spec": {"scaling": {"replicas": 2}}})
    eventually("two replicas", lambda: cluster.status(namespace, "still").get("readyReplicas") == 2, PATIENCE)
    after = [cluster.must_get(each, namespace, "still")["metadata"]["resourceVersion"] for each in (ROUTES, POOLS)]
    assert after == versions
    assert generations[1] == 1


def test_of_two_services_the_second_gets_no_route_for_the_same_requests(
    cluster: Cluster, kinds: None, namespace: str
) -> None:
    cluster.apply(behind("first", hostnames=["one.example.com"]), namespace)
    eventually("a route", lambda: cluster.get(ROUTES, namespace, "first"), PATIENCE)
    with own_namespace(cluster, f"{namespace}-b"[:60]) as other:
        cluster.apply(behind("second", hostnames=["one.example.com"]), other)
        told = cluster.wait_condition(other, "second", "RoutingReady", "False", reason="RouteTaken", timeout=PATIENCE)
        said = "one.example.com at Gateway gateways/public is taken by an LLMService of another namespace."
        assert said in told["message"]
        cluster.wait_condition(other, "second", "Ready", "True", timeout=PATIENCE)
        assert cluster.get(ROUTES, other, "second") is None
        gateway_of_it = {"spec": {"endpoint": {"gateway": {"hostnames": ["two.example.com"]}}}}
        cluster.patch("llmservices", other, "second", gateway_of_it)
        eventually("a route of its own", lambda: cluster.get(ROUTES, other, "second"), PATIENCE)


def test_the_operator_uses_the_rights_that_gateways_give(cluster: Cluster, kinds: None) -> None:
    """All but `get`, with which it reads what another owner has."""
    used, refused = since_installed(cluster)
    assert refused == set()
    for group, resource in (("gateway.networking.k8s.io", ROUTES), ("inference.networking.k8s.io", POOLS)):
        verbs = {right.verb for right in used if (right.group, right.resource) == (group, resource)}
        assert verbs - {"get"} == {"list", "watch", "create", "patch", "delete"}
