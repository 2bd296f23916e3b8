"""Without a GPU the tests of tests/gpu are skipped with the exact cause."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import Gpus
from tests.gpu.reach import PRODUCT_LABEL, RESOURCE, GpuCluster, Kube, NoGpu, find


def node(gpus: int, product: str = "") -> dict[str, Any]:
    labels = {PRODUCT_LABEL: product} if product else {}
    return {"metadata": {"labels": labels}, "status": {"allocatable": {"cpu": "8", RESOURCE: str(gpus)}}}


def nodes(*items: dict[str, Any]) -> dict[str, Any]:
    return {"out": json.dumps({"items": items})}


CONTEXT = {"out": "dev\n"}
CRD = {"out": "llmservices.llmservice.dev\n"}
FakeKubectl = Callable[[Mapping[str, Any]], Mapping[str, str]]


@pytest.fixture
def fake_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    """An environment whose kubectl answers the first of these words that are in its arguments."""

    def make(answers: Mapping[str, Any]) -> Mapping[str, str]:
        def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            line = " ".join(command[1:])
            answer = next(answer for words, answer in answers.items() if words in line)
            return subprocess.CompletedProcess(command, answer.get("code", 0), answer["out"], answer.get("err", ""))

        monkeypatch.setattr(subprocess, "run", run)
        (tmp_path / "kubectl").touch(0o755)
        return {"PATH": str(tmp_path)}

    return make


def failed(err: str) -> dict[str, Any]:
    return {"out": "", "err": err, "code": 1}


REASONS: dict[str, dict[str, Any]] = {
    "no Kubernetes context: set KUBECONTEXT": {"current-context": failed("error: current-context is not set")},
    "context dev does not answer: .*connection refused": {"get nodes": failed("connection refused")},
    r"no node of context dev offers nvidia.com/gpu \(2 nodes\)": {"get nodes": nodes(node(0), node(0))},
    r"no node of context dev offers nvidia.com/gpu \(0 nodes\)": {"get nodes": nodes()},
    "the operator is not installed in context dev: .*not found": {
        "get nodes": nodes(node(1)),
        "get crd": failed("not found"),
    },
}


@pytest.mark.parametrize("reason", REASONS)
def test_the_reason(fake_kubectl: FakeKubectl, reason: str) -> None:
    with pytest.raises(NoGpu, match=reason):
        find(fake_kubectl({"current-context": CONTEXT} | REASONS[reason]))


def test_no_kubectl(tmp_path: Path) -> None:
    with pytest.raises(NoGpu, match="no kubectl on PATH"):
        find({"PATH": str(tmp_path)})


def test_the_node_with_most_gpus_is_found_in_the_context_that_is_named(fake_kubectl: FakeKubectl) -> None:
    offered = nodes(node(0), node(4, "NVIDIA-L4"), node(1, "NVIDIA-H200"))
    environment = fake_kubectl({"--context=gpus get nodes": offered, "--context=gpus get crd": CRD})
    cluster = find({**environment, "KUBECONTEXT": "gpus"})
    assert (cluster.most_gpus, cluster.product, cluster.kube.context) == (4, "NVIDIA-L4", "gpus")


@pytest.mark.parametrize(
    ("product", "spec", "reason"),
    [
        pytest.param(
            "Tesla-T4", {"attention": {"backend": "FLASH_ATTN"}}, "not on Tesla-T4: spec.attention.backend", id="matrix"
        ),
        pytest.param(
            "NVIDIA-L4", {"parallelism": {"tensorParallelSize": 2}}, "needs 2 GPUs in one node.* offers 1", id="one GPU"
        ),
    ],
)
def test_what_the_gpu_cannot_is_skipped(product: str, spec: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=reason):
        Gpus(GpuCluster(Kube("kubectl", "dev"), 1, product)).serving("a", **spec)
