"""The commands of the pages with which one begins, word for word, on the local cluster.

Blocks that are marked with what the tests lack (`<!-- needs: internet -->`) are left out: they make a cluster and
install into it, which has been done here.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY
from tests.support.cluster import Cluster
from tests.support.documents import DOCS, shell_blocks
from tests.support.patience import KUBECTL_TIMEOUT, at_most

pytestmark = pytest.mark.parallel

NAMESPACE = "first-steps"
SHARED = "llmservice doctor"
"""Its exit code is 1 where any service of the cluster is in trouble, and other tests make such services."""


def blocks(page: str) -> list[str]:
    return [block for block, needs in shell_blocks(DOCS / "get-started" / page) if not needs]


def run(cluster: Cluster, block: str, folder: Path) -> str:
    """What a block prints; in a shell of its own, which ends with the first command that fails."""
    path = f"{REPOSITORY / '.venv' / 'bin'}:{cluster.environment['PATH']}"
    environment = {**os.environ, **cluster.environment, "PATH": path}
    command = ["bash", "-euo", "pipefail", "-c", block]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=at_most(900)
    )
    assert done.returncode in ((0, 1) if block.strip() == SHARED else (0,)), (block, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture
def first_steps(cluster: Cluster) -> Iterator[None]:
    """No namespace of the page's name before and after."""
    delete = ("delete", "namespace", NAMESPACE, "--ignore-not-found")
    cluster.kubectl(*delete, KUBECTL_TIMEOUT)
    yield
    cluster.kubectl(*delete, "--wait=false")


@pytest.mark.full
def test_from_a_cluster_without_gpus_to_an_answer(cluster: Cluster, first_steps: None, tmp_path: Path) -> None:
    printed = {block: run(cluster, block, tmp_path) for block in blocks("no-gpu.md")}

    def said(words: str) -> str:
        """By the block that has these words."""
        (found,) = [output for block, output in printed.items() if words in block]
        return found

    assert "problem: " in said(SHARED)
    assert "hello is Ready" in said("llmservice wait hello")
    assert "1/1" in said("kubectl get llms")
    assert "vLLM" in said("llmservice chat hello")
    assert '"object":"chat.completion"' in said("curl ").replace(" ", "")
    assert "namespace" in said("kubectl delete namespace")


def test_the_local_clusters_environment(cluster: Cluster) -> None:
    (block,) = blocks("local.md")
    assert "llmservice-operator" in run(cluster, block, REPOSITORY)
