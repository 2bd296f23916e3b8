"""Which edits restart a model, and which do not."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.revision import revision_key

from tests.unit.decide_world import an_llmservice, spec
from tests.unit.test_build_template import render

Json = dict[str, Any]


def key(**sections: object) -> str:
    return revision_key(LLMService.from_object(an_llmservice(spec(**sections))).spec)


HF = "hf://Qwen/Qwen2.5-7B-Instruct"
NO_RESTART: list[Json] = [
    {"paused": True},
    {"scaling": {"replicas": 5}},
    {"rollout": {"strategy": "Replace", "progressDeadlineSeconds": 100}},
    {"drain": {"timeoutSeconds": 1}},
    {"endpoint": {"port": 8080}},
    {"model": {"uri": HF, "architecture": {"numAttentionHeads": 28}}},
    {"accelerator": {"memory": "80Gi"}},
    {"accelerator": {"type": "nvidia"}},
    {"precision": {"weights": "auto"}},
    {"parallelism": {"tensorParallelSize": 1}},
    {"runtime": {"extraArgs": [], "env": [], "sleepMode": False}},
    {"model": {"uri": HF, "architecture": {"positions": "rope"}, "s3": {}, "runner": "auto", "convert": "auto"}},
    {"attention": {"backend": "auto"}},
    {"compilation": {"enforceEager": False}},
    {"generation": {"defaults": {}}},
    {"adapters": []},
    {"multimodal": {}},
    {"multimodal": {"allowedMediaDomains": []}},
]


@pytest.mark.parametrize("change", NO_RESTART, ids=str)
def test_no_restart_for(change: Json) -> None:
    assert key(**change) == key()


def test_no_restart_for_another_care_of_the_cache() -> None:
    small = {"uri": HF, "cache": {"size": "10Gi"}}
    kept = {"retentionPolicy": "Retain", "verify": "Hash", "pruneAfterHours": 1}
    large = {"uri": HF, "cache": {"size": "20Gi", **kept}}
    assert key(model=small) == key(model=large)


A, B = {"name": "a", "uri": "hf://a/b"}, {"name": "b", "uri": "pvc://b/b"}
SAME_PODS: list[tuple[str, Json, Json]] = [
    ("the first adapter, prepared for", {"lora": {}}, {"adapters": [A]}),
    ("another one that is fetched", {"adapters": [A]}, {"adapters": [A, {"name": "c", "uri": "s3://bucket/c"}]}),
    ("one in the image", {"adapters": [A]}, {"adapters": [{"name": "c", "uri": "file:///c"}]}),
    ("one in a claim that is there", {"adapters": [B]}, {"adapters": [A, {"name": "c", "uri": "pvc://b/c"}, B]}),
    (
        "one in the model's claim",
        {"model": {"uri": "pvc://m/m"}, "lora": {}},
        {"model": {"uri": "pvc://m/m"}, "adapters": [{"name": "c", "uri": "pvc://m/c"}]},
    ),
    ("another order", {"adapters": [A, B]}, {"adapters": [B, A]}),
]


@pytest.mark.parametrize(("before", "after"), [row[1:] for row in SAME_PODS], ids=[row[0] for row in SAME_PODS])
def test_adapters_come_and_go_without_a_restart(before: Json, after: Json) -> None:
    assert key(**before) == key(**after)
    # The same key must mean the same pod: else an update would be pending for ever.
    assert render(**before) == render(**after)


RESTART: list[Json] = [
    {"model": {"uri": "hf://Qwen/Qwen2.5-7B-Instruct@main"}},
    {"model": {"uri": HF, "servedModelNames": ["a"]}},
    {"model": {"uri": HF, "trustRemoteCode": True}},
    {"model": {"uri": HF, "hfTokenSecretRef": {"name": "s", "key": "k"}}},
    {"model": {"uri": HF, "cache": {"size": "10Gi"}}},
    {"model": {"uri": HF, "cache": {"claimName": "c"}}},
    {"model": {"uri": HF, "s3": {"endpoint": "http://a.example"}}},
    {"model": {"uri": HF, "s3": {"credentialsSecretRef": {"name": "s"}}}},
    {"model": {"uri": HF, "gcs": {"endpoint": "http://a.example"}}},
    {"model": {"uri": HF, "gcs": {"credentialsSecretRef": {"name": "s", "key": "k"}}}},
    {"model": {"uri": HF, "azure": {"account": "weights"}}},
    {"model": {"uri": HF, "chatTemplate": {"configMapKeyRef": {"name": "c", "key": "k"}}}},
    {"model": {"uri": HF, "runner": "pooling"}},
    {"model": {"uri": HF, "convert": "embed"}},
    {"attention": {"backend": "FLASHINFER"}},
    {"compilation": {"enforceEager": True}},
    {"compilation": {"mode": "none"}},
    {"compilation": {"cudaGraphs": "none"}},
    {"compilation": {"optimizationLevel": 0}},
    {"contextExtension": {"factor": 2}},
    {"contextExtension": {"factor": 4}},
    {"speculativeDecoding": {"method": "ngram", "numSpeculativeTokens": 2}},
    {"speculativeDecoding": {"method": "medusa", "numSpeculativeTokens": 2, "model": {"uri": HF}}},
    {"lora": {}},
    {"lora": {"maxLoras": 2}},
    {"adapters": [B]},
    {"adapters": [{"name": "b", "uri": "pvc://c/b"}]},
    {"adapters": [{"name": "b", "uri": "image://b"}]},
    {"generation": {"seed": 7}},
    {"generation": {"toolCallParser": "hermes"}},
    {"generation": {"reasoningParser": "qwen3"}},
    {"generation": {"defaults": {"temperature": 0.5}}},
    {"multimodal": {"allowedMediaDomains": ["a.example"]}},
    {"multimodal": {"allowedMediaDomains": ["*"]}},
    {"batching": {"kvOffloadingSize": "1Gi"}},
    {"batching": {"maxNumQueuedTokens": 9}},
    {"runtime": {"sleepMode": True}},
    {"precision": {"weights": "fp8"}},
    {"parallelism": {"tensorParallelSize": 2}},
    {"batching": {"maxNumSeqs": 1}},
    {"accelerator": {"type": "cpu"}},
    {"accelerator": {"type": "cpu", "memory": "2Gi"}},
    {"accelerator": {"products": ["NVIDIA-L4"]}},
    {"endpoint": {"apiKeySecretRef": {"name": "s", "key": "k"}}},
    {"runtime": {"image": "a:v0.32.0"}},
    {"runtime": {"env": [{"name": "A", "value": "b"}]}},
    {"runtime": {"extraArgs": ["--stream-interval=7"]}},
    {"runtime": {"imagePullSecrets": [{"name": "s"}]}},
    {"podTemplate": {"metadata": {"labels": {"a": "b"}}}},
    {"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}},
]


def test_every_change_that_needs_a_restart_has_a_key_of_its_own() -> None:
    keys = [key(**change) for change in RESTART] + [key()]
    assert len(set(keys)) == len(keys)


def test_the_key_never_changes_by_itself() -> None:
    """A version of the operator that changed it would restart every model at once."""
    assert key() == "ca05eaf2b9"
    assert key(batching={"maxNumSeqs": 8}, accelerator={"type": "cpu"}) == "6eaa669aef"
