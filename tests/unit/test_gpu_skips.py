"""Where there is no GPU to try things on, the tests of tests/gpu say exactly why."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import Gpus
from tests.gpu.reach import PRODUCT_LABEL, RESOURCE, GpuCluster, Kube, NoGpu, find

FAKE = """#!{python}
import json, sys
answers = json.loads({answers!r})
for words, answer in answers.items():
    if words in " ".join(sys.argv[1:]):
        print(answer["out"], end="")
        print(answer.get("err", ""), file=sys.stderr, end="")
        sys.exit(answer.get("code", 0))
sys.exit("a call that the test did not foresee: " + " ".join(sys.argv[1:]))
"""


def node(gpus: int, product: str = "") -> dict[str, Any]:
    labels = {PRODUCT_LABEL: product} if product else {}
    return {"metadata": {"labels": labels}, "status": {"allocatable": {"cpu": "8", RESOURCE: str(gpus)}}}


def nodes(*items: dict[str, Any]) -> dict[str, Any]:
    return {"out": json.dumps({"items": items})}


CONTEXT = {"out": "dev\n"}
CRD = {"out": "llmservices.llmservice.dev\n"}
FakeKubectl = Callable[[Mapping[str, Any]], Mapping[str, str]]


@pytest.fixture
def fake_kubectl(tmp_path: Path) -> FakeKubectl:
    """An environment whose kubectl answers the first of these words that stand in its arguments."""

    def make(answers: Mapping[str, Any]) -> Mapping[str, str]:
        program = tmp_path / "kubectl"
        program.write_text(FAKE.format(python=sys.executable, answers=json.dumps(answers)))
        program.chmod(0o755)
        return {"PATH": str(tmp_path)}

    return make


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        pytest.param(
            {"current-context": {"out": "", "err": "error: current-context is not set", "code": 1}},
            "no Kubernetes context: set KUBECONTEXT",
            id="no context",
        ),
        pytest.param(
            {"current-context": CONTEXT, "get nodes": {"out": "", "err": "connection refused", "code": 1}},
            "context dev does not answer: .*connection refused",
            id="no answer",
        ),
        pytest.param(
            {"current-context": CONTEXT, "get nodes": nodes(node(0), node(0))},
            r"no node of context dev offers nvidia.com/gpu \(2 nodes\)",
            id="no GPU",
        ),
        pytest.param(
            {"current-context": CONTEXT, "get nodes": nodes()},
            r"no node of context dev offers nvidia.com/gpu \(0 nodes\)",
            id="no node",
        ),
        pytest.param(
            {
                "current-context": CONTEXT,
                "get nodes": nodes(node(1)),
                "get crd": {"out": "", "err": "not found", "code": 1},
            },
            "the operator is not installed in context dev: .*not found",
            id="no operator",
        ),
    ],
)
def test_the_reason(fake_kubectl: FakeKubectl, answers: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(NoGpu, match=reason):
        find(fake_kubectl(answers))


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
