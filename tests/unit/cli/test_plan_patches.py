"""Options of `llmservice plan` are patches of an LLMService: however a value is given, the plan is the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.cli_world import LLAMA_8B, Command, Json, manifest

ON_A_CLAIM = {"uri": "pvc://models/llama"}
GPU = ("--gpu", "NVIDIA-L4")
NAMED_BY_USERS = ("id", "version", "service", "namespace", "notes", "remedies", "reason")
"""Of a plan's JSON: what says which option or field is meant."""

# Options, the keys of a line of a batch, and the fields of a spec.
SAME: list[tuple[str, Mapping[str, Any], Json]] = [
    ("--max-model-len 8K", {"max_model_len": "8K"}, {"batching": {"maxModelLen": 8192}}),
    ("--max-model-len auto", {"max_model_len": -1}, {"batching": {"maxModelLen": "auto"}}),
    ("-tp 2 -pp 2", {"tp": 2, "pp": 2}, {"parallelism": {"tensorParallelSize": 2, "pipelineParallelSize": 2}}),
    ("--quantization fp8", {"quantization": "fp8"}, {"precision": {"quantization": "fp8"}}),
    (
        "--quantization gptq-8bit",
        {"quantization": "gptq int8"},
        {"precision": {"quantization": "gptq", "weights": "int8"}},
    ),
    ("--quantization w4a16", {"quantization": "4bit"}, {"precision": {"weights": "int4"}}),
    ("--kv-cache-dtype fp8", {"kvCacheDtype": "fp8"}, {"precision": {"kvCache": "fp8"}}),
    ("--gpu-memory-utilization 0.5", {"gpu_memory_utilization": 0.5}, {"accelerator": {"gpuMemoryUtilization": 0.5}}),
    ("--max-num-seqs 8", {"max_num_seqs": 8}, {"batching": {"maxNumSeqs": 8}}),
    ("--block-size 32", {"block_size": 32}, {"batching": {"blockSize": 32}}),
    ("--enforce-eager", {"eager": True}, {"compilation": {"enforceEager": True}}),
    ("--max-lora-rank 64", {"max_lora_rank": 64}, {"lora": {"maxLoraRank": 64}}),
    ("--enable-lora", {"enable_lora": True}, {"lora": {}}),
    ("--no-enable-lora --max-loras 8", {"enable_lora": False, "max_loras": 8}, {}),
    ("--vllm-version 0.31.0", {"vllm_version": "0.31"}, {"runtime": {"version": "0.31.0"}}),
    (
        "--kv-cache-memory-bytes 2G",
        {"kv_cache_memory_bytes": "2G"},
        {"runtime": {"extraArgs": ["--kv-cache-memory-bytes=2G"]}},
    ),
]


@pytest.mark.parametrize(("words", "keys", "spec"), SAME, ids=[words for words, _, _ in SAME])
def test_a_value_is_planned_alike_as_an_option_a_key_and_a_field(
    words: str, keys: Mapping[str, Any], spec: Json, llmservice: Command
) -> None:
    config, json_ = ("--config", llmservice.config()), ("-o", "json", "--offline")
    line = llmservice.text("cases.jsonl", json.dumps({"gpu": "NVIDIA-L4", "config": dict(LLAMA_8B), **keys}))
    plain = llmservice.text("plain.yaml", json.dumps(manifest(model=ON_A_CLAIM)))
    full = llmservice.text("full.yaml", json.dumps(manifest(model=ON_A_CLAIM, **spec)))
    ways = {
        "options alone": (*config, *GPU, *json_, *words.split()),
        "options beside a manifest": ("-f", plain, *config, *GPU, *json_, *words.split()),
        "a manifest": ("-f", full, *config, *GPU, *json_),
        "a line of a batch": ("--batch", line, "--offline"),
    }
    found = {way: figures(llmservice("plan", *typed).json) for way, typed in ways.items()}
    assert found["options alone"]["kvCacheTokens"] is not None
    for way, plan in found.items():
        assert plan == found["options alone"], way


def figures(plan: Json) -> Json:
    return {key: value for key, value in plan.items() if key not in NAMED_BY_USERS}


def test_an_option_takes_adapters_out_of_a_manifest(llmservice: Command) -> None:
    words = ("--config", llmservice.config(), *GPU, "-o", "json", "--offline")
    with_room = ("plan", "-f", llmservice.manifest(manifest(model=ON_A_CLAIM, lora={"maxLoras": 8})), *words)
    tokens = [llmservice(*with_room, *more).json["kvCacheTokens"] for more in ((), ("--no-enable-lora",))]
    assert tokens[0] < tokens[1] == llmservice("plan", *words).json["kvCacheTokens"]


def test_what_is_said_of_the_weights_is_about_what_is_planned(llmservice: Command) -> None:
    """The spec has no word for NVFP4 of all linears: the option is planned, and not the method that stands for it."""
    file = llmservice.manifest(manifest(model=ON_A_CLAIM, precision={"quantization": "compressed-tensors"}))
    words = ("plan", "-f", file, "--config", llmservice.config(), "--gpu", "NVIDIA-H200", "-o", "json", "--offline")
    eight = llmservice(*words).json
    four = llmservice(*words, "--quantization", "nvfp4").json
    assert ["taken as 8 bit" in note for note in eight["notes"]] == [True]
    assert four["notes"] == ["--quantization instead of spec.precision.quantization: compressed-tensors"]
    assert four["weightsGiB"] < 0.75 * eight["weightsGiB"]


BEYOND_THE_SPEC = {
    "-tp 128": "--tensor-parallel-size: must be less than or equal to 64, not 128. Lower it.",
    "--block-size 7": "--block-size: 7 is not supported. Write one of 1, 8, 16, 32, 64, 128, 256.",
    "--quantization gguf": "--quantization: 'gguf' is not supported. Write one of ",
}


@pytest.mark.parametrize(("words", "error"), BEYOND_THE_SPEC.items(), ids=BEYOND_THE_SPEC)
def test_what_the_spec_does_not_take_is_planned_unless_the_operator_is_to_run_it(
    words: str, error: str, llmservice: Command
) -> None:
    """Options alone may be of a vLLM that somebody else starts; bad ones are told before a cluster is asked."""
    heads = {"num_attention_heads": 128, "num_key_value_heads": 128}
    typed = ("plan", "--config", llmservice.config(**heads), *GPU, "--max-model-len", "8K", *words.split())
    plain, planned = (llmservice(*words, "-o", "json").json for words in (typed[:-2], typed))
    assert figures(plain) != figures(planned)
    ran = llmservice(*typed, "--kubeconfig", str(llmservice.folder / "none"))
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert ran.err.startswith(f"error: {error}")
