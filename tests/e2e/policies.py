"""A release of the chart of which only the service account, its roles and the policies are there."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.e2e._chart import render
from tests.e2e.conftest import make_namespace
from tests.support.cluster import Cluster

JSON = dict[str, Any]

RELEASE = "demo-llmservice-operator"
PARTS = ("ServiceAccount", "Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


@contextmanager
def release(cluster: Cluster, namespace: str, values: Mapping[str, Any]) -> Iterator[None]:
    """In a namespace of its own; no operator runs for it."""
    make_namespace(cluster, namespace)
    rendered = render(
        {"watch": {"namespaces": [namespace]}, "rbac": {"aggregate": False}, **values}, namespace=namespace
    )
    parts = [made for made in rendered if made["kind"] in PARTS]
    try:
        for made in parts:
            cluster.apply(made, namespace)
        yield
    finally:
        for made in parts:
            if "namespace" not in made["metadata"]:
                cluster.kubectl("delete", made["kind"].lower(), made["metadata"]["name"], "--ignore-not-found")
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


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
