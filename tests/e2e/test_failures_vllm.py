"""What a real vLLM fails with is told in the status: the reason, vLLM's own words, and what to do about it.

test_failures.py has the same stories, and all others, with the stand-in.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from localcluster.paths import ClusterPaths
from localcluster.tinymodel.cache import cached_model
from tests.e2e.conftest import make_namespace
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.models import claim_folder, release_folder
from tests.support.services import llmservice

NAMESPACE = "e2e-failures-vllm"
TOLD_WITHIN = 10.0


@dataclass(frozen=True)
class Broken:
    """A spec that vLLM ends on, and what the status must say then."""

    spec: dict[str, Any]
    reason: str
    words: tuple[str, ...]
    remedy: tuple[str, ...] = field(default=())


BROKEN = {
    "a-flag-value-that-vllm-refuses": Broken(
        {"runtime": {"extraArgs": ["--tokenizer-mode=banana"]}},
        "InvalidFlag",
        ("banana",),
        ("spec.runtime.extraArgs",),
    ),
    "a-missing-model": Broken(
        {"model": {"uri": "file:///models/no-such-model"}},
        "ModelNotFound",
        ("/models/no-such-model",),
        ("spec.model.uri",),
    ),
    "an-unreadable-weights-file": Broken(
        {"model": {"uri": "pvc://unreadable/tiny"}},
        "WeightsUnreadable",
        ("model.safetensors",),
        ("chmod",),
    ),
    "an-impossible-length": Broken(
        {"batching": {"maxModelLen": 1_000_000}},
        "MaxModelLenTooLarge",
        ("1000000",),
        ("spec.batching.maxModelLen",),
    ),
}


@pytest.fixture(scope="module")
def failures(cluster: Cluster) -> Iterator[str]:
    make_namespace(cluster, NAMESPACE)
    yield NAMESPACE
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def unreadable(cluster: Cluster, failures: str) -> Iterator[None]:
    """A claim whose weights file only root may read, as save_pretrained leaves it."""
    folder = ClusterPaths.of_this_clone().models / "unreadable"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(cached_model(print), folder / "tiny")
    (folder / "tiny" / "model.safetensors").chmod(0o600)
    claim_folder(cluster, failures, "unreadable", folder)
    yield
    release_folder(cluster, failures, "unreadable")


@pytest.mark.full
@pytest.mark.parametrize("case", BROKEN)
def test_the_status_names_reason_and_remedy(
    cluster: Cluster, failures: str, case: str, request: pytest.FixtureRequest
) -> None:
    broken = BROKEN[case]
    if "pvc://" in str(broken.spec):
        request.getfixturevalue("unreadable")
    cluster.apply(llmservice(case, **broken.spec), failures)

    ended = eventually("the end of the container", lambda: first_end(cluster, failures, case), 180)

    def told() -> JSON | None:
        found: JSON | None = cluster.must_get("llmservices", failures, case).get("status", {}).get("failure")
        return found

    failure = eventually("a failure in the status", told, TOLD_WITHIN)
    late = (dt.datetime.now(dt.UTC) - ended).total_seconds()
    assert failure["reason"] == broken.reason, failure
    for word in broken.words:
        assert word in failure["message"], failure
    for word in broken.remedy:
        assert word in failure["remedy"], failure
    assert late <= TOLD_WITHIN + 1, f"told {late:.1f} s after the container's end"
    ready = cluster.condition(failures, case, "Ready")
    assert ready is not None
    assert (ready["status"], ready["reason"]) == ("False", broken.reason)
    assert broken.reason in cluster.kubectl("get", "llms", case, "-n", failures)
    cluster.kubectl("delete", "llms", case, "-n", failures)


def first_end(cluster: Cluster, namespace: str, service: str) -> dt.datetime | None:
    """When the server container of this service first ended."""
    for pod in cluster.list("pods", namespace, f"llmservice.dev/service={service}"):
        for status in pod.get("status", {}).get("containerStatuses", []):
            for state in (status.get("lastState", {}), status.get("state", {})):
                if "terminated" in state:
                    return dt.datetime.fromisoformat(state["terminated"]["finishedAt"])
    return None


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a-precision-that-the-gpu-cannot-do": (
        {"accelerator": {"type": "nvidia", "product": ["Tesla-T4"]}, "precision": {"dtype": "bfloat16"}},
        "PrecisionUnsupported",
        "spec.precision.dtype",
    ),
    "heads-that-cannot-be-divided": (
        {
            "accelerator": {"type": "nvidia"},
            "parallelism": {"tensorParallelSize": 3},
            "model": {"architecture": {"numAttentionHeads": 8}},
        },
        "TensorParallelSizeInvalid",
        "spec.parallelism.tensorParallelSize",
    ),
    "a-flag-that-this-vllm-does-not-know": (
        {"runtime": {"extraArgs": ["--no-such-flag"]}},
        "UnknownFlag",
        "spec.runtime.extraArgs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_schema_cannot_know_is_refused_before_any_pod(cluster: Cluster, failures: str, case: str) -> None:
    spec, reason, named = REFUSED[case]
    cluster.apply(llmservice(case, **spec), failures)
    refused = cluster.wait_condition(failures, case, "Accepted", "False", reason=reason, timeout=15)
    assert named in refused["message"]
    ready = cluster.condition(failures, case, "Ready")
    assert ready is not None
    assert ready["status"] == "False"
    assert cluster.get("deployments", failures, case) is None
