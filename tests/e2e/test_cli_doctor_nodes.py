"""`llmservice doctor` about nodes with GPUs, of which none is right, and about a webhook that does not answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from localcluster.addons import forget_node
from localcluster.kube import Kubectl
from tests.e2e.test_cli_doctor import doctor, of
from tests.support.cluster import JSON, Cluster, CommandFailed

pytestmark = pytest.mark.parallel

TAINT = "llmservice.test/doctor"
GPU, PRODUCT = "nvidia.com/gpu", "nvidia.com/gpu.product"
UNKNOWN = "NVIDIA-Q9000"


@contextmanager
def gpu_node(cluster: Cluster, name: str, labels: Mapping[str, str], has: Mapping[str, str], **capacity: str) -> Any:
    """A node that no kubelet stands behind, with a taint that keeps all pods away."""
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "10", **has}
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "as the test says"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
        "status": {"capacity": {**amounts, **capacity}, "allocatable": amounts, "conditions": [ready]},
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(node))
    try:
        yield
    finally:
        forget_node(Kubectl(cluster.paths), name)


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[None]:
    """A node for each thing that can be wrong."""
    known = {PRODUCT: "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}
    with ExitStack() as stack:
        for name, labels, has, capacity in (
            ("doctor-no-plugin", known, {}, {}),
            ("doctor-unhealthy", known, {GPU: "3"}, {GPU: "4"}),
            ("doctor-no-label", {}, {GPU: "1"}, {}),
            ("doctor-unknown", {PRODUCT: UNKNOWN}, {GPU: "1"}, {}),
            ("doctor-slices", known, {"nvidia.com/mig-1g.5gb": "7"}, {}),
        ):
            stack.enter_context(gpu_node(cluster, name, labels, has, **capacity))
        yield


def said(found: JSON, check: str, words: str) -> JSON:
    """The finding with these words in it."""
    (one,) = [each for each in of(found, check) if words in each["evidence"]]
    return one


@pytest.mark.usefixtures("nodes")
def test_what_is_wrong_with_nodes_that_have_gpus(cluster: Cluster, namespace: str) -> None:
    code, found, _ = doctor(cluster, "-n", namespace)
    assert code == 1
    silent = said(found, "GPUs", f"nodes with the label {PRODUCT} offer no {GPU}")
    assert (silent["level"], "doctor-no-plugin" in silent["evidence"]) == ("problem", True)
    assert "doctor-slices" not in silent["evidence"], "its GPUs are offered as slices"
    assert "NVIDIA's device plugin" in silent["remedy"]
    broken = said(found, "GPUs", "not all GPUs of these nodes are healthy")
    assert (broken["level"], "doctor-unhealthy (3 of 4)" in broken["evidence"]) == ("warning", True)
    unlabelled = said(found, "GPU labels", "without a label of their product")
    assert (unlabelled["level"], "doctor-no-label" in unlabelled["evidence"]) == ("warning", True)
    assert f"kubectl label node NAME {PRODUCT}=PRODUCT" in unlabelled["remedy"]
    unknown = said(found, "GPU labels", "neither the catalogue nor a label says how much memory")
    assert f"doctor-unknown ({UNKNOWN})" in unknown["evidence"]
    tainted = said(found, "GPU taints", f"the taint {TAINT}:NoSchedule")
    assert {name for name in ("doctor-unhealthy", "doctor-unknown") if name in tainted["evidence"]} != set()
    assert "nvidia.com/mig-1g.5gb" in said(found, "MIG", "doctor-slices")["evidence"]


# Webhooks


@contextmanager
def webhook(cluster: Cluster, namespace: str, **hook: Any) -> Iterator[None]:
    """Asked about pods of the namespace, by a Service that nobody is behind."""
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "guard"}, "spec": {"ports": [{"port": 443}]}}
    cluster.apply(service, namespace)
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [
            {
                "name": "guard.example.com",
                "clientConfig": {"service": {"namespace": namespace, "name": "guard"}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 1,
                **hook,
            }
        ],
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(configuration))
    try:
        yield
    finally:
        cluster.kubectl("delete", "validatingwebhookconfiguration", namespace, "--wait=false")


def pod(labels: Mapping[str, str]) -> str:
    container = {
        "name": "main",
        "image": "registry.local/none",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": security}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any", "labels": dict(labels)}, "spec": spec}
    )


def refused(cluster: Cluster, namespace: str, labels: Mapping[str, str]) -> bool:
    """Whether the webhook keeps a pod with these labels from being created; a dry run asks it too."""
    try:
        cluster.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", stdin=pod(labels))
    except CommandFailed as error:
        if "guard.example.com" in str(error):
            return True
        raise
    return False


def test_a_webhook_without_which_no_pod_is_created(cluster: Cluster, namespace: str) -> None:
    with webhook(cluster, namespace):
        assert refused(cluster, namespace, {}), "what the finding says"
        code, found, _ = doctor(cluster, "-n", namespace)
        (one,) = [each for each in of(found, "webhooks") if each["level"] == "problem"]
    assert code == 1
    assert f"no pod can be created in {namespace}" in one["evidence"]
    assert f"{namespace} (guard.example.com)" in one["evidence"]
    assert "remove its webhook configuration" in one["remedy"]


def test_a_webhook_that_some_pods_need(cluster: Cluster, namespace: str) -> None:
    with webhook(cluster, namespace, objectSelector={"matchLabels": {"guarded": "yes"}}):
        assert refused(cluster, namespace, {"guarded": "yes"})
        assert not refused(cluster, namespace, {})
        _, found, _ = doctor(cluster, "-n", namespace)
        (one,) = [each for each in of(found, "webhooks") if "guard.example.com" in each["evidence"]]
    assert one["level"] == "warning"
    assert (
        f"with namespaceSelector kubernetes.io/metadata.name={namespace}; objectSelector guarded=yes" in one["evidence"]
    )
    _, found, _ = doctor(cluster, "-n", namespace)
    assert not [each for each in of(found, "webhooks") if "guard.example.com" in each["evidence"]]
