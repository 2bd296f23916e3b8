"""A second start with what the first one left: the claim, what the status says, and with vLLM itself the time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llmservice_api.constants import selector_text, start_cache_claim_name

from localcluster.tinymodel.pairs import PAIRS
from tests.e2e.conftest import own_namespace
from tests.support.client import ClientPod
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.services import llmservice, stand_in
from tests.support.volumes import volume_for

NAMESPACE = "e2e-start-cache"
START_CACHE = {"startCache": {"size": "1Gi"}}
ENGINE_WITHIN = 300


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    with own_namespace(cluster, NAMESPACE):
        yield NAMESPACE


@pytest.fixture
def volumes(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Path]:
    """The folder of volumes for the claims of the services `quick` and `compiled`."""
    made = [
        volume_for(cluster, namespace, start_cache_claim_name(name), tmp_path / name) for name in ("quick", "compiled")
    ]
    yield tmp_path
    cluster.kubectl("delete", "pv", *made, "--wait=false")


def measured(cluster: Cluster, name: str) -> JSON:
    """status.measured, once the supervisor was read."""

    def look() -> JSON | None:
        found: JSON = cluster.must_get("llmservices", NAMESPACE, name)["status"].get("measured") or {}
        return found if "startCache" in found else None

    return eventually(f"what {name} measured", look, 60)


def start(cluster: Cluster, name: str, timeout: float = 60) -> str:
    """From zero to Ready; the log of the server."""
    cluster.kubectl("scale", f"llms/{name}", "--replicas=1", "-n", NAMESPACE)
    eventually(
        f"{name} serves",
        lambda: cluster.must_get("llmservices", NAMESPACE, name)["status"].get("readyReplicas"),
        timeout,
    )
    (pod,) = cluster.pods(NAMESPACE, name)
    return cluster.kubectl("logs", pod["metadata"]["name"], "-n", NAMESPACE, "-c", "server")


def stop(cluster: Cluster, name: str) -> None:
    cluster.kubectl("scale", f"llms/{name}", "--replicas=0", "-n", NAMESPACE)
    eventually("the end of its drain", lambda: not cluster.list("pods", NAMESPACE, selector_text(name)), 60)


@pytest.mark.full
def test_what_a_start_computes_is_kept_for_the_next_and_no_longer_than_wanted(cluster: Cluster, volumes: Path) -> None:
    cluster.apply(stand_in("quick", {"start_seconds": 5}, **START_CACHE, scaling={"replicas": 0}), NAMESPACE)
    assert "200; serving after" in start(cluster, "quick")
    assert measured(cluster, "quick")["startCache"] == "New"
    stop(cluster, "quick")
    assert "answered requests before; serving after" in start(cluster, "quick")
    eventually("the second start", lambda: measured(cluster, "quick")["startCache"] == "Reused", 60)
    (kept,) = (volumes / "quick").iterdir()
    assert (kept / "served").exists()

    claim = cluster.must_get("persistentvolumeclaims", NAMESPACE, "quick-start-cache")
    assert [owner["name"] for owner in claim["metadata"]["ownerReferences"]] == ["quick"]
    effective = cluster.must_get("llmservices", NAMESPACE, "quick")["status"]["effective"]
    assert effective["startCache"] == {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}
    cluster.patch("llmservices", NAMESPACE, "quick", {"spec": {"startCache": None}})
    eventually("no claim", lambda: cluster.get("persistentvolumeclaims", NAMESPACE, "quick-start-cache") is None, 90)
    cluster.kubectl("delete", "llms", "quick", "-n", NAMESPACE)


@pytest.mark.full
def test_a_compiled_model_starts_a_second_time_in_less_than_half_the_time(cluster: Cluster, volumes: Path) -> None:
    service = llmservice("compiled", precision=None, compilation=None, **START_CACHE, scaling={"replicas": 0})
    cluster.apply(service, NAMESPACE)
    client = ClientPod.start(cluster, NAMESPACE)
    seconds: list[float] = []
    for state in ("New", "Reused"):
        start(cluster, "compiled", ENGINE_WITHIN)
        eventually(state, lambda state=state: measured(cluster, "compiled")["startCache"] == state, 60)  # type: ignore[misc]
        seconds.append(measured(cluster, "compiled")["startSeconds"])
        assert client.chat("compiled", PAIRS[0][0]).text == PAIRS[0][1]
        stop(cluster, "compiled")
    assert seconds[1] < seconds[0] / 2
