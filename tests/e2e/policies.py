"""A release of the chart of which only the service account, its roles and the policies are there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.e2e._chart import render
from tests.e2e.conftest import own_namespace
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.services import merge
from tests.support.token import Token

RELEASE = "demo-llmservice-operator"
LABELS = {"app.kubernetes.io/managed-by": "llmservice-operator", "llmservice.dev/service": "own"}
CONTAINER: JSON = {
    "name": "server",
    "image": "registry.local/pause:1",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
POD: JSON = {
    "containers": [CONTAINER],
    "automountServiceAccountToken": False,
    "securityContext": {"runAsNonRoot": True, "runAsUser": 2000, "seccompProfile": {"type": "RuntimeDefault"}},
}
PARTS = ("ServiceAccount", "Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


@contextmanager
def release(cluster: Cluster, namespace: str, values: Mapping[str, Any]) -> Iterator[None]:
    """In a namespace of its own; no operator runs for it."""
    given = {"watch": {"namespaces": [namespace]}, "rbac": {"aggregate": False}, **values}
    parts = [made for made in render(given, namespace=namespace) if made["kind"] in PARTS]
    with own_namespace(cluster, namespace):
        try:
            cluster.apply_all(parts, namespace)
            yield
        finally:
            for made in parts:
                if "namespace" not in made["metadata"]:
                    cluster.kubectl("delete", made["kind"].lower(), made["metadata"]["name"], "--ignore-not-found")


@contextmanager
def operators_token(cluster: Cluster, namespace: str) -> Iterator[Token]:
    """Requests with the token of that release's operator, from when its policy is in force."""

    def is_in_force(token: Token) -> bool:
        answer = token.create("configmaps", {"metadata": {"name": "probe"}})
        cluster.kubectl("delete", "configmap", "probe", "-n", namespace, "--ignore-not-found")
        return "must have the labels" in answer.message

    with token_in_force(cluster, namespace, RELEASE, is_in_force) as token:
        yield token


@contextmanager
def token_in_force(
    cluster: Cluster, namespace: str, account: str, is_in_force: Callable[[Token], bool]
) -> Iterator[Token]:
    """Requests with an account's token, from when a policy refuses what this function tries."""
    token = Token.of(cluster, namespace, account)
    with token.api:
        # The API server follows policies and roles with a delay of its own.
        eventually("the policy is in force", lambda: is_in_force(token), 60)
        yield token


def paused_owner(cluster: Cluster, namespace: str, service: Mapping[str, Any]) -> JSON:
    """Makes a paused LLMService and returns the owner reference that its children have."""
    cluster.apply(service, namespace)
    made = cluster.must_get("llmservices", namespace, service["metadata"]["name"])
    return {
        "apiVersion": made["apiVersion"],
        "kind": made["kind"],
        "name": made["metadata"]["name"],
        "uid": made["metadata"]["uid"],
        "controller": True,
    }


def without(key: str, body: Mapping[str, Any]) -> JSON:
    """The object, but for one key of its metadata."""
    made: JSON = copy.deepcopy(dict(body))
    del made["metadata"][key]
    return made


def metadata(name: str, owner: JSON, **labels: str) -> JSON:
    return {"name": name, "labels": LABELS | labels, "ownerReferences": [owner]}


def deployment(owner: JSON, name: str = "own", **pod: Any) -> JSON:
    labels = {"llmservice.dev/service": "own"}
    template = {"metadata": {"labels": labels}, "spec": merge(POD, pod)}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(name, owner), "spec": spec}


def assert_types_checked(cluster: Cluster, namespace: str, policy: str) -> None:
    """The API server checks the types of each expression against the kinds that a policy is about."""
    path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{namespace}.{RELEASE}.{policy}"
    status = eventually("types are checked", lambda: cluster.api.get(path).json().get("status"), 30)
    assert not status.get("typeChecking", {}).get("expressionWarnings"), status
