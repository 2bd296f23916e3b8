"""What the operator makes of every good manifest is taken by the API server whole: its children, and its status."""

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.settings import Settings
from llmservice_operator.control.decide import decide
from llmservice_operator.control.decision import Decision
from llmservice_operator.observe.observed import Observed

from tests.contract.api import DRY_RUN, NAMESPACE, SERVICES, Api, Refusal
from tests.contract.good_manifests import GOOD
from tests.contract.manifests import manifest
from tests.support.documents import manifests

pytestmark = pytest.mark.cluster

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SETTINGS = Settings(operator_image="operator:1", default_cpu_image="cpu:v0.32.0", default_amd_image="amd:v0.32.0")
PLACES = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments/{}",
    "ControllerRevision": "/apis/apps/v1/namespaces/{}/controllerrevisions/{}",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets/{}",
    "Service": "/api/v1/namespaces/{}/services/{}",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps/{}",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims/{}",
}
# A name is taken as it is; an image of an unknown version is refused by the operator, not by the API server.
MANIFESTS = dict(manifests()) | {
    good.id: manifest(good.name, good.change) for good in GOOD if not good.id.startswith("image-")
}


def decided(api: Api, written: dict[str, Any]) -> tuple[dict[str, Any], Decision]:
    stored = api.try_create(written).raise_for_status().json()
    return stored, decide(LLMService.from_object(stored), Observed(), SETTINGS, NOW)


def dry_apply(http: httpx.Client, child: Any) -> httpx.Response:
    return http.patch(
        PLACES[child["kind"]].format(NAMESPACE, child["metadata"]["name"]),
        content=json.dumps(child),
        headers={"content-type": "application/apply-patch+yaml"},
        params={**DRY_RUN, "fieldManager": "contract-tests", "force": "true"},
    )


@pytest.mark.parametrize("written", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_children_are_accepted(api: Api, written: dict[str, Any]) -> None:
    _, decision = decided(api, written)
    assert {"Deployment", "Service", "ControllerRevision"} <= {apply.kind for apply in decision.apply}, decision
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
