"""Flux's own controllers apply LLMServices from a Git repository and from a registry: docs/gitops.md."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.install import CPU_IMAGE, OPERATOR_IMAGE
from localcluster.paths import REPOSITORY
from scripts.kustomize_base import with_crd, write
from tests.e2e.conftest import own_namespace
from tests.support import rolling
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.documents import DOCS, blocks_of
from tests.support.flux import Flux, administrator, flux, without_finalizers
from tests.support.git_server import GitRepository, git_server
from tests.support.oci_registry import OciRegistry, oci_registry
from tests.support.operator import scale_operator
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import idle, stand_in

pytestmark = pytest.mark.full

NAMESPACE = "e2e-flux"
OPERATOR_NAMESPACE = "e2e-flux-operator"
PLATFORM = "platform"
PAGE = DOCS / "gitops.md"


@pytest.fixture(scope="module")
def running(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flux]:
    without_finalizers(cluster, NAMESPACE)
    with own_namespace(cluster, NAMESPACE), flux(cluster, NAMESPACE, tmp_path_factory.mktemp("flux")) as started:
        (commands,) = (block for block in blocks_of(PAGE, "sh") if "rolebinding" in block)
        cluster.run("bash", "-euc", commands.replace("team-a", NAMESPACE))
        yield started


@pytest.fixture
def repository(running: Flux, tmp_path: Path) -> Iterator[GitRepository]:
    with git_server(tmp_path) as served:
        yield served


def of_page(kind: str, name: str, manifest: str = "models", **spec: Any) -> JSON:
    """A manifest of docs/gitops.md under another name and without a namespace, with these fields of its own."""
    documents = [yaml.safe_load(block) for block in blocks_of(PAGE, "yaml")]
    (found,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, manifest)]
    return {**found, "metadata": {"name": name}, "spec": {**found["spec"], **spec}}


def git_source(name: str, repository: GitRepository) -> JSON:
    return of_page("GitRepository", name, url=repository.url)


def kustomization(name: str, source: str = "GitRepository", **spec: Any) -> JSON:
    reference = {"kind": source, "name": name}
    # Retries of what fails are soon; the interval itself is the annotation's.
    return of_page("Kustomization", name, sourceRef=reference, targetNamespace=NAMESPACE, retryInterval="5s", **spec)


def files(*services: JSON) -> dict[str, str]:
    return {f"{service['metadata']['name']}.yaml": yaml.safe_dump(service) for service in services}


def written(cluster: Cluster, name: str) -> JSON:
    """What every write of it changes, but the operator's of the status: who wrote which fields when."""
    metadata = cluster.must_get("llmservices", NAMESPACE, name)["metadata"]
    writers = [entry for entry in metadata["managedFields"] if entry.get("subresource") != "status"]
    return {"generation": metadata["generation"], "labels": metadata["labels"], "writers": writers}


def test_services_of_a_git_repository(cluster: Cluster, running: Flux, repository: GitRepository) -> None:
    name = "chats"
    first = repository.commit(files(stand_in("chat"), idle("resting")))
    running.apply(git_source(name, repository), kustomization(name))
    running.await_ready(name, "True", revision=first)
    cluster.must_have(NAMESPACE, "chat", Ready="True")
    (pod,) = rolling.pods(cluster, NAMESPACE, "chat")

    # Nothing differs: Flux reconciles, and nobody writes.
    before = {service: written(cluster, service) for service in ("chat", "resting")}
    assert [entry["manager"] for entry in before["chat"]["writers"]] == ["kustomize-controller"]
    for _ in range(3):
        running.reconcile(name)
    assert {service: written(cluster, service) for service in before} == before
    assert list(rolling.pods(cluster, NAMESPACE, "chat")) == [pod]

    # A change is rolled out, and Ready means the new one.
    changed = stand_in("chat", drain={"timeoutSeconds": 1}, batching={"maxModelLen": 256})
    second = repository.commit(files(changed, idle("resting")))
    running.reconcile(name)
    running.await_ready(name, "True", revision=second)
    cluster.must_have(NAMESPACE, "chat", Ready="True")
    (serving,) = rolling.pods(cluster, NAMESPACE, "chat")
    assert serving != pod

    # One that fails is said with its reason, and the one before serves on.
    broken = stand_in("chat", {"fails": "kv-cache-too-small"}, batching={"maxModelLen": 256})
    third = repository.commit(files(broken, idle("resting")))
    running.reconcile(name, timeout=150)
    ready = running.await_ready(name, "False", revision=third, timeout=150)
    assert ready["reason"] == "HealthCheckFailed"
    assert f"LLMService/{NAMESPACE}/chat" in ready["message"]
    assert "Failed" in ready["message"]
    stalled = cluster.condition(NAMESPACE, "chat", "Stalled") or {}
    assert stalled["reason"] == "KVCacheTooSmall"
    cluster.must_have(NAMESPACE, "chat", Available="True", Ready="False")
    assert is_ready(rolling.pods(cluster, NAMESPACE, "chat")[serving])

    # One that the API server refuses is not applied, and the message is ours.
    refused = stand_in("chat", scaling={"autoscaling": {"minReplicas": 3, "maxReplicas": 2}})
    fourth = repository.commit(files(refused, idle("resting")))
    running.reconcile(name, timeout=150)
    ready = running.await_ready(name, "False", revision=fourth)
    assert ready["reason"] == "ReconciliationFailed"
    assert "minReplicas" in ready["message"]
    assert rolling.pods(cluster, NAMESPACE, "chat").keys() >= {serving}

    # The way back is a commit; what is no longer in the source is deleted.
    fifth = repository.commit(files(changed))
    running.reconcile(name)
    running.await_ready(name, "True", revision=fifth)
    assert cluster.get("llmservices", NAMESPACE, "resting") is None
    eventually("its children are gone", lambda: cluster.get("deployments", NAMESPACE, "resting") is None, 60)
    assert list(rolling.pods(cluster, NAMESPACE, "chat")) == [serving], "the revision that served all the time"

    running.cluster.kubectl("delete", "kustomization", name, "-n", NAMESPACE, KUBECTL_TIMEOUT)
    assert cluster.get("llmservices", NAMESPACE, "chat") is None


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OciRegistry]:
    with oci_registry(tmp_path_factory.mktemp("registry")) as served:
        yield served


def push(registry: OciRegistry, name: str, content: dict[str, str], folder: Path) -> None:
    """As `flux push artifact` does: one layer, a compressed archive."""
    archive = folder / f"{name}.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for path, text in sorted(content.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text.encode()), 0o644
            packed.addfile(entry, io.BytesIO(text.encode()))
    registry.crane("append", "--oci-empty-base", "-f", str(archive), "-t", f"{registry.host}/deploy/{name}:latest")


def oci_source(name: str, registry: OciRegistry) -> JSON:
    return of_page("OCIRepository", name, url=f"oci://{registry.host}/deploy/{name}", insecure=True)


def operator_files(folder: Path) -> dict[str, str]:
    """The base for a namespace of its own, and an overlay: this cluster's images, and one namespace to serve."""
    write(folder, with_crd(REPOSITORY, OPERATOR_NAMESPACE))
    images = dict(zip(("llmservice-operator", "vllm-cpu"), (OPERATOR_IMAGE, CPU_IMAGE), strict=True))
    env = [
        {"name": "LLMSERVICE_NAMESPACES", "value": NAMESPACE},
        {"name": "LLMSERVICE_DEFAULT_CPU_IMAGE", "value": "vllm-cpu"},
    ]
    patch = {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "llmservice-operator", "namespace": OPERATOR_NAMESPACE},
        "spec": {"template": {"spec": {"containers": [{"name": "operator", "env": env}]}}},
    }  # fmt: skip
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["../base"],
        "images": [
            {"name": name, "newName": image.rpartition(":")[0], "newTag": image.rpartition(":")[2]}
            for name, image in images.items()
        ],
        "patches": [{"path": "one-namespace.yaml"}],
    }  # fmt: skip
    made = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.yaml")}
    return {**made, "here/kustomization.yaml": json.dumps(overlay), "here/one-namespace.yaml": json.dumps(patch)}


def test_services_of_an_oci_artifact(cluster: Cluster, running: Flux, registry: OciRegistry, tmp_path: Path) -> None:
    name = "artifact"
    push(registry, name, files(idle("first")), tmp_path)
    running.apply(oci_source(name, registry), kustomization(name, "OCIRepository"))
    running.await_ready(name, "True")
    cluster.must_have(NAMESPACE, "first", Ready="True")
    push(registry, name, files(idle("second")), tmp_path)
    running.reconcile(name, source="ocirepository")
    running.await_ready(name, "True")
    cluster.must_have(NAMESPACE, "second", Ready="True")
    assert cluster.get("llmservices", NAMESPACE, "first") is None


def test_the_operator_itself_and_a_service_that_waits_for_it(
    cluster: Cluster, running: Flux, repository: GitRepository, tmp_path: Path
) -> None:
    """The CRD stays when the operator goes, and with it every service."""
    running.apply(*administrator(PLATFORM, NAMESPACE))
    trees = {"operator": operator_files(tmp_path / "operator"), "served": files(stand_in("served"))}
    repository.commit({f"{folder}/{name}": text for folder, tree in trees.items() for name, text in tree.items()})
    reference = {"kind": "GitRepository", "name": "platform"}
    operator = of_page(
        "Kustomization", "operator", "llmservice-operator",
        path="./operator/here", serviceAccountName=PLATFORM, sourceRef=reference,
    )  # fmt: skip
    served = kustomization("served", path="./served", dependsOn=[{"name": "operator"}])
    served["spec"]["sourceRef"] = reference
    with scale_operator(cluster, 0):
        try:
            running.apply(git_source("platform", repository), served, operator)
            running.await_ready("operator", "True")
            running.await_ready("served", "True")
            cluster.must_have(NAMESPACE, "served", Ready="True")
            (pod,) = rolling.pods(cluster, NAMESPACE, "served")
            before = _generations(cluster)
            running.request("gitrepository", "platform")
            running.request("kustomization", "operator")
            assert _generations(cluster) == before, "nothing differs"
        finally:
            # Flux needs the account's rights for this.
            cluster.kubectl("delete", "kustomization", "operator", "-n", NAMESPACE, KUBECTL_TIMEOUT)
            cluster.kubectl("delete", "clusterrolebinding", f"{NAMESPACE}-{PLATFORM}")
        eventually("the operator is gone", lambda: not _generations(cluster), 60)
        cluster.kubectl("get", "crd", "llmservices.llmservice.dev")
        assert list(rolling.pods(cluster, NAMESPACE, "served")) == [pod]


def _generations(cluster: Cluster) -> dict[str, int]:
    """Of the operator's Deployment."""
    found = cluster.list("deployments", OPERATOR_NAMESPACE)
    return {each["metadata"]["name"]: each["metadata"]["generation"] for each in found}
