"""What the operator makes of every good manifest is taken by the API server whole: its children, and its status."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from llmservice_api.service import parse_spec
from llmservice_operator.decision import Decision, Inputs, Part, Requirements
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.observed import Observed
from llmservice_operator.service.decide import decide
from llmservice_planner.cluster import ClusterGPUs, NodeGroup
from llmservice_planner.devices import ClusterDevices
from llmservice_planner.model.reading import ConfigReading, read
from llmservice_planner.room import Room

from tests.contract.api import DRY_RUN, NAMESPACE, SERVICES, Api, Refusal
from tests.contract.manifests import GOOD, manifest
from tests.support.documents import manifests

pytestmark = pytest.mark.cluster

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SETTINGS = Settings(
    operator_image="operator:1",
    default_cpu_image="cpu:v0.32.0",
    default_amd_image="amd:v0.32.0",
    has_dynamic_resources=True,
)
PLACES = {
    "Job": "/apis/batch/v1/namespaces/{}/jobs/{}",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments/{}",
    "ControllerRevision": "/apis/apps/v1/namespaces/{}/controllerrevisions/{}",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets/{}",
    "Service": "/api/v1/namespaces/{}/services/{}",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps/{}",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims/{}",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies/{}",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates/{}",
    "Pod": "/api/v1/namespaces/{}/pods/{}",
}
# A name is taken as it is; an image of an unknown version is refused by the operator, not by the API server.
MANIFESTS = dict(manifests()) | {
    good.id: manifest(good.name, good.change) for good in GOOD if "runtime.image" not in good.change
}


# A model that fits everywhere, and nodes with GPUs that no manifest names.
MODEL = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "intermediate_size": 512,
    "max_position_embeddings": 4096,
}
LARGE = {"numHiddenLayers": 80, "hiddenSize": 8192, "intermediateSize": 28672, "vocabSize": 128256}
TENSORS = {"embedding": 2**18, "attention": 2**20, "feedForward": 2**21, "parameters": 2**21, "dtype": "bfloat16"}
KNOWN: dict[str, Any] = {
    "sibling_model": {
        "inspection": "0123456789",
        "revision": "a" * 40,
        "config": json.dumps(MODEL),
        "tensors": TENSORS,
    },
    "gpus": ClusterGPUs((NodeGroup("NVIDIA-B300-SXM6-AC", 4096, memory_mib=275040),)),
    "devices": ClusterDevices(),
    "room": Room(unknown="nobody looked"),
}


def decided(api: Api, written: dict[str, Any], **parts: Any) -> tuple[dict[str, Any], Decision]:
    stored = api.try_create(written).raise_for_status().json()
    known = {name: Part(value, "the test") for name, value in (KNOWN | parts).items()}
    inputs = Inputs.of(stored, Observed(), SETTINGS, NOW, **known)
    found = decide(inputs)
    if isinstance(found, Requirements):
        assert found.reading is not None
        found = decide(replace(inputs, reading=Part(ConfigReading(found.reading, read(found.reading)), "the test")))
    assert isinstance(found, Decision)
    return stored, found


def pod_of_group(child: Any) -> Any:
    """A pod of a LeaderWorkerSet, whose CRD need not be there."""
    template = child["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return {**template, "apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "member"}}


def dry_apply(http: httpx.Client, child: Any) -> httpx.Response:
    if child["kind"] == "LeaderWorkerSet":
        child = pod_of_group(child)
    return http.patch(
        PLACES[child["kind"]].format(NAMESPACE, child["metadata"]["name"]),
        content=json.dumps(child),
        headers={"content-type": "application/apply-patch+yaml"},
        params={**DRY_RUN, "fieldManager": "contract-tests", "force": "true"},
    )


@pytest.mark.parametrize("written", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_children_are_accepted(api: Api, written: dict[str, Any]) -> None:
    # Some ask for more than there is, which is not what is looked at here.
    _, decision = decided(api, {**written, "spec": {"fitPolicy": "Warn", **written["spec"]}})
    workload = "LeaderWorkerSet" if parse_spec(written["spec"]).parallelism.node_count > 1 else "Deployment"
    assert {workload, "Service", "ControllerRevision"} <= {apply.kind for apply in decision.apply}, decision
    refused = {}
    for apply in decision.apply:
        answer = dry_apply(api.http, apply.manifest)
        if answer.status_code not in (200, 201):
            refused[apply.kind] = Refusal.of(answer)
    assert refused == {}


@pytest.mark.parametrize("written", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_the_status_is_kept_whole(api: Api, written: dict[str, Any]) -> None:
    stored, decision = decided(api, written)
    assert decision.status is not None
    assert stored_status(api, stored, dict(decision.status)) == decision.status


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"sibling_model": {}}, id="a Job inspects the model"),
        pytest.param({"gpus": ClusterGPUs((NodeGroup("Tesla-T4", 1, memory_mib=15360),))}, id="too large"),
        pytest.param({"gpus": ClusterGPUs(missing_right="list nodes")}, id="a right is missing"),
    ],
)
def test_what_the_plan_says_is_kept_whole(api: Api, parts: dict[str, Any]) -> None:
    precise = {"model": {"uri": "hf://a/b", "architecture": {} if "sibling_model" in parts else LARGE}}
    stored, decision = decided(api, manifest("planned", precise), **parts)
    assert decision.status is not None
    assert stored_status(api, stored, dict(decision.status)) == decision.status
    for apply in decision.apply:
        assert dry_apply(api.http, apply.manifest).status_code in (200, 201)


def test_a_failure_is_kept_whole(api: Api) -> None:
    stored, decision = decided(api, manifest("failed", {}))
    status = {
        **(decision.status or {}),
        "failure": {
            "reason": "ModelNotFound",
            "message": "m" * 4096,
            "remedy": "r" * 4096,
            "pod": "failed-1",
            "since": "2026-01-02T03:04:05Z",
            "evidence": ["e" * 1024] * 16,
        },
        "measured": {"vllmVersion": "0.32.0", "kvCacheTokens": 1, "maxConcurrency": 1.5, "modelMemoryGiB": 0.5},
    }
    assert stored_status(api, stored, status) == status


def stored_status(api: Api, manifest: dict[str, Any], status: dict[str, Any]) -> Any:
    name = manifest["metadata"]["name"]
    body = {"metadata": {"name": name}, "spec": manifest["spec"]}
    with api.existing(body) as current:
        answer = api.http.put(
            f"{SERVICES}/{name}/status", json={**current, "status": status}, params={"fieldValidation": "Strict"}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["status"]
