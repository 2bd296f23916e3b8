"""status.effective: the values in force for what the user left out, and nothing that the schema would drop."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.api.crd import schema
from llmservice_operator.api.schema import at
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.effective import effective
from llmservice_operator.build.server import Server, server
from llmservice_operator.build.template import pod_template

from tests.unit.decide_world import an_llmservice, spec
from tests.unit.test_build_template import SETTINGS

Json = dict[str, Any]
EVERYTHING: Json = {
    "model": {"uri": "hf://a/b@v1", "runner": "generate", "convert": "none"},
    "batching": {
        "maxNumQueuedTokens": 9,
        "longPrefillTokenThreshold": 8,
        "prefixCachingHashAlgo": "xxhash",
        "kvOffloadingSize": "1Gi",
    },
    "attention": {"backend": "FLASHINFER"},
    "compilation": {"mode": "vllmCompile", "cudaGraphs": "full", "optimizationLevel": 1},
    "contextExtension": {"factor": 4, "originalMaxPositionEmbeddings": 8},
    "speculativeDecoding": {
        "method": "draftModel",
        "model": {"uri": "hf://c/d"},
        "numSpeculativeTokens": 2,
        "draftTensorParallelSize": 1,
    },
    "lora": {"maxLoras": 2, "maxLoraRank": 32, "maxCpuLoras": 4},
    "generation": {
        "toolCallParser": "a",
        "reasoningParser": "b",
        "seed": 7,
        "defaults": {"temperature": 0.5, "topP": 0.5, "topK": 5, "minP": 0.5, "repetitionPenalty": 1.5, "maxTokens": 5},
    },
    "runtime": {"sleepMode": True},
}


def effective_of(**sections: object) -> Json:
    llm = LLMService.from_object(an_llmservice(spec(**sections)))
    return effective(llm, pod_template(llm, SETTINGS))


@pytest.mark.parametrize(
    ("sections", "part", "expected"),
    [
        pytest.param({}, "compilation", {"enforceEager": False, "optimizationLevel": 2}, id="compiled"),
        pytest.param(
            {"compilation": {"enforceEager": True}},
            "compilation",
            {"enforceEager": True, "mode": "none", "cudaGraphs": "none"},
            id="eager",
        ),
        pytest.param(
            {"compilation": {"optimizationLevel": 0}},
            "compilation",
            {"enforceEager": False, "optimizationLevel": 0},
            id="level 0",
        ),
        pytest.param(
            {"batching": {"schedulingPolicy": "priority", "prefixCachingHashAlgo": "xxhash"}},
            "batching",
            {"longPrefillTokenThreshold": 0, "prefixCachingHashAlgo": "xxhash", "schedulingPolicy": "priority"},
            id="batching",
        ),
        pytest.param(
            {},
            "batching",
            {"longPrefillTokenThreshold": 0, "prefixCachingHashAlgo": "sha256", "schedulingPolicy": "fcfs"},
            id="batching by default",
        ),
        pytest.param(
            {"batching": {"kvOffloadingSize": "1Gi"}},
            "batching",
            {
                "kvOffloadingBackend": "native",
                "kvOffloadingSize": "1Gi",
                "longPrefillTokenThreshold": 0,
                "prefixCachingHashAlgo": "sha256",
                "schedulingPolicy": "fcfs",
            },
            id="offloading",
        ),
        pytest.param({}, "attention", {"backend": "auto"}, id="any attention"),
        pytest.param({}, "lora", None, id="no adapters"),
        pytest.param({"lora": {}}, "lora", {"maxLoras": 1, "maxLoraRank": 16, "maxCpuLoras": 1}, id="LoRA"),
        pytest.param(
            {"adapters": [{"name": "a", "uri": "hf://a/b"}]},
            "lora",
            {"maxLoras": 1, "maxLoraRank": 16, "maxCpuLoras": 1},
            id="an adapter",
        ),
        pytest.param(
            {"lora": {"maxLoras": 3}}, "lora", {"maxLoras": 3, "maxLoraRank": 16, "maxCpuLoras": 3}, id="more LoRA"
        ),
        pytest.param({}, "speculativeDecoding", None, id="no speculation"),
        pytest.param({}, "contextExtension", None, id="no extension"),
        pytest.param(
            {"contextExtension": {"factor": 2}}, "contextExtension", {"method": "yarn", "factor": 2}, id="extended"
        ),
        pytest.param({}, "generation", {"seed": 0}, id="the model's own"),
        pytest.param(
            {"generation": {"defaults": {"topK": 0}}}, "generation", {"seed": 0, "defaults": {"topK": 0}}, id="top k"
        ),
    ],
)
def test_what_is_in_force(sections: Json, part: str, expected: Json | None) -> None:
    assert effective_of(**sections).get(part) == expected


def leaves(part: Json, path: str) -> list[str]:
    found = []
    for name, value in part.items():
        found += leaves(value, f"{path}.{name}") if isinstance(value, dict) else [f"{path}.{name}"]
    return found


def test_the_schema_has_every_effective_field() -> None:
    root = schema()
    paths = leaves(effective_of(**EVERYTHING), "status.effective")
    assert len(paths) > 50
    for path in paths:
        assert at(root, path), path


def test_what_the_spec_sets_is_in_force() -> None:
    given = {path for section, part in EVERYTHING.items() for path in leaves(part, section)} - {"model.uri"}
    assert given <= {path.removeprefix(".") for path in leaves(effective_of(**EVERYTHING), "")}


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        pytest.param({"image": "a:v0.31.0"}, Server("a:v0.31.0", "0.31.0", 120), id="an image"),
        pytest.param(
            {"image": "a" * 1025, "args": ["--expected-version=" + "1" * 1025]}, Server(None, None, 120), id="long"
        ),
        pytest.param({"image": 7, "args": "--drain-seconds=5"}, Server(None, None, 120), id="of other types"),
    ],
)
def test_values_of_a_recorded_template_fit_into_the_status(container: Json, expected: Server) -> None:
    """Whoever may write ControllerRevisions may have written it."""
    template = {"spec": {"containers": [{"name": "server", **container}]}}
    assert server(template) == expected
