"""Argo CD's own controller applies LLMServices from a Git repository and reads their health: docs/gitops.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import own_namespace
from tests.support import rolling
from tests.support.argocd import ArgoCD, argocd
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.documents import DOCS, blocks_of
from tests.support.git_server import GitRepository, git_server
from tests.support.services import idle, stand_in

pytestmark = pytest.mark.full

NAMESPACE = "e2e-argocd"
MODELS = "models"


def of_page(kind: str, name: str) -> JSON:
    """A manifest of docs/gitops.md."""
    documents = [yaml.safe_load(block) for block in blocks_of(DOCS / "gitops.md", "yaml")]
    (found,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return dict(found)


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[GitRepository]:
    with git_server(tmp_path) as served:
        yield served


@pytest.fixture
def running(cluster: Cluster, tmp_path: Path) -> Iterator[ArgoCD]:
    config = of_page("ConfigMap", "argocd-cm")
    with own_namespace(cluster, NAMESPACE), argocd(cluster, NAMESPACE, tmp_path, config) as started:
        yield started


def files(*services: JSON) -> dict[str, str]:
    return {f"{service['metadata']['name']}.yaml": yaml.safe_dump(service) for service in services}


def written(cluster: Cluster, name: str) -> JSON:
    """What every write of it changes, but the operator's of the status."""
    metadata = cluster.must_get("llmservices", NAMESPACE, name)["metadata"]
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
