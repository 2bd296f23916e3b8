"""status.effective: the values in force for what the user left out, and nothing that the schema would drop."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from llmservice_api.crd import at, schema
from llmservice_api.service import LLMService
from llmservice_operator.manifests.pod_template import Server, effective, pod_template, server

from tests.unit.decide_world import an_llmservice, spec
from tests.unit.operator.test_build_deployment import SETTINGS, table

Json = dict[str, Any]
EVERYTHING: Json = yaml.safe_load("""
model: {uri: hf://a/b@v1, runner: generate, convert: none}
batching: {maxNumQueuedTokens: 9, longPrefillTokenThreshold: 8, prefixCachingHashAlgo: xxhash, kvOffloadingSize: 1Gi}
attention: {backend: FLASHINFER}
compilation: {mode: vllmCompile, cudaGraphs: full, optimizationLevel: 1}
contextExtension: {factor: 4, originalMaxPositionEmbeddings: 8}
speculativeDecoding: {method: draftModel, model: {uri: hf://c/d}, numSpeculativeTokens: 2, draftTensorParallelSize: 1}
lora: {maxLoras: 2, maxLoraRank: 32, maxCpuLoras: 4}
generation:
  toolCallParser: a
  reasoningParser: b
  seed: 7
  defaults: {temperature: 0.5, topP: 0.5, topK: 5, minP: 0.5, repetitionPenalty: 1.5, maxTokens: 5}
runtime: {sleepMode: true}
""")


def effective_of(**sections: object) -> Json:
    llm = LLMService.from_object(an_llmservice(spec(**sections)))
    return effective(llm, pod_template(llm, SETTINGS))


IN_FORCE = """
compiled: [{}, compilation, {enforceEager: false, optimizationLevel: 2}]
eager: [{compilation: {enforceEager: true}}, compilation, {enforceEager: true, mode: none, cudaGraphs: none}]
level 0: [{compilation: {optimizationLevel: 0}}, compilation, {enforceEager: false, optimizationLevel: 0}]
batching:
- {batching: {schedulingPolicy: priority, prefixCachingHashAlgo: xxhash}}
- batching
- {longPrefillTokenThreshold: 0, prefixCachingHashAlgo: xxhash, schedulingPolicy: priority}
offloading:
- {batching: {kvOffloadingSize: 1Gi}}
- batching
- kvOffloadingBackend: native
  kvOffloadingSize: 1Gi
  longPrefillTokenThreshold: 0
  prefixCachingHashAlgo: sha256
  schedulingPolicy: fcfs
any attention: [{}, attention, {backend: auto}]
no adapters: [{}, lora, null]
LoRA: [{lora: {}}, lora, {maxLoras: 1, maxLoraRank: 16, maxCpuLoras: 1}]
an adapter: [{adapters: [{name: a, uri: hf://a/b}]}, lora, {maxLoras: 1, maxLoraRank: 16, maxCpuLoras: 1}]
more LoRA: [{lora: {maxLoras: 3}}, lora, {maxLoras: 3, maxLoraRank: 16, maxCpuLoras: 3}]
no speculation: [{}, speculativeDecoding, null]
no extension: [{}, contextExtension, null]
extended: [{contextExtension: {factor: 2}}, contextExtension, {method: yarn, factor: 2}]
the model's own: [{}, generation, {seed: 0}]
top k: [{generation: {defaults: {topK: 0}}}, generation, {seed: 0, defaults: {topK: 0}}]
"""


@pytest.mark.parametrize(("sections", "part", "expected"), table(IN_FORCE))
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
