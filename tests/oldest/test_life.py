"""A service from its first apply to its end beside the oldest Kubernetes: what needs pods that run, on kwok's nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from localcluster.programs import OLDEST_KUBERNETES
from tests.e2e.conftest import own_namespace
from tests.support.audit import requests_since, writes_since
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.local_operator import LocalOperator
from tests.support.services import merge
from tests.support.watching import settled

NAME = "chat"
WRITES = 8
"""Of the first rollout: three children, and the phases of a start in the status."""


def service(**spec: object) -> JSON:
    """A model with its architecture stated, on simulated nodes: nothing has to be read or run."""
    tolerations = [{"key": "kwok.x-k8s.io/node", "operator": "Exists", "effect": "NoSchedule"}]
    architecture = {"numHiddenLayers": 28, "hiddenSize": 3584, "numAttentionHeads": 28, "numKeyValueHeads": 4}
    more = {"intermediateSize": 18944, "vocabSize": 152064, "maxPositionEmbeddings": 32768}
    base = {
        "model": {"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "architecture": {**architecture, **more}},
        "batching": {"maxModelLen": 8192, "maxNumSeqs": 64},
        "podTemplate": {"spec": {"nodeSelector": {"type": "kwok"}, "tolerations": tolerations}},
    }
    manifest = {"apiVersion": "llmservice.dev/v1alpha1", "kind": "LLMService", "metadata": {"name": NAME}}
    return {**manifest, "spec": merge(base, spec)}


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[str]:
    """The namespace of a service that is Ready."""
    with own_namespace(cluster, "oldest-life") as name:
        cluster.kubectl("delete", "resourcequota", "team", "-n", name)
        moment = time.time()
        cluster.apply(service(), name)
        cluster.wait_condition(name, NAME, "Ready", "True", timeout=60)
        made = [request for request in writes_since(cluster, moment) if request.namespace == name]
        assert len([request for request in made if request.resource != "events"]) <= WRITES
        yield name


def deployment(cluster: Cluster, namespace: str) -> JSON:
    return cluster.must_get("deployments", namespace, NAME)


def test_the_server_is_of_that_version(cluster: Cluster) -> None:
    assert json.loads(cluster.kubectl("get", "--raw", "/version"))["gitVersion"] == f"v{OLDEST_KUBERNETES}"


def test_an_edit_rolls_out(cluster: Cluster, served: str) -> None:
    before = cluster.pod(served, NAME)["metadata"]["name"]
    cluster.patch("llmservices", served, NAME, {"spec": {"batching": {"maxNumSeqs": 128}}})
    cluster.wait_condition(served, NAME, "Ready", "True", timeout=60)

    def replaced() -> bool:
        names = [pod["metadata"]["name"] for pod in cluster.pods(served, NAME)]
        return len(names) == 1 and before not in names

    eventually("only a pod of the new revision", replaced, 60)


def test_drift_is_put_right(cluster: Cluster, served: str) -> None:
    wanted = deployment(cluster, served)["spec"]["template"]["spec"]["containers"][0]["image"]
    change = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "registry.local/other:1"}]
    cluster.patch("deployments", served, NAME, change, kind="json")

    def repaired() -> bool:
        return bool(deployment(cluster, served)["spec"]["template"]["spec"]["containers"][0]["image"] == wanted)

    eventually("the image of before", repaired, 10)


def test_a_restarted_operator_writes_nothing(cluster: Cluster, served: str, operator: LocalOperator) -> None:
    settled(cluster, served)
    moment = time.time()
    operator.restart()
    # What it does to a second service shows that it has looked at the first one.
    cluster.apply(merge(service(scaling={"replicas": 0}), {"metadata": {"name": "witness"}}), served)
    cluster.wait_condition(served, "witness", "Accepted", "True", timeout=60)
    written = [request for request in writes_since(cluster, moment) if request.namespace == served]
    assert [request for request in written if not request.name.startswith("witness")] == []


def test_zero_and_back(cluster: Cluster, served: str) -> None:
    cluster.patch("llmservices", served, NAME, {"spec": {"scaling": {"replicas": 0}}})
    eventually("no pod", lambda: not cluster.pods(served, NAME), 60)
    cluster.patch("llmservices", served, NAME, {"spec": {"scaling": {"replicas": 1}}})
    cluster.wait_condition(served, NAME, "Ready", "True", timeout=60)


REFUSED: dict[str, tuple[JSON, str]] = {
    # The API server would leave it out in silence, and the pod would start without its model.
    "image-volume": ({"model": {"uri": "image://registry.local/m:1#m"}}, "feature gate ImageVolume"),
    "younger-field": (
        {"podTemplate": {"spec": {"securityContext": {"seLinuxChangePolicy": "MountOption"}}}},
        ".securityContext.seLinuxChangePolicy: field not declared in schema: this version of Kubernetes does not know",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_this_version_lacks_is_refused_with_what_to_do(cluster: Cluster, served: str, name: str) -> None:
    spec, words = REFUSED[name]
    cluster.apply(merge(service(**spec), {"metadata": {"name": name}}), served)
    found = cluster.wait_condition(served, name, "Ready", "False", reason="AdmissionRefused", timeout=30)
    assert words in found["message"]
    assert cluster.get("deployments", served, name) is None


def test_a_deleted_service_leaves_nothing(cluster: Cluster, served: str) -> None:
    cluster.kubectl("delete", "llmservices.llmservice.dev", NAME, "-n", served)
    children = ("deployments", "services", "poddisruptionbudgets")
    eventually("no child", lambda: not any(cluster.get(plural, served, NAME) for plural in children), 60)
    eventually("no pod", lambda: not cluster.pods(served, NAME), 60)


def test_nothing_was_asked_that_is_deprecated_or_refused(cluster: Cluster) -> None:
    """Of all tests so far: the API server marks what a later version drops, and answers 403 where a right lacks."""
    asked = list(requests_since(cluster, 0))
    assert asked
    assert {(request.verb, request.resource) for request in asked if request.code == 403} == set()
    assert {(request.group, request.resource) for request in asked if request.is_deprecated} == set()
