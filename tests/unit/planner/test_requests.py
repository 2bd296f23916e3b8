"""From a spec to a question to the planner: every field that memory depends on, and none that it does not."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_api.service import parse_spec
from llmservice_planner.model.architecture import Architecture
from llmservice_planner.plan import Adapters, Device, Draft, Request
from llmservice_planner.requests import cpu, request_of

L4 = Device("NVIDIA-L4", 22.03, (8, 9))
MODEL = Architecture("LlamaForCausalLM", 64, 256, (), max_position_embeddings=8192, default_max_len=4096)


def asked(**sections: Any) -> Request:
    spec = parse_spec({"model": {"uri": "hf://a/b"}} | sections)
    return request_of(
        spec, architecture=MODEL, tensors=None, device=L4, vllm_version="0.32.0", cpu_kv_cache_gib=4, draft=None
    )


def test_what_is_not_set_is_left_to_vllm() -> None:
    assert asked() == Request(MODEL, L4, vllm_version="0.32.0")


VIDEO = frozenset({"video"})
DRAFT = {"method": "eagle3", "model": {"uri": "hf://a/eagle"}, "numSpeculativeTokens": 3, "draftTensorParallelSize": 1}


def args(*arguments: str) -> dict[str, Any]:
    return {"runtime": {"extraArgs": list(arguments)}}


FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"precision": {"dtype": "float16"}}, {"dtype": "float16"}),
    ({"precision": {"weights": "fp8"}}, {"weights": "fp8"}),
    ({"precision": {"quantization": "awq"}}, {"quantization": "awq"}),
    ({"precision": {"kvCache": "fp8"}}, {"kv_cache_dtype": "fp8"}),
    ({"parallelism": {"tensorParallelSize": 2}}, {"tensor_parallel_size": 2}),
    ({"parallelism": {"pipelineParallelSize": 2}}, {"pipeline_parallel_size": 2}),
    ({"parallelism": {"dataParallelSize": 2}}, {"data_parallel_size": 2}),
    (
        {"parallelism": {"tensorParallelSize": 2, "expertParallel": True}},
        {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    ),
    ({"batching": {"maxModelLen": 4096}}, {"max_model_len": 4096}),
    ({"batching": {"maxModelLen": "auto"}}, {"max_model_len": "auto"}),
    ({"batching": {"maxNumSeqs": 8}}, {"max_num_seqs": 8}),
    ({"batching": {"maxNumBatchedTokens": 512}}, {"max_num_batched_tokens": 512}),
    ({"batching": {"blockSize": 32}}, {"block_size": 32}),
    ({"accelerator": {"gpuMemoryUtilization": 0.8}}, {"gpu_memory_utilization": 0.8}),
    ({"compilation": {"enforceEager": True}}, {"enforce_eager": True}),
    ({"compilation": {"cudaGraphs": "piecewise"}}, {"cuda_graphs": "piecewise"}),
    ({"compilation": {"optimizationLevel": 0}}, {"cuda_graphs": "none"}),
    ({"compilation": {"optimizationLevel": 0, "cudaGraphs": "full"}}, {"cuda_graphs": "full"}),
    ({"lora": {}}, {"adapters": Adapters(1, 16)}),
    ({"lora": {"maxLoras": 4, "maxLoraRank": 64}}, {"adapters": Adapters(4, 64)}),
    ({"adapters": [{"name": "s", "uri": "hf://a/s"}]}, {"adapters": Adapters(1, 16)}),
    ({"speculativeDecoding": DRAFT}, {"draft": Draft("eagle3", 3, None, 1)}),
    (
        {"speculativeDecoding": {"method": "ngram", "numSpeculativeTokens": 4}},
        {"draft": Draft("ngram", 4)},
    ),
    (args("--kv-cache-memory-bytes", "8G"), {"kv_cache_memory_bytes": 8 * 2**30}),
    (args("--kv-cache-memory-bytes=8g"), {"kv_cache_memory_bytes": 8 * 10**9}),
    (args("--kv_cache_memory_bytes", "1000"), {"kv_cache_memory_bytes": 1000}),
    (args("--kv-cache-memory-bytes"), {}),
    (args("--kv-cache-memory-bytes=lots"), {}),
    (args("--limit-mm-per-prompt", '{"video": 0}'), {"disabled_inputs": VIDEO}),
    (args('--limit-mm-per-prompt={"video": {"count": 0}, "image": 2}'), {"disabled_inputs": VIDEO}),
    (args("--limit-mm-per-prompt.video=0"), {"disabled_inputs": VIDEO}),
    (args("--limit_mm_per_prompt.video", "0"), {"disabled_inputs": VIDEO}),
    (args("--limit-mm-per-prompt.video", "1"), {}),
    (args("--language-model-only"), {"disabled_inputs": frozenset({"image", "video"})}),
    (args("--language-model"), {"disabled_inputs": frozenset({"image", "video"})}),
    (args("--language-model-only", "--no-language-model-only"), {}),
    (args("--no-skip-mm-profiling"), {}),
    (args("--limit-mm-per", '{"video": 0}'), {"disabled_inputs": VIDEO}),
    (args("--limit-mm-per-prompt", "[" * 1000), {}),
    (args("--limit-mm-per-prompt", "[0]"), {}),
    ({"drain": {"timeoutSeconds": 5}, "scaling": {"replicas": 3}, "fitPolicy": "Warn"}, {}),
]


@pytest.mark.parametrize(("sections", "changes"), FIELDS, ids=[str(sections) for sections, _ in FIELDS])
def test_a_field_reaches_the_planner(sections: dict[str, Any], changes: dict[str, Any]) -> None:
    assert asked(**sections) == Request(MODEL, L4, vllm_version="0.32.0", **changes)


@pytest.mark.parametrize(
    ("extension", "length"),
    [({"factor": 4}, 32768), ({"factor": 2.5}, 20480), ({"factor": 4, "originalMaxPositionEmbeddings": 1024}, 4096)],
)
def test_an_extended_context_is_the_models_own(extension: dict[str, Any], length: int) -> None:
    model = asked(contextExtension=extension).architecture
    assert model is not None
    assert (model.max_position_embeddings, model.default_max_len) == (length, None)


def test_a_cpu_is_as_large_as_its_kv_cache() -> None:
    request = asked(accelerator={"type": "cpu"})
    assert request.device == cpu(4)
    assert request.device is not None
    assert (request.device.is_cpu, request.device.memory_gib) == (True, 4.0)


OFFLOADED: dict[str, tuple[list[str], float, bool]] = {
    # extraArgs, GiB of weights that stay in the node's memory, and whether tables of n-grams are on the GPU
    "nothing": ([], 0, False),
    "weights": (["--cpu-offload-gb", "10"], 10, False),
    "the last one counts": (["--cpu_offload_gb=10", "--cpu-offload-gb=2.5"], 2.5, False),
    "no number": (["--cpu-offload-gb", "much"], 0, False),
    "tables": (["--engram-config", '{"cpu_offload": false}'], 0, True),
    "tables, dotted": (["--engram-config.cpu_offload", "false"], 0, True),
    "tables, as by default": (["--engram-config", '{"cpu_offload": true}'], 0, False),
}


@pytest.mark.parametrize(("arguments", "weights", "tables"), OFFLOADED.values(), ids=OFFLOADED)
def test_what_stays_in_the_nodes_memory(arguments: list[str], weights: float, tables: bool) -> None:
    spec = parse_spec({"model": {"uri": "hf://a/b"}, "runtime": {"extraArgs": arguments}})
    known: dict[str, Any] = {"architecture": None, "tensors": None, "device": None}
    found = request_of(spec, **known, vllm_version="0.32.0", cpu_kv_cache_gib=1)
    assert (found.cpu_offload_gib, found.tables_on_gpu) == (weights, tables)
