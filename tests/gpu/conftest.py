"""A cluster with GPUs, or the exact reason why there is none; nothing here starts or changes one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
from llmservice_api.service import parse_spec
from llmservice_planner.checks import matrix_problems

from tests.e2e.conftest import pytest_terminal_summary, record
from tests.gpu.reach import GpuCluster, GpuServer, NoGpu, find, serving
from tests.support.agreement import QUESTIONS, Spoken, greedy
from tests.support.services import merge

__all__ = ["pytest_terminal_summary", "record"]

NAMESPACE = "llmservice-gpu-tests"
MODEL = os.environ.get("GPU_MODEL_URI") or "hf://Qwen/Qwen2.5-0.5B-Instruct"
BASE: Mapping[str, Any] = {
    "model": {"uri": MODEL},
    "precision": {"dtype": "auto"},
    "batching": {"maxModelLen": 2048, "maxNumSeqs": 16},
}
# Other kernels round otherwise, and greedy decoding does not come back from the first token that differs. What
# computes nonsense shares next to nothing.
ALIKE = 0.3


@pytest.fixture(scope="session")
def gpus() -> GpuCluster:
    """Everything here needs it."""
    try:
        return find(os.environ)
    except NoGpu as reason:
        pytest.skip(str(reason))


@dataclass(frozen=True)
class Gpus:
    """What the tests do with the cluster: serve something on its GPUs, where they can."""

    cluster: GpuCluster

    def serving(self, name: str, **spec: Any) -> AbstractContextManager[GpuServer]:
        """A service on the GPU that the node's label names. Skips what the matrix refuses on it."""
        wanted = merge(BASE, spec)
        if self.cluster.product is not None:
            wanted = merge(wanted, {"accelerator": {"products": [self.cluster.product]}})
        refused = matrix_problems(parse_spec(wanted))
        if refused:
            pytest.skip(f"not on {self.cluster.product}: {refused[0].field}: {refused[0].message}")
        needed = parse_spec(wanted).parallelism.accelerators
        if needed > self.cluster.most_gpus:
            pytest.skip(f"needs {needed} GPUs in one node, and the largest offers {self.cluster.most_gpus}")
        manifest = {
            "apiVersion": "llmservice.dev/v1alpha1",
            "kind": "LLMService",
            "metadata": {"name": name},
            "spec": wanted,
        }
        return serving(self.cluster.kube, NAMESPACE, manifest)


@pytest.fixture(scope="session")
def gpu(gpus: GpuCluster) -> Iterator[Gpus]:
    """In a namespace that is gone afterwards."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    gpus.kube.run("apply", "--server-side", "--filename=-", stdin=json.dumps(namespace))
    yield Gpus(gpus)
    gpus.kube.run("delete", "namespace", NAMESPACE, "--wait=false")


@dataclass(frozen=True)
class Reference:
    """What the model says as it is, on one GPU, and what its weights take."""

    said: Mapping[str, Spoken]
    weights_gib: float


@pytest.fixture(scope="session")
def reference(gpu: Gpus) -> Reference:
    """Everything else is held against it."""
    with gpu.serving("reference") as server:
        said = greedy(server, QUESTIONS)
    assert all(spoken.text.strip() for spoken in said.values())
    return Reference(said, server.status["measured"]["modelMemoryGiB"])
