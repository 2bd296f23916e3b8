"""What tokens can do for services without a replica: the operator's on EndpointSlices and Leases, the activator's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e._chart import AUTOSCALED
from tests.e2e.policies import (
    RELEASE,
    assert_types_checked,
    metadata,
    operators_token,
    paused_owner,
    release,
    token_in_force,
    without,
)
from tests.support.cluster import JSON, Cluster
from tests.support.services import idle, merge
from tests.support.token import Answer, Token

pytestmark = pytest.mark.parallel

NAMESPACE = "policy-holding"
ACTIVATOR = f"{RELEASE}-activator"
MANAGER = "endpointslice.kubernetes.io/managed-by"
SERVICE = "kubernetes.io/service-name"


@pytest.fixture(scope="module")
def owner(cluster: Cluster) -> Iterator[JSON]:
    with release(cluster, NAMESPACE, AUTOSCALED | {"routing": {"enabled": True}}):
        yield paused_owner(cluster, NAMESPACE, idle("own", paused=True))


@pytest.fixture(scope="module")
def operator(cluster: Cluster, owner: JSON) -> Iterator[Token]:
    with operators_token(cluster, NAMESPACE) as token:
        yield token


@pytest.fixture(scope="module")
def activator(cluster: Cluster, owner: JSON) -> Iterator[Token]:
    def is_in_force(token: Token) -> bool:
        return "from 0 to 1 only" in scale(token, 0).message

    with token_in_force(cluster, NAMESPACE, ACTIVATOR, is_in_force) as token:
        yield token


def endpoint_slice(owner: JSON, name: str = "own-activator-ipv4", port: int = 12345, **endpoint: Any) -> JSON:
    ready = {"ready": True, "serving": True, "terminating": False}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata(name, owner, **{MANAGER: "llmservice.dev", SERVICE: "own"}),
        "addressType": "IPv6" if name.endswith("6") else "IPv4",
        "endpoints": [{"addresses": ["fd00::7" if name.endswith("6") else "10.9.8.7"], "conditions": ready} | endpoint],
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
    }


@pytest.mark.parametrize("port", [12345, 8000], ids=["to the activators", "past a router"])
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_the_slice_of_its_service_is_made_changed_and_deleted(
    operator: Token, owner: JSON, family: str, port: int
) -> None:
    name = f"own-{'replicas' if port == 8000 else 'activator'}-{family}"
    made = endpoint_slice(owner, name, port)
    for body in (made, merge(made, {"endpoints": []}), made | {"endpoints": None, "ports": None}):
        answer = operator.apply("endpointslices", body)
        assert answer.code < 300, answer
    assert may_delete(operator, name)


def may_delete(operator: Token, name: str) -> bool:
    """The operator of the tests' cluster, which sees every namespace, may have deleted it first: it is of no use."""
    return operator.delete("endpointslices", name).code in (200, 404)


LABELLED = "endpointslice.kubernetes.io/managed-by=llmservice.dev"
ITS_SERVICE = "ports of activators and without targetRef"
POD = {"kind": "Pod", "name": "theirs", "namespace": NAMESPACE}
REFUSED: dict[str, tuple[Any, str]] = {
    "the cluster's own": (lambda o: labelled(o, MANAGER, "endpointslice-controller.k8s.io"), LABELLED),
    "nobody's": (lambda o: labelled(o, MANAGER, None), LABELLED),
    "of another Service": (lambda o: labelled(o, SERVICE, "other"), ITS_SERVICE),
    "of no Service": (lambda o: labelled(o, SERVICE, None), ITS_SERVICE),
    "of another name": (lambda o: endpoint_slice(o, "own-abcde"), ITS_SERVICE),
    "a port of the models": (lambda o: endpoint_slice(o, port=8000), ITS_SERVICE),
    "a port of activators past a router": (lambda o: endpoint_slice(o, "own-replicas-ipv4"), ITS_SERVICE),
    "past another one's router": (lambda o: endpoint_slice(o, "other-replicas-ipv4", 8000), ITS_SERVICE),
    "a pod past a router": (lambda o: endpoint_slice(o, "own-replicas-ipv4", 8000, targetRef=POD), ITS_SERVICE),
    "a port of nodes": (lambda o: endpoint_slice(o, port=32768), ITS_SERVICE),
    "another port of the Service": (
        lambda o: endpoint_slice(o) | {"ports": [{"name": "https", "port": 12345, "protocol": "TCP"}]},
        ITS_SERVICE,
    ),
    "every port": (lambda o: merge(endpoint_slice(o), {"ports": [{"name": "http"}]}), ITS_SERVICE),
    "a pod": (lambda o: endpoint_slice(o, targetRef=POD), ITS_SERVICE),
    "without an owner": (lambda o: without("ownerReferences", endpoint_slice(o)), "as its controller"),
    "of another owner": (lambda o: endpoint_slice(o | {"name": "other"}), "as its controller"),
    "of a Service as owner": (
        lambda o: endpoint_slice(o | {"kind": "Service", "apiVersion": "v1"}),
        "as its controller",
    ),
}


def labelled(owner: JSON, label: str, value: str | None) -> JSON:
    return merge(endpoint_slice(owner), {"metadata": {"labels": {label: value}}})


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_no_other_slice_is_made(operator: Token, owner: JSON, make: Any, message: str) -> None:
    answer = operator.create("endpointslices", make(owner))
    assert (answer.code, message in answer.message) == (403, True), answer


@pytest.mark.parametrize("adopts", [True, False])
def test_a_slice_that_lost_its_owner_is_adopted_or_deleted(
    cluster: Cluster, operator: Token, owner: JSON, adopts: bool
) -> None:
    """Its LLMService was deleted with --cascade=orphan, and made again."""
    made = endpoint_slice(owner)
    cluster.apply(without("ownerReferences", made), NAMESPACE)
    if adopts:
        assert operator.apply("endpointslices", made).code < 300
    assert may_delete(operator, made["metadata"]["name"])


@pytest.fixture
def clusters_own(cluster: Cluster, owner: JSON) -> Iterator[str]:
    """As the EndpointSlice controller makes them: with the labels of the Service, so the operator's are among them."""
    made = labelled(owner, MANAGER, "endpointslice-controller.k8s.io")
    made["metadata"] |= {"name": "own-x7k2p"}
    del made["metadata"]["ownerReferences"]
    cluster.apply(made, NAMESPACE)
    yield "own-x7k2p"
    cluster.kubectl("delete", "endpointslice", "own-x7k2p", "-n", NAMESPACE)


def test_the_clusters_own_slices_are_neither_changed_nor_deleted(
    operator: Token, owner: JSON, clusters_own: str
) -> None:
    ours = {"metadata": {"labels": {MANAGER: "llmservice.dev"}, "ownerReferences": [owner]}}
    assert operator.merge("endpointslices", clusters_own, {"endpoints": []}).code == 403
    for answer in (
        operator.merge("endpointslices", clusters_own, ours),
        operator.delete("endpointslices", clusters_own),
    ):
        assert (answer.code, LABELLED in answer.message) == (403, True), answer


def lease(number: object) -> JSON:
    return {"metadata": {"name": f"llmservice-port-{number}"}, "spec": {"holderIdentity": "ns/own/uid"}}


def take_over(cluster: Cluster, token: Token, name: str) -> Answer:
    """Of a Lease as it is."""
    live = cluster.must_get("leases", NAMESPACE, name)
    return token.update("leases", merge(live, {"spec": {"holderIdentity": "ns/other/uid"}}))


def test_the_lease_of_a_port_is_made_and_taken_over(cluster: Cluster, operator: Token) -> None:
    for number in (10240, 32767):
        assert operator.create("leases", lease(number)).code < 300
    assert take_over(cluster, operator, "llmservice-port-10240").code < 300


@pytest.mark.parametrize("number", ["1", "10240x", "123456", "abcde"])
def test_no_other_lease_is_made(operator: Token, number: str) -> None:
    answer = operator.create("leases", lease(number))
    assert (answer.code, "Leases of its own names only" in answer.message) == (403, True), answer


def test_the_lease_of_somebody_else_is_not_taken_over(cluster: Cluster, operator: Token) -> None:
    theirs = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "theirs"}, "spec": {}}
    cluster.apply(theirs, NAMESPACE)
    answer = take_over(cluster, operator, "theirs")
    assert (answer.code, "Leases of its own names only" in answer.message) == (403, True), answer


def scale(token: Token, after: int, version: str | None = None) -> Answer:
    """Of what was read at that version, else of whatever there is."""
    read = {} if version is None else {"metadata": {"resourceVersion": version}}
    return token.merge("llmservices", "own/scale", {**read, "spec": {"replicas": after}})


def at(cluster: Cluster, replicas: int) -> str:
    """The version of the LLMService with so many."""
    made = cluster.patch("llmservices", NAMESPACE, "own", {"spec": {"scaling": {"replicas": replicas}}})
    version: str = made["metadata"]["resourceVersion"]
    return version


def replicas_of(cluster: Cluster) -> int:
    found: int = cluster.must_get("llmservices", NAMESPACE, "own")["spec"]["scaling"]["replicas"]
    return found


def test_the_activator_scales_from_zero_to_one(cluster: Cluster, activator: Token) -> None:
    at(cluster, 0)
    answer = scale(activator, 1, read(activator))
    assert (answer.code, replicas_of(cluster)) == (200, 1), answer


def read(token: Token) -> str:
    """The version of the Scale, as the activator reads it."""
    found = token.api.get(f"/apis/llmservice.dev/v1alpha1/namespaces/{NAMESPACE}/llmservices/own/scale").json()
    version: str = found["metadata"]["resourceVersion"]
    return version


@pytest.mark.parametrize(("before", "after"), [(0, 2), (0, 0), (0, 1000), (1, 0), (1, 2), (1, 1), (3, 1), (3, 0)])
def test_the_activator_scales_to_no_other_number(cluster: Cluster, activator: Token, before: int, after: int) -> None:
    at(cluster, before)
    answer = scale(activator, after)
    assert (answer.code, "from 0 to 1 only" in answer.message) == (403, True), answer
    assert replicas_of(cluster) == before


def test_of_a_number_that_another_wrote_meanwhile_nothing_is_changed(cluster: Cluster, activator: Token) -> None:
    """Two activators, or KEDA and one: the second writes nothing."""
    before = at(cluster, 0)
    at(cluster, 2)
    answer = scale(activator, 1, before)
    assert (answer.code, replicas_of(cluster)) == (409, 2), answer


def test_the_activator_writes_nothing_else(cluster: Cluster, activator: Token) -> None:
    at(cluster, 0)
    changes: dict[str, JSON] = {
        "llmservices": {"spec": {"scaling": {"replicas": 1}}},
        "llmservices/own/status": {"status": {"ready": "1/1"}},
        "deployments": {"spec": {"replicas": 1}},
        "services": {"spec": {}},
        "pods": {"metadata": {}},
    }
    for plural, body in changes.items():
        collection, _, rest = plural.partition("/")
        answer = activator.merge(collection, rest or "own", body)
        assert (answer.code, "cannot patch resource" in answer.message) == (403, True), answer


def test_the_activator_reads_no_secret_and_no_lease(cluster: Cluster, activator: Token) -> None:
    for path in ("/api/v1", "/apis/coordination.k8s.io/v1"):
        plural = "secrets" if path == "/api/v1" else "leases"
        assert activator.api.get(f"{path}/namespaces/{NAMESPACE}/{plural}").status_code == 403


def event(kind: str, version: str) -> JSON:
    about = {"kind": kind, "apiVersion": version, "name": "own", "namespace": NAMESPACE}
    return {"metadata": {"name": "woken"}, "involvedObject": about, "type": "Normal", "reason": "R", "message": "m"}


def test_the_activator_writes_events_of_services_only(activator: Token) -> None:
    assert activator.create("events", event("LLMService", "llmservice.dev/v1alpha1")).code < 300
    answer = activator.create("events", event("Pod", "v1"))
    assert (answer.code, "Events of LLMServices only" in answer.message) == (403, True), answer


def test_the_api_server_has_no_warning_about_the_policies(cluster: Cluster, operator: Token, activator: Token) -> None:
    for policy in ("operator", "activator"):
        assert_types_checked(cluster, NAMESPACE, policy)
