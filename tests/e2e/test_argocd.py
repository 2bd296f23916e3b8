"""Argo CD's own controllers apply services from a Git repository, and the operator from a registry: docs/gitops.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from localcluster.install import CPU_IMAGE, OPERATOR_IMAGE
from tests.e2e._chart import CHART
from tests.e2e.conftest import own_namespace
from tests.support import rolling
from tests.support.argocd import APPLICATION, ArgoCD, argocd
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.documents import DOCS, blocks_of
from tests.support.git_server import GitRepository, git_server
from tests.support.oci_registry import OciRegistry, oci_registry
from tests.support.operator import scale_operator
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import idle, stand_in

pytestmark = pytest.mark.full

NAMESPACE, OPERATORS = "e2e-argocd", "e2e-argocd-operator"
MODELS, OPERATOR = "models", "llmservice-operator"
KEPT = ("-n", NAMESPACE, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
"""What takes an Application's finalizer away."""
HERE: JSON = {
    "image": dict(zip(("repository", "tag"), OPERATOR_IMAGE.rsplit(":", 1), strict=True)),
    "services": {"defaultCpuImage": CPU_IMAGE},
    "watch": {"namespaces": [NAMESPACE]},
}
"""This cluster's images, and one namespace to serve."""


def of_page(kind: str, name: str) -> JSON:
    """A manifest of docs/gitops.md."""
    documents = [yaml.safe_load(block) for block in blocks_of(DOCS / "gitops.md", "yaml")]
    (found,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return dict(found)


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[GitRepository]:
    with git_server(tmp_path) as served:
        yield served


@contextmanager
def started(cluster: Cluster, folder: Path, *deploys_to: str) -> Iterator[ArgoCD]:
    config = of_page("ConfigMap", "argocd-cm")
    with own_namespace(cluster, NAMESPACE), argocd(cluster, NAMESPACE, folder, config, deploys_to) as running:
        yield running


@pytest.fixture
def running(cluster: Cluster, tmp_path: Path) -> Iterator[ArgoCD]:
    with started(cluster, tmp_path) as found:
        yield found


def files(*services: JSON) -> dict[str, str]:
    return {f"{service['metadata']['name']}.yaml": yaml.safe_dump(service) for service in services}


def written(cluster: Cluster, name: str, kind: str = "llmservices", namespace: str = NAMESPACE) -> JSON:
    """What every write of it changes, but those of the status."""
    metadata = cluster.must_get(kind, namespace, name)["metadata"]
    writers = [entry for entry in metadata["managedFields"] if entry.get("subresource") != "status"]
    return {"generation": metadata["generation"], "annotations": metadata.get("annotations"), "writers": writers}


def test_services_of_a_git_repository(cluster: Cluster, running: ArgoCD, repository: GitRepository) -> None:
    first = repository.commit(files(stand_in("chat"), idle("resting")))
    application = of_page("Application", MODELS)
    application["metadata"] = {"name": MODELS}
    application["spec"]["source"]["repoURL"] = repository.url
    application["spec"]["destination"]["namespace"] = NAMESPACE
    running.apply(application)
    running.await_state(MODELS, "Synced", "Healthy", first)
    cluster.must_have(NAMESPACE, "chat", Ready="True")
    (pod,) = rolling.pods(cluster, NAMESPACE, "chat")

    # Nothing differs: it compares, and nobody writes.
    before = {name: written(cluster, name) for name in ("chat", "resting")}
    for _ in range(3):
        running.refresh(MODELS)
        running.await_state(MODELS, "Synced", "Healthy", first)
    assert {name: written(cluster, name) for name in before} == before

    changed = stand_in("chat", batching={"maxModelLen": 256})
    second = repository.commit(files(changed, idle("resting")))
    running.refresh(MODELS)
    running.await_state(MODELS, "Synced", "Healthy", second)
    (serving,) = rolling.pods(cluster, NAMESPACE, "chat")
    assert serving != pod

    broken = stand_in("chat", {"fails": "kv-cache-too-small"}, batching={"maxModelLen": 256})
    third = repository.commit(files(broken, idle("resting")))
    running.refresh(MODELS)
    running.await_state(MODELS, "Synced", "Degraded", third)
    stalled = cluster.condition(NAMESPACE, "chat", "Stalled") or {}
    assert stalled["reason"] == "KVCacheTooSmall"
    assert is_ready(rolling.pods(cluster, NAMESPACE, "chat")[serving]), "the revision before serves"

    # The way back is a commit; what is no longer in the source is deleted.
    fourth = repository.commit(files(changed))
    running.refresh(MODELS)
    running.await_state(MODELS, "Synced", "Healthy", fourth)
    eventually("it is pruned", lambda: cluster.get("llmservices", NAMESPACE, "resting") is None, 60)
    assert list(rolling.pods(cluster, NAMESPACE, "chat")) == [serving]


@pytest.fixture
def charts(cluster: Cluster, tmp_path: Path) -> Iterator[OciRegistry]:
    """A registry with the chart in it."""
    (tmp_path / "registry").mkdir()
    with oci_registry(tmp_path / "registry") as registry:
        cluster.helm("package", str(CHART), "--destination", str(tmp_path))
        (package,) = tmp_path.glob("llmservice-operator-*.tgz")
        cluster.helm("push", str(package), f"oci://{registry.host}/charts", "--plain-http")
        yield registry


def test_the_operator_from_a_registry(cluster: Cluster, charts: OciRegistry, tmp_path: Path) -> None:
    """Applied, healthy and without drift; deleted, it leaves the CRD, and with it the services, where they are."""
    url = f"{charts.host}/charts"
    application = of_page("Application", OPERATOR)
    application["metadata"] = {"name": OPERATOR, "finalizers": ["resources-finalizer.argocd.argoproj.io"]}
    application["spec"]["source"] |= {"repoURL": url, "helm": {"valuesObject": HERE}}
    application["spec"]["destination"]["namespace"] = OPERATORS
    settings = {"type": "helm", "url": url, "enableOCI": "true", "insecureOCIForceHttp": "true"}
    repository = {
        "apiVersion": "v1", "kind": "Secret", "stringData": settings,
        "metadata": {"name": "charts", "labels": {"argocd.argoproj.io/secret-type": "repository"}},
    }  # fmt: skip
    version = application["spec"]["source"]["targetRevision"]
    with started(cluster, tmp_path, NAMESPACE, OPERATORS) as running, scale_operator(cluster, 0):
        try:
            running.apply(repository, application)
            running.await_state(OPERATOR, "Synced", "Healthy", version)
            cluster.apply(stand_in("chat"), NAMESPACE)
            cluster.wait_condition(NAMESPACE, "chat", "Ready", "True")
            before = written(cluster, OPERATOR, "deployments", OPERATORS)
            for _ in range(3):
                running.refresh(OPERATOR)
                running.await_state(OPERATOR, "Synced", "Healthy", version)
            assert written(cluster, OPERATOR, "deployments", OPERATORS) == before
            (pod,) = rolling.pods(cluster, NAMESPACE, "chat")
            cluster.kubectl("delete", APPLICATION, OPERATOR, "-n", NAMESPACE, KUBECTL_TIMEOUT)
            assert cluster.get("deployments", OPERATORS, OPERATOR) is None
            assert list(rolling.pods(cluster, NAMESPACE, "chat")) == [pod]
        finally:
            # Where something failed, Argo CD may not be able to delete what it made.
            cluster.kubectl("patch", APPLICATION, OPERATOR, *KEPT, expect=None)
            cluster.kubectl("delete", "namespace", OPERATORS, "--ignore-not-found", KUBECTL_TIMEOUT)
