"""What the API server makes of the CRD: documented manifests, defaults, /scale, columns, server-side apply, explain."""

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from llmservice_api.constants import GROUP, VERSION
from llmservice_api.service import LLMService, parse_spec

from tests.contract.api import API_VERSION, DRY_RUN, NAMESPACE, RESOURCE, SERVICES, Api
from tests.contract.conftest import Kubectl
from tests.contract.manifests import manifest
from tests.support.documents import manifests

pytestmark = pytest.mark.cluster

DOCUMENTED = manifests()
SMALLEST = manifest("five-lines", {})


@pytest.mark.parametrize("written", DOCUMENTED.values(), ids=DOCUMENTED.keys())
def test_a_documented_manifest_is_taken_whole(api: Api, written: Mapping[str, Any]) -> None:
    assert written["apiVersion"] == f"{GROUP}/{VERSION}"
    answer = api.try_create(written)
    assert answer.status_code == 201, answer.text
    stored = answer.json()["spec"]
    assert without_scaling(stored) == without_scaling(written["spec"])
    assert parse_spec(stored) == parse_spec(written["spec"])


def without_scaling(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "scaling"}


def test_only_replicas_are_written_into_the_spec_and_what_is_stored_can_be_parsed(api: Api) -> None:
    with api.existing(SMALLEST) as stored:
        service = LLMService.from_object(stored)
    assert stored["spec"] == {**SMALLEST["spec"], "scaling": {"replicas": 1}}
    assert service.status == stored["status"] == {"observedGeneration": -1}
    assert (service.name, service.spec.scaling.replicas) == ("five-lines", 1)


def test_scale_answers_and_scales_and_shows_pods_and_replicas(api: Api) -> None:
    with api.existing(SMALLEST) as current:
        status = {"replicas": 2, "selector": "llmservice.dev/service=five-lines"}
        api.http.put(f"{SERVICES}/five-lines/status", json={**current, "status": status}).raise_for_status()
        scale = api.http.get(f"{SERVICES}/five-lines/scale").raise_for_status().json()
        assert (scale["spec"], scale["status"]) == ({"replicas": 1}, status)
        scaled = api.http.put(f"{SERVICES}/five-lines/scale", json={**scale, "spec": {"replicas": 3}})
        assert scaled.status_code == 200, scaled.text
        assert api.get("five-lines")["spec"]["scaling"] == {"replicas": 3}
        too_many = api.http.put(f"{SERVICES}/five-lines/scale", json={**scaled.json(), "spec": {"replicas": 1001}})
        assert too_many.status_code == 422, too_many.text


def test_a_horizontal_pod_autoscaler_may_name_it(api: Api) -> None:
    target = {"apiVersion": API_VERSION, "kind": "LLMService", "name": "five-lines"}
    waiting = {"metric": {"name": "waiting"}, "target": {"type": "AverageValue", "averageValue": "5"}}
    metrics = [{"type": "Pods", "pods": waiting}]
    spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 4, "metrics": metrics}
    answer = api.http.post(
        f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers",
        json={"metadata": {"name": "five-lines"}, "spec": spec},
        params=DRY_RUN,
    )
    assert answer.status_code == 201, answer.text


def test_status_is_written_through_its_subresource_only(api: Api) -> None:
    with api.existing(SMALLEST) as current:
        answer = api.http.put(f"{SERVICES}/five-lines", json={**current, "status": {"replicas": 7}})
        assert answer.status_code == 200
        assert api.get("five-lines")["status"] == {"observedGeneration": -1}


def test_one_manager_adds_to_anothers_lists(api: Api) -> None:
    def apply(manager: str, spec: Mapping[str, Any]) -> httpx.Response:
        body = {"apiVersion": API_VERSION, "kind": "LLMService", "metadata": {"name": "five-lines"}, "spec": spec}
        return api.http.patch(
            f"{SERVICES}/five-lines",
            content=json.dumps(body),
            headers={"content-type": "application/apply-patch+yaml"},
            params={"fieldManager": manager},
        )

    with api.existing(SMALLEST):
        for manager, letter in (("one", "A"), ("two", "B")):
            answer = apply(manager, {"model": SMALLEST["spec"]["model"], "runtime": {"env": [env(letter)]}})
            assert answer.status_code == 200, answer.text
        assert api.get("five-lines")["spec"]["runtime"]["env"] == [env("A"), env("B")]


def env(name: str) -> dict[str, str]:
    return {"name": name, "value": "x"}


def test_columns(api: Api, kubectl: Kubectl) -> None:
    with api.existing(SMALLEST) as current:
        ready = {"type": "Ready", "status": "True", "reason": "RolledOut", "message": ""}
        status = {
            "ready": "1/1",
            "gpus": 2,
            "endpoint": {"url": "http://five-lines.default.svc/v1"},
            "conditions": [{**ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "effective": {"precision": {"weights": "fp8"}, "parallelism": {"tensorParallelSize": 2}},
            "measured": {"kvCacheTokens": 4096},
            "rollout": {"revision": "0123456789"},
        }
        api.http.put(f"{SERVICES}/five-lines/status", json={**current, "status": status}).raise_for_status()
        head, row = kubectl("get", RESOURCE, "five-lines", "-n", NAMESPACE).stdout.splitlines()
        wide = kubectl("get", RESOURCE, "five-lines", "-n", NAMESPACE, "-o", "wide").stdout.splitlines()
    assert head.split() == ["NAME", "MODEL", "GPUS", "READY", "URL", "REASON", "AGE"]
    values = "five-lines hf://Qwen/Qwen2.5-7B-Instruct 2 1/1 http://five-lines.default.svc/v1 RolledOut"
    assert row.split()[:-1] == values.split()
    assert wide[0].split()[7:] == ["PRECISION", "TP", "KV", "TOKENS", "REVISION"]
    assert wide[1].split()[7:] == ["fp8", "2", "4096", "0123456789"]


def test_explain_reads_like_documentation(api: Api, kubectl: Kubectl) -> None:
    text = kubectl("explain", "llmservices.spec.batching", "--api-version", API_VERSION)
    words = " ".join(text.stdout.split())
    assert "Continuous batching and PagedAttention" in words
    assert "Most sequences that are worked on in one step (--max-num-seqs)." in words
    assert words.count("Default:") >= 7
    assert words.count("Example:") >= 7
