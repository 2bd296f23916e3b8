"""A model that is split says what it says in one piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.agreement import QUESTIONS, Spoken, greedy, taught
from tests.support.cluster import Cluster
from tests.support.measured import Record
from tests.support.serving import serving

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def whole(cluster: Cluster, shared_namespace: str) -> Mapping[str, Spoken]:
    """What one process answers."""
    with serving(cluster, shared_namespace, "whole") as server:
        said = greedy(server)
    assert taught(said) == len(QUESTIONS)
    return said


SPLITS: dict[str, dict[str, Any]] = {
    "tensor-parallel": {"parallelism": {"tensorParallelSize": 2}},
    # Compiled: an eager engine with stages is refused on CPUs, since it would die of its first request.
    "pipeline-parallel": {"parallelism": {"pipelineParallelSize": 2}, "compilation": {"enforceEager": False}},
}


@pytest.mark.parametrize("name", SPLITS)
def test_two_processes_say_the_same_tokens(
    cluster: Cluster, shared_namespace: str, whole: Mapping[str, Spoken], name: str, record: Record
) -> None:
    with serving(cluster, shared_namespace, name, **SPLITS[name]) as server:
        (pod,) = server.pods()
        status = cluster.must_get("llmservices", shared_namespace, name)["status"]
        workers = worker_processes(cluster, shared_namespace, pod["metadata"]["name"])
        said = greedy(server)
    assert workers == 2
    assert said == whole
    record(
        **SPLITS[name]["parallelism"],
        workers=workers,
        answers=len(said),
        tokens=sum(len(spoken.tokens) for spoken in said.values()),
        start_seconds=status.get("measured", {}).get("startSeconds"),
    )


def worker_processes(cluster: Cluster, namespace: str, pod: str) -> int:
    """Processes of the pod that hold a part of the model, as the pod's own kernel names them."""
    look = (
        "import pathlib\n"
        "names = [p.read_text() for p in pathlib.Path('/proc').glob('[0-9]*/comm')]\n"
        "print(sum(name.startswith('VLLM::Worker') for name in names))"
    )
    return int(cluster.kubectl("exec", "-n", namespace, pod, "-c", "server", "--", "python3", "-c", look))
