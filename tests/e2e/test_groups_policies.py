"""What the operator's token can do with LeaderWorkerSets and NetworkPolicies, where groups are enabled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.policies import (
    CONTAINER,
    POD,
    assert_types_checked,
    metadata,
    operators_token,
    paused_owner,
    release,
)
from tests.support.cluster import JSON, Cluster
from tests.support.groups import install_lws
from tests.support.services import idle, merge
from tests.support.token import Token

NAMESPACE = "policy-groups"
OTHER_PODS = {"matchLabels": {"llmservice.dev/service": "other"}}


@pytest.fixture(scope="module")
def owner(cluster: Cluster) -> Iterator[JSON]:
    install_lws(cluster)
    limits = {"admissionPolicies": {"tenants": {"enabled": True, "maxGPUs": 4}}}
    with release(cluster, NAMESPACE, {"groups": {"enabled": True}, **limits}):
        yield paused_owner(cluster, NAMESPACE, idle("own", paused=True))


@pytest.fixture(scope="module")
def token(cluster: Cluster, owner: JSON) -> Iterator[Token]:
    with operators_token(cluster, NAMESPACE) as token:
        yield token


def group(owner: JSON, gpus: int = 0, more: JSON | None = None, **pod: Any) -> JSON:
    """A set without replicas but in what it asks for."""
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    spec = merge(POD, {"containers": [CONTAINER | limits], **pod})
    template = {"workerTemplate": {"spec": spec}, "size": 2, "restartPolicy": "None", **(more or {})}
    body = {"replicas": 1 if gpus else 0, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata("own", owner),
        "spec": body,
    }


def policy(owner: JSON, name: str = "own", selector: JSON | None = None) -> JSON:
    own = {"matchLabels": {"llmservice.dev/service": "own"}}
    spec = {"podSelector": selector or own, "policyTypes": ["Ingress"], "ingress": []}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(name, owner),
        "spec": spec,
    }


def test_its_own_are_made(token: Token, owner: JSON) -> None:
    for plural, body in (("leaderworkersets", group(owner)), ("networkpolicies", policy(owner))):
        answer = token.apply(plural, body)
        assert answer.code < 300, answer


PRIVILEGED = CONTAINER | {"securityContext": {"privileged": True}}
REFUSED: dict[str, tuple[str, Any, str]] = {
    "a privileged pod": ("leaderworkersets", lambda o: group(o, containers=[PRIVILEGED]), "beyond `restricted`"),
    "a service account's token": (
        "leaderworkersets", lambda o: group(o, automountServiceAccountToken=True), "service account's token",
    ),
    "another template of leaders": (
        "leaderworkersets", lambda o: group(o, more={"leaderTemplate": {"spec": POD}}), "one template",
    ),
    "more GPUs than allowed": ("leaderworkersets", lambda o: group(o, gpus=3), "6 GPUs are more than the 4"),
    "a policy of another name": ("networkpolicies", lambda o: policy(o, "another"), "about the pods"),
    "a policy of other pods": ("networkpolicies", lambda o: policy(o, selector=OTHER_PODS), "about the pods"),
    "a policy of all pods": ("networkpolicies", lambda o: policy(o, selector={"matchLabels": {}}), "about the pods"),
}  # fmt: skip


@pytest.mark.parametrize(("plural", "make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_others_are_not(token: Token, owner: JSON, plural: str, make: Any, message: str) -> None:
    answer = token.apply(plural, make(owner))
    assert (answer.code, message in answer.message) == (403, True), answer


def test_rdma_devices_are_not_counted_as_gpus(token: Token, owner: JSON) -> None:
    body = group(owner, gpus=2)
    (container,) = body["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    container["resources"]["limits"]["rdma/ib"] = "8"
    answer = token.apply("leaderworkersets", body)
    assert answer.code < 300, answer
    assert token.apply("leaderworkersets", group(owner)).code < 300


SMALL = {"resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}}
GATES = [{"name": "llmservice.dev/group"}, {"name": "another.example/gate"}]
ONE_RACK = {
    "topologyKey": "rack",
    "labelSelector": {"matchLabels": {"a": "b"}},
    "matchLabelKeys": ["leaderworkerset.sigs.k8s.io/group-index"],
}
HELD = {
    **POD,
    "containers": [CONTAINER | SMALL],
    "schedulingGates": GATES,
    "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [ONE_RACK]}},
}
ANOTHER = [{"name": "another.example/gate"}]
CHANGES: dict[str, tuple[JSON, bool]] = {
    "its own gate goes": ({"schedulingGates": ANOTHER}, True),
    "the rack for all beside it": ({"schedulingGates": ANOTHER, "nodeSelector": {"rack": "r1"}}, True),
    "another gate goes": ({"schedulingGates": [{"name": "llmservice.dev/group"}]}, False),
    "all gates go": ({"schedulingGates": []}, False),
    "another image beside it": (
        {"schedulingGates": ANOTHER, "containers": [CONTAINER | SMALL | {"image": "registry.local/other:1"}]}, False,
    ),
    "another node beside it": ({"schedulingGates": ANOTHER, "nodeSelector": {"a": "b"}}, False),
}  # fmt: skip


@pytest.mark.parametrize(("change", "is_allowed"), CHANGES.values(), ids=CHANGES.keys())
def test_of_a_pod_its_own_gate_may_go(
    cluster: Cluster, token: Token, owner: JSON, change: JSON, is_allowed: bool
) -> None:
    name = f"held-{list(CHANGES.values()).index((change, is_allowed))}"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata(name, owner), "spec": HELD}
    cluster.apply(pod, NAMESPACE)
    answer = token.merge("pods", name, {"spec": change})
    assert (answer.code < 300) is is_allowed, answer
    assert is_allowed or (answer.code, "the scheduling gate llmservice.dev/group" in answer.message) == (403, True)


@pytest.mark.parametrize("name", ["operator", "tenants.gpus"])
def test_its_expressions_are_of_the_right_types(cluster: Cluster, token: Token, name: str) -> None:
    assert_types_checked(cluster, NAMESPACE, name)
