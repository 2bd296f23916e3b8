"""GPUs by claims of devices: by the real scheduler, on devices that are names and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from localcluster import install
from localcluster.network import NODE
from localcluster.progress import Progress
from tests.support.audit import assert_rights_are_used
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.device_driver import DRIVER, allocated, gib, kubelet_plugin, published
from tests.support.operator import scale_operator, wait_for_spec
from tests.support.patience import KUBECTL_TIMEOUT, PATIENCE
from tests.support.services import SMALL, merge, stand_in
from tests.support.simulated_node import TOLERATION, simulated_node

pytestmark = pytest.mark.full

QWEN_7B = {
    "numHiddenLayers": 28,
    "hiddenSize": 3584,
    "numAttentionHeads": 28,
    "numKeyValueHeads": 4,
    "vocabSize": 152064,
    "intermediateSize": 18944,
    "maxPositionEmbeddings": 32768,
}
"""Facts of a model that takes some 20 GiB."""
CLAIM = {"claim": {"deviceClass": DRIVER, "driver": DRIVER}}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "theirs"},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}},
}


def planned(name: str, facts: Mapping[str, Any], accelerator: JSON, **spec: Any) -> JSON:
    """A service of the stand-in that is planned as this model on GPUs."""
    made: JSON = {"model": {"architecture": dict(facts)}, "accelerator": {"type": "nvidia", **accelerator}}
    made |= {"precision": {"dtype": "auto"}, "fitPolicy": "Enforce", "batching": {"maxModelLen": None}}
    return stand_in(name, {"start_seconds": 1}, **merge(made, spec))


def test_without_the_value_a_service_says_so_and_no_pod_is_made(cluster: Cluster, namespace: str) -> None:
    cluster.apply(planned("off", SMALL, CLAIM), namespace)
    told = cluster.wait_condition(namespace, "off", "Ready", "False", reason="AdmissionRefused", timeout=PATIENCE)
    assert "dynamicResources.enabled" in told["message"]
    assert not cluster.pods(namespace, "off")


@pytest.fixture(scope="module")
def enabled(cluster: Cluster) -> Iterator[None]:
    """The operator with claims, and afterwards as it was."""
    target = install.local_target(cluster.paths, os.environ)
    install.install(target, Progress(), dynamic_resources=True)
    try:
        yield
    finally:
        install.install(target, Progress())


ON_SIMULATED = {"podTemplate": {"spec": {"tolerations": [TOLERATION]}}}


def test_the_scheduler_takes_a_device_that_is_large_enough(cluster: Cluster, enabled: None, namespace: str) -> None:
    devices = {"small": [gib(15, "Tesla T4")] * 2, "large": [gib(79.6)]}
    with simulated_node(cluster, "small"), simulated_node(cluster, "large"), published(cluster, devices):
        cluster.apply(planned("chosen", QWEN_7B, CLAIM, **ON_SIMULATED), namespace)

        def place() -> list[tuple[str, str]]:
            pods = cluster.pods(namespace, "chosen")
            return allocated(cluster, namespace, pods[0]) if pods and "nodeName" in pods[0]["spec"] else []

        assert eventually("a device", place, PATIENCE) == [("large", "gpu-0")]
        fits = cluster.wait_condition(namespace, "chosen", "Fits", "True", timeout=PATIENCE)
        assert "The claim asks for devices of at least " in fits["message"]
        cluster.kubectl("delete", "llms", "chosen", "-n", namespace, KUBECTL_TIMEOUT)
        eventually("no template of it", lambda: not cluster.list("resourceclaimtemplates", namespace), PATIENCE)


def test_a_plan_that_needs_more_than_any_device_says_so_before_a_pod_exists(
    cluster: Cluster, enabled: None, namespace: str
) -> None:
    with simulated_node(cluster, "small"), published(cluster, {"small": [gib(15, "Tesla T4")]}):
        cluster.apply(planned("wide", QWEN_7B, CLAIM, **ON_SIMULATED), namespace)
        told = cluster.wait_condition(namespace, "wide", "Ready", "False", reason="DoesNotFit", timeout=PATIENCE)
        assert f"the largest of class {DRIVER} has 15.0 GiB" in told["message"]
        assert not cluster.pods(namespace, "wide")
        assert not cluster.list("resourceclaimtemplates", namespace)


def test_it_serves_with_the_devices_of_its_own_claim_and_of_a_users_template(
    cluster: Cluster, enabled: None, namespace: str
) -> None:
    with kubelet_plugin(cluster), published(cluster, {NODE: [gib(0.5), gib(0.5), gib(79.6)]}):
        cluster.apply(planned("own", SMALL, CLAIM), namespace)
        cluster.wait_condition(namespace, "own", "Ready", "True", timeout=PATIENCE)
        pod = cluster.pod(namespace, "own")
        assert allocated(cluster, namespace, pod) == [(NODE, "gpu-2")], "the others are too small"
        (server,) = pod["spec"]["containers"]
        assert server["resources"]["claims"] == [{"name": "gpus"}]

        cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(TEMPLATE))
        theirs = {"memory": "80Gi", "resourceClaims": [{"name": "a", "resourceClaimTemplateName": "theirs"}]}
        cluster.apply(planned("passed", SMALL, theirs), namespace)
        cluster.wait_condition(namespace, "passed", "Ready", "True", timeout=PATIENCE)
        ((node, device),) = allocated(cluster, namespace, cluster.pod(namespace, "passed"))
        assert (node, device in ("gpu-0", "gpu-1")) == (NODE, True)

        cluster.apply(planned("late", SMALL, CLAIM), namespace)
        told = cluster.wait_condition(namespace, "late", "Ready", "False", reason="InsufficientGPUs", timeout=PATIENCE)
        assert "cannot allocate all claims" in told["message"]
        cluster.kubectl("delete", "llms", "own", "-n", namespace, KUBECTL_TIMEOUT)
        cluster.wait_condition(namespace, "late", "Ready", "True", timeout=PATIENCE)
        cluster.kubectl("delete", "llms", "late", "passed", "-n", namespace, KUBECTL_TIMEOUT)
        eventually("no pod holds a device", lambda: not cluster.list("pods", namespace), PATIENCE)


def test_the_value_grants_what_is_used_and_nothing_else(cluster: Cluster, enabled: None, namespace: str) -> None:
    """Of the requests since the value is on, the tests above included: `resource.k8s.io` has no other."""
    with simulated_node(cluster, "large"), published(cluster, {"large": [gib(79.6)]}):
        cluster.apply(planned("met", QWEN_7B, CLAIM, scaling={"replicas": 0}), namespace)
        made = eventually("its template", lambda: cluster.list("resourceclaimtemplates", namespace), PATIENCE)
        name = made[0]["metadata"]["name"]
        with scale_operator(cluster, 0):
            cluster.kubectl("delete", "resourceclaimtemplates", name, "-n", namespace, KUBECTL_TIMEOUT)
            theirs = {**TEMPLATE, "metadata": {"name": name}}
            cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(theirs))
        told = cluster.wait_condition(namespace, "met", "Accepted", "False", reason="NameConflict", timeout=PATIENCE)
        assert f"ResourceClaimTemplate {name} exists" in told["message"]
        cluster.kubectl("delete", "resourceclaimtemplates", name, "-n", namespace, KUBECTL_TIMEOUT)
        cluster.wait_condition(namespace, "met", "Accepted", "True", timeout=PATIENCE)
        for number in range(6):  # as many revisions as are kept, and one more
            edit = {"accelerator": {"claim": None}, "batching": {"maxNumSeqs": number + 1}}
            cluster.patch("llmservices", namespace, "met", {"spec": edit})
            wait_for_spec(cluster, namespace, "met")
        eventually("no template", lambda: not cluster.list("resourceclaimtemplates", namespace), PATIENCE)
    assert_rights_are_used(cluster, "resource.k8s.io")
