"""From the fields of a service to vLLM's command line."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from llmservice_api.flags import FLAGS, KEYED, OPERATOR_OWNED, TYPED
from llmservice_api.service import LLMService
from llmservice_operator.manifests.revision import RevisionChoices
from llmservice_operator.manifests.server import vllm_arguments
from llmservice_vllm.versions import default_version, flag_table

from tests.unit.decide_world import an_llmservice

Json = dict[str, Any]
OWN = (
    "--host", "::",
    "--port", "8000",
    "--middleware", "llmservice_runtime.middleware.DrainMiddleware",
    "--shutdown-timeout", "0",
    "--disable-access-log-for-endpoints", "/health,/metrics",
)  # fmt: skip
MODEL: Json = {"uri": "file:///m", "servedModelNames": ["n"]}


def arguments(sections: Json, chosen: RevisionChoices | None = None) -> tuple[str, ...]:
    spec = {"multimodal": {"allowedMediaDomains": ["*"]}, **sections, "model": MODEL | sections.get("model", {})}
    return vllm_arguments(LLMService.from_object(an_llmservice(spec)), default_version(), *([chosen] if chosen else []))


FLAGS_OF: list[tuple[Json, str]] = yaml.safe_load("""
- [{}, ""]
- [{model: {servedModelNames: [n, b]}}, b]
- [{model: {runner: pooling, convert: embed}}, --runner pooling --convert embed]
- [{model: {runner: auto, convert: auto}}, ""]
- [{model: {chatTemplate: {configMapKeyRef: {name: a, key: b}}}},
   --chat-template /llmservice/chat-template/template.jinja]
- [{model: {trustRemoteCode: true}}, --trust-remote-code]
- [{precision: {dtype: bfloat16}}, --dtype bfloat16]
- [{precision: {weights: float16}}, --dtype float16]
- [{precision: {weights: float32, dtype: float16}}, --dtype float16]
- [{precision: {weights: fp8}}, --quantization fp8]
- [{precision: {weights: fp8, quantization: mxfp8}}, --quantization mxfp8]
- [{precision: {weights: int4}}, ""]
- [{precision: {weights: int8}}, ""]
- [{precision: {kvCache: fp8}}, --kv-cache-dtype fp8]
- [{parallelism: {tensorParallelSize: 2}}, --tensor-parallel-size 2]
- [{parallelism: {pipelineParallelSize: 2}}, --pipeline-parallel-size 2]
- [{parallelism: {dataParallelSize: 2}}, --data-parallel-size 2]
- [{parallelism: {tensorParallelSize: 1, expertParallel: true}}, --enable-expert-parallel]
- [{batching: {maxNumSeqs: 4}}, --max-num-seqs 4]
- [{batching: {maxNumBatchedTokens: 4}}, --max-num-batched-tokens 4]
- [{batching: {maxModelLen: 4096}}, --max-model-len 4096]
- [{batching: {maxModelLen: auto}}, --max-model-len auto]
- [{batching: {maxNumQueuedRequests: 1}}, --max-num-queued-reqs 1]
- [{batching: {maxNumQueuedTokens: 9}}, --max-num-queued-tokens 9]
- [{batching: {chunkedPrefill: true}}, --enable-chunked-prefill]
- [{batching: {chunkedPrefill: false}}, --no-enable-chunked-prefill]
- [{batching: {prefixCaching: false}}, --no-enable-prefix-caching]
- [{batching: {prefixCachingHashAlgo: sha256}}, --prefix-caching-hash-algo sha256]
- [{batching: {longPrefillTokenThreshold: 9}}, --long-prefill-token-threshold 9]
- [{batching: {longPrefillTokenThreshold: 0}}, ""]
- [{batching: {kvOffloadingSize: 64Gi}}, --kv-offloading-size 64]
- [{batching: {kvEvents: {enabled: false}}}, ""]
- [{batching: {kvEvents: {enabled: true}}},
   '--prefix-caching-hash-algo sha256_cbor --kv-events-config
   {"enable_kv_cache_events":true,"endpoint":"inproc://kv-events","replay_endpoint":"tcp://127.0.0.1:5558"}']
- [{batching: {prefixCachingHashAlgo: sha256, kvEvents: {enabled: true, port: 6000, replayPort: 6001}}},
   '--prefix-caching-hash-algo sha256 --kv-events-config
   {"enable_kv_cache_events":true,"endpoint":"tcp://*:6000","replay_endpoint":"tcp://*:6001","topic":"kv@$(LLMSERVICE_POD_IP):8000@n"}']
- [{batching: {kvOffloadingSize: 512Mi, kvOffloadingBackend: lmcache}},
   --kv-offloading-size 0.5 --kv-offloading-backend lmcache]
- [{batching: {schedulingPolicy: priority}}, --scheduling-policy priority]
- [{batching: {blockSize: 16}}, --block-size 16]
- [{attention: {backend: FLASHINFER}}, --attention-backend FLASHINFER]
- [{attention: {backend: auto}}, ""]
- [{compilation: {enforceEager: true}}, --enforce-eager]
- [{compilation: {mode: vllmCompile, cudaGraphs: fullAndPiecewise}},
   '--compilation-config {"cudagraph_mode":"FULL_AND_PIECEWISE","mode":"VLLM_COMPILE"}']
- [{compilation: {cudaGraphs: none}}, '--compilation-config {"cudagraph_mode":"NONE"}']
- [{compilation: {optimizationLevel: 0}}, --optimization-level 0]
- [{speculativeDecoding: {method: ngram, numSpeculativeTokens: 3, promptLookupMin: 2, promptLookupMax: 4}},
   '--speculative-config {"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4,"prompt_lookup_min":2}']
- [{speculativeDecoding:
     {method: draftModel, model: {uri: file:///d}, numSpeculativeTokens: 3, draftTensorParallelSize: 1}},
   '--speculative-config
   {"draft_tensor_parallel_size":1,"method":"draft_model","model":"/d","num_speculative_tokens":3}']
- [{lora: {}}, --enable-lora]
- [{adapters: [{name: a, uri: hf://a/b}]}, --enable-lora]
- [{lora: {maxLoras: 2, maxLoraRank: 32, maxCpuLoras: 4}},
   --enable-lora --max-loras 2 --max-lora-rank 32 --max-cpu-loras 4]
- [{generation: {toolCallParser: hermes}}, --enable-auto-tool-choice --tool-call-parser hermes]
- [{generation: {reasoningParser: qwen3}}, --reasoning-parser qwen3]
- [{generation: {seed: 7}}, --seed 7]
- [{generation: {seed: 0}}, ""]
- [{generation: {defaults: {temperature: 0, topK: 20, maxTokens: 64}}},
   '--override-generation-config {"max_new_tokens":64,"temperature":0.0,"top_k":20}']
- [{generation: {defaults: {}}}, ""]
- [{multimodal: {allowedMediaDomains: [a, b]}}, --allowed-media-domains a b]
- [{multimodal: {}}, --allowed-media-domains spec.multimodal.allowedMediaDomains]
- [{runtime: {sleepMode: true}}, --enable-sleep-mode]
- [{accelerator: {gpuMemoryUtilization: 0.9}}, --gpu-memory-utilization 0.9]
""")


@pytest.mark.parametrize(("sections", "flags"), FLAGS_OF, ids=str)
def test_flags_of_a_field(sections: Json, flags: str) -> None:
    assert arguments(sections) == ("--model", "/m", "--served-model-name", "n", *flags.split(), *OWN)


def test_auto_is_the_length_that_was_chosen() -> None:
    assert "1234" in arguments({"batching": {"maxModelLen": "auto"}}, RevisionChoices(max_model_len=1234))


def test_extra_args_come_last() -> None:
    assert arguments({"runtime": {"extraArgs": ["--async-scheduling"]}})[-1] == "--async-scheduling"


def test_the_order_of_the_spec_does_not_matter() -> None:
    sections: Json = {"batching": {"maxNumSeqs": 4, "prefixCaching": True}, "precision": {"dtype": "float32"}}
    backwards: Json = {name: dict(reversed(section.items())) for name, section in reversed(sections.items())}
    assert arguments(sections) == arguments(backwards)


def test_every_typed_and_owned_flag_exists_under_its_first_name() -> None:
    names = {flag.name for flag in flag_table(default_version()).flags}
    assert sorted({*TYPED, *KEYED, *OPERATOR_OWNED} - names) == []


def test_no_flag_is_both_typed_and_owned_or_stands_for_two_fields() -> None:
    assert TYPED.keys() & OPERATOR_OWNED.keys() == set()
    assert KEYED.keys() & (TYPED.keys() | OPERATOR_OWNED.keys()) == set()
    assert len({flag.name for flag in FLAGS}) == len(FLAGS)


def test_each_flag_of_a_field_is_in_the_table_above() -> None:
    shown = {token for _, flags in FLAGS_OF for token in flags.replace("--no-", "--").split()}
    assert {flag.name.partition(".")[0] for flag in FLAGS} - shown == {"--model", "--served-model-name"}
