"""What the operator's token can do for autoscaling beyond what RBAC says: one annotation of pods, and ScaledObjects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e._chart import AUTOSCALED
from tests.e2e.policies import (
    CONTAINER,
    LABELS,
    POD,
    RELEASE,
    assert_types_checked,
    metadata,
    operators_token,
    paused_owner,
    release,
)
from tests.support.cluster import Cluster, eventually
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import idle, merge
from tests.support.token import Token

pytestmark = pytest.mark.parallel

JSON = dict[str, Any]

NAMESPACE = "policy-autoscaling"


@pytest.fixture(scope="module")
def owner(cluster: Cluster) -> Iterator[JSON]:
    with release(cluster, NAMESPACE, AUTOSCALED):
        yield paused_owner(cluster, NAMESPACE, idle("own", paused=True))


@pytest.fixture(scope="module")
def token(cluster: Cluster, owner: JSON) -> Iterator[Token]:
    with operators_token(cluster, NAMESPACE) as token:
        yield token


SCALER = f"{RELEASE}-activator"
TRIGGER: JSON = {
    "type": "external-push",
    "metricType": "AverageValue",
    "metadata": {"scalerAddress": f"{SCALER}.{NAMESPACE}.svc:9443"},
    "authenticationRef": {"kind": "ClusterTriggerAuthentication", "name": f"{NAMESPACE}.{SCALER}"},
}
TARGET = {"apiVersion": "llmservice.dev/v1alpha1", "kind": "LLMService", "name": "own"}
ANY_OBJECT = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SCALED_OBJECTS: JSON = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "scaledobjects.keda.sh"},
    "spec": {
        "group": "keda.sh",
        "scope": "Namespaced",
        "names": {"kind": "ScaledObject", "plural": "scaledobjects", "singular": "scaledobject"},
        "versions": [
            {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": ANY_OBJECT}},
        ],
    },
}


@pytest.fixture(scope="module")
def scaled_objects(cluster: Cluster) -> Iterator[None]:
    """The kind is served: by KEDA's CRD where that is installed, else by one that takes anything."""
    name = SCALED_OBJECTS["metadata"]["name"]
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    was_there = cluster.api.get(f"{crds}/{name}").is_success
    if not was_there:
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(SCALED_OBJECTS))
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", KUBECTL_TIMEOUT)
    yield
    # Somebody who installed KEDA meanwhile changed its spec.
    if not was_there and cluster.api.get(f"{crds}/{name}").json()["metadata"]["generation"] == 1:
        cluster.kubectl("delete", "crd", name)


def scaled_object(owner: JSON, target: JSON = TARGET, trigger: JSON = TRIGGER) -> JSON:
    spec = {"scaleTargetRef": target, "minReplicaCount": 1, "maxReplicaCount": 3, "triggers": [trigger]}
    meta = metadata("own", owner)
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": meta, "spec": spec}


def test_a_scaled_object_of_its_service_and_of_this_releases_scaler_is_made(
    token: Token, owner: JSON, scaled_objects: None
) -> None:
    made = scaled_object(owner)
    # The CRD of a moment ago may not be served by every handler yet.
    eventually("a ScaledObject", lambda: token.apply("scaledobjects", made).code < 300, 30)
    assert token.apply("scaledobjects", merge(made, {"spec": {"maxReplicaCount": 5}})).code < 300
    assert token.delete("scaledobjects", "own").code < 300


ITS_SERVICE = "scales the LLMService that owns it"
ITS_SCALER = "with this release's scaler and its certificate only"
BAD_TRIGGERS: dict[str, JSON] = {
    "another address": {"metadata": {"scalerAddress": "elsewhere.example:9443"}},
    "an address of the environment": {"metadata": {"scalerAddressFromEnv": "ADDRESS"}},
    "no address": {"metadata": {"scalerAddress": None}},
    "another kind of trigger": {"type": "cron"},
    "another certificate": {"authenticationRef": {"name": "other"}},
    "a certificate of the namespace": {"authenticationRef": {"kind": "TriggerAuthentication"}},
    "no certificate": {"authenticationRef": None},
}
BAD_TARGETS: dict[str, JSON] = {
    "another service": {"name": "other"},
    "a Deployment": {"apiVersion": "apps/v1", "kind": "Deployment"},
    "another group": {"apiVersion": "example.org/v1"},
    "a Deployment by default": {"apiVersion": None, "kind": None},
}


@pytest.mark.parametrize("change", BAD_TRIGGERS.values(), ids=BAD_TRIGGERS.keys())
def test_no_scaled_object_asks_another_scaler(token: Token, owner: JSON, scaled_objects: None, change: JSON) -> None:
    body = scaled_object(owner, trigger=merge(TRIGGER, change))
    answer = token.create("scaledobjects", body)
    assert (answer.code, ITS_SCALER in answer.message) == (403, True), answer


@pytest.mark.parametrize("change", BAD_TARGETS.values(), ids=BAD_TARGETS.keys())
def test_no_scaled_object_scales_anything_else(token: Token, owner: JSON, scaled_objects: None, change: JSON) -> None:
    body = scaled_object(owner, target=merge(TARGET, change))
    answer = token.create("scaledobjects", body)
    assert (answer.code, ITS_SERVICE in answer.message) == (403, True), answer


COST = "controller.kubernetes.io/pod-deletion-cost"


def server_pod(labels: JSON | None = None) -> JSON:
    """A pod that no node takes, so that nothing but the tests changes it."""
    meta = {"name": "own-pod", "labels": LABELS if labels is None else labels, "annotations": {"kept": "as it is"}}
    spec = merge(POD, {"nodeSelector": {"no": "node"}})
    resources = {"requests": {"cpu": "1m", "memory": "1Mi"}}
    spec["containers"] = [CONTAINER | {"resources": resources}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


@pytest.fixture
def pod(cluster: Cluster, owner: JSON) -> Iterator[str]:
    made = server_pod()
    cluster.apply(made, NAMESPACE)
    yield made["metadata"]["name"]
    cluster.kubectl("delete", "pod", made["metadata"]["name"], "-n", NAMESPACE, "--grace-period=0", "--force")


def test_the_deletion_cost_of_its_pods_is_written_and_removed(cluster: Cluster, token: Token, pod: str) -> None:
    uid = cluster.must_get("pods", NAMESPACE, pod)["metadata"]["uid"]
    for cost in ("0", "7", "-2147483648", "2147483647"):
        answer = token.merge("pods", pod, {"metadata": {"uid": uid, "annotations": {COST: cost}}})
        assert answer.code < 300, answer
        assert cluster.must_get("pods", NAMESPACE, pod)["metadata"]["annotations"] == {"kept": "as it is", COST: cost}
    assert token.merge("pods", pod, {"metadata": {"annotations": {COST: None}}}).code < 300


NOTHING_ELSE = "changes nothing of a pod but the annotation"
AN_INTEGER = "must be a 32bit integer"
OWNER_OF_A_POD = {"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "0"}
EVERY_POD_HAS = [
    {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for state in ("not-ready", "unreachable")
]
"""Tolerations that the API server adds, and lets nobody remove."""
OF_PODS: dict[str, tuple[JSON, str]] = {
    "a label": ({"metadata": {"labels": {"a": "b"}}}, NOTHING_ELSE),
    "a label removed": ({"metadata": {"labels": {"llmservice.dev/service": None}}}, NOTHING_ELSE),
    "another annotation": ({"metadata": {"annotations": {"a": "b"}}}, NOTHING_ELSE),
    "another annotation changed": ({"metadata": {"annotations": {"kept": "b", COST: "1"}}}, NOTHING_ELSE),
    "another annotation removed": ({"metadata": {"annotations": {"kept": None, COST: "1"}}}, NOTHING_ELSE),
    "a finalizer": ({"metadata": {"finalizers": ["example.org/kept"]}}, NOTHING_ELSE),
    "an owner": ({"metadata": {"ownerReferences": [OWNER_OF_A_POD]}}, NOTHING_ELSE),
    "a deadline": ({"spec": {"activeDeadlineSeconds": 1}}, NOTHING_ELSE),
    "a toleration": ({"spec": {"tolerations": [*EVERY_POD_HAS, {"operator": "Exists"}]}}, NOTHING_ELSE),
    "an image": (
        {"spec": {"containers": [server_pod()["spec"]["containers"][0] | {"image": "registry.local/other:1"}]}},
        NOTHING_ELSE,
    ),
    "a cost that is a word": ({"metadata": {"annotations": {COST: "high"}}}, AN_INTEGER),
    "a cost with a sign": ({"metadata": {"annotations": {COST: "+5"}}}, AN_INTEGER),
    "a cost with zeros": ({"metadata": {"annotations": {COST: "007"}}}, AN_INTEGER),
    "an empty cost": ({"metadata": {"annotations": {COST: ""}}}, AN_INTEGER),
}


@pytest.mark.parametrize(("change", "message"), OF_PODS.values(), ids=OF_PODS.keys())
def test_nothing_else_of_its_pods_is_changed(
    cluster: Cluster, token: Token, pod: str, change: JSON, message: str
) -> None:
    before = cluster.must_get("pods", NAMESPACE, pod)
    answer = token.merge("pods", pod, change)
    # The API server's own validation comes before policies.
    assert (answer.code, message in answer.message) == (422 if message == AN_INTEGER else 403, True), answer
    after = cluster.must_get("pods", NAMESPACE, pod)
    assert (after["spec"], after["metadata"]["annotations"]) == (before["spec"], before["metadata"]["annotations"])


@pytest.mark.parametrize("missing", sorted(LABELS))
def test_pods_of_others_get_no_cost(cluster: Cluster, token: Token, owner: JSON, missing: str) -> None:
    foreign = server_pod({key: value for key, value in LABELS.items() if key != missing})
    foreign["metadata"]["name"] = "their-pod"
    cluster.apply(foreign, NAMESPACE)
    answer = token.merge("pods", "their-pod", {"metadata": {"annotations": {COST: "1"}}})
    cluster.kubectl("delete", "pod", "their-pod", "-n", NAMESPACE, "--grace-period=0", "--force")
    assert (answer.code, "annotates pods of LLMServices only" in answer.message) == (403, True), answer


def test_its_pods_are_neither_made_nor_deleted_by_it(token: Token, pod: str) -> None:
    assert token.create("pods", server_pod()).code == 403
    assert token.delete("pods", pod).code == 403


def test_the_api_server_has_no_warning_about_the_policy(cluster: Cluster, token: Token) -> None:
    assert_types_checked(cluster, NAMESPACE, "operator")
