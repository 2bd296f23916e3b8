"""From the knobs of a service to vLLM's command line."""

from __future__ import annotations

import pytest
from llmservice_runtime.flags import (
    KEYED,
    OPERATOR_OWNED,
    TYPED,
    EngineOptions,
    GenerationDefaults,
    LoRA,
    Speculation,
    flag_table,
    render,
)

OWN = (
    "--host", "0.0.0.0",
    "--port", "8000",
    "--middleware", "llmservice_runtime.middleware.DrainMiddleware",
    "--shutdown-timeout", "0",
    "--disable-access-log-for-endpoints", "/health,/metrics",
)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        pytest.param({}, (), id="the smallest"),
        pytest.param({"served_model_names": ("a", "b")}, ("--served-model-name", "a", "b"), id="served names"),
        pytest.param(
            {"runner": "pooling", "convert": "embed"}, ("--runner", "pooling", "--convert", "embed"), id="pool"
        ),
        pytest.param({"runner": "auto", "convert": "auto"}, (), id="no runner"),
        pytest.param({"chat_template": "/t.jinja"}, ("--chat-template", "/t.jinja"), id="chat template"),
        pytest.param({"trust_remote_code": True}, ("--trust-remote-code",), id="trust"),
        pytest.param({"dtype": "bfloat16"}, ("--dtype", "bfloat16"), id="dtype"),
        pytest.param({"weights": "float16"}, ("--dtype", "float16"), id="float weights are the dtype"),
        pytest.param({"weights": "float32", "dtype": "float16"}, ("--dtype", "float16"), id="dtype wins"),
        pytest.param({"weights": "fp8"}, ("--quantization", "fp8"), id="fp8, at load or the checkpoint's"),
        pytest.param({"weights": "fp8", "quantization": "mxfp8"}, ("--quantization", "mxfp8"), id="a named method"),
        pytest.param({"weights": "int4"}, (), id="int4 is the checkpoint's"),
        pytest.param({"weights": "int8"}, (), id="int8 is the checkpoint's"),
        pytest.param({"kv_cache": "fp8"}, ("--kv-cache-dtype", "fp8"), id="cache"),
        pytest.param({"tensor_parallel_size": 2}, ("--tensor-parallel-size", "2"), id="TP"),
        pytest.param({"pipeline_parallel_size": 2}, ("--pipeline-parallel-size", "2"), id="PP"),
        pytest.param({"data_parallel_size": 2}, ("--data-parallel-size", "2"), id="DP"),
        pytest.param({"expert_parallel": True}, ("--enable-expert-parallel",), id="EP"),
        pytest.param({"max_num_seqs": 4}, ("--max-num-seqs", "4"), id="seqs"),
        pytest.param({"max_num_batched_tokens": 4}, ("--max-num-batched-tokens", "4"), id="batched tokens"),
        pytest.param({"max_model_len": 4096}, ("--max-model-len", "4096"), id="length"),
        pytest.param({"max_model_len": "auto"}, ("--max-model-len", "auto"), id="length auto"),
        pytest.param({"max_num_queued_requests": 0}, ("--max-num-queued-reqs", "0"), id="no queue"),
        pytest.param({"max_num_queued_tokens": 9}, ("--max-num-queued-tokens", "9"), id="queued tokens"),
        pytest.param({"chunked_prefill": True}, ("--enable-chunked-prefill",), id="chunked"),
        pytest.param({"chunked_prefill": False}, ("--no-enable-chunked-prefill",), id="not chunked"),
        pytest.param({"prefix_caching": False}, ("--no-enable-prefix-caching",), id="no prefix caching"),
        pytest.param({"prefix_caching_hash_algo": "xxhash"}, ("--prefix-caching-hash-algo", "xxhash"), id="hash"),
        pytest.param({"long_prefill_token_threshold": 9}, ("--long-prefill-token-threshold", "9"), id="long prompts"),
        pytest.param({"long_prefill_token_threshold": 0}, (), id="no prompt is long"),
        pytest.param({"kv_offloading_gib": 64.0}, ("--kv-offloading-size", "64"), id="offloading"),
        pytest.param(
            {"kv_offloading_gib": 0.5, "kv_offloading_backend": "lmcache"},
            ("--kv-offloading-size", "0.5", "--kv-offloading-backend", "lmcache"),
            id="offloading by LMCache",
        ),
        pytest.param({"attention_backend": "FLASHINFER"}, ("--attention-backend", "FLASHINFER"), id="attention"),
        pytest.param({"attention_backend": "auto"}, (), id="any attention"),
        pytest.param({"enforce_eager": True}, ("--enforce-eager",), id="eager"),
        pytest.param(
            {"compilation_mode": "vllmCompile", "cuda_graphs": "fullAndPiecewise"},
            ("--compilation-config", '{"cudagraph_mode":"FULL_AND_PIECEWISE","mode":"VLLM_COMPILE"}'),
            id="compilation",
        ),
        pytest.param({"cuda_graphs": "none"}, ("--compilation-config", '{"cudagraph_mode":"NONE"}'), id="no graphs"),
        pytest.param({"optimization_level": 0}, ("--optimization-level", "0"), id="optimization level"),
        pytest.param(
            {"speculation": Speculation("ngram", 3, prompt_lookup_min=2, prompt_lookup_max=4)},
            (
                "--speculative-config",
                '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4,"prompt_lookup_min":2}',
            ),
            id="ngram",
        ),
        pytest.param(
            {"speculation": Speculation("draftModel", 3, "/draft", draft_tensor_parallel_size=1)},
            (
                "--speculative-config",
                '{"draft_tensor_parallel_size":1,"method":"draft_model","model":"/draft","num_speculative_tokens":3}',
            ),
            id="draft model",
        ),
        pytest.param({"lora": LoRA()}, ("--enable-lora",), id="LoRA"),
        pytest.param(
            {"lora": LoRA(2, 32, 4)},
            ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "32", "--max-cpu-loras", "4"),
            id="LoRA of some size",
        ),
        pytest.param(
            {"tool_call_parser": "hermes"}, ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"), id="tools"
        ),
        pytest.param({"reasoning_parser": "qwen3"}, ("--reasoning-parser", "qwen3"), id="reasoning"),
        pytest.param({"seed": 7}, ("--seed", "7"), id="seed"),
        pytest.param({"seed": 0}, (), id="vLLM's own seed"),
        pytest.param(
            {"generation_defaults": GenerationDefaults(temperature=0, top_k=20, max_tokens=64)},
            ("--override-generation-config", '{"max_new_tokens":64,"temperature":0,"top_k":20}'),
            id="generation defaults",
        ),
        pytest.param({"generation_defaults": GenerationDefaults()}, (), id="the model's own generation defaults"),
        pytest.param({"sleep_mode": True}, ("--enable-sleep-mode",), id="sleep"),
        pytest.param({"scheduling_policy": "priority"}, ("--scheduling-policy", "priority"), id="priority"),
        pytest.param({"block_size": 16}, ("--block-size", "16"), id="block size"),
        pytest.param({"gpu_memory_utilization": 0.9}, ("--gpu-memory-utilization", "0.9"), id="memory"),
    ],
)
def test_knob(options: dict[str, object], flags: tuple[str, ...]) -> None:
    rendered = render(EngineOptions(model="a/b", **options))  # type: ignore[arg-type]
    assert rendered == ("--model", "a/b", *flags, *OWN)


def test_extra_args_come_last() -> None:
    assert render(EngineOptions(model="m", extra_args=("--async-scheduling",)))[-1] == "--async-scheduling"


def test_the_same_options_give_the_same_flags() -> None:
    options = {"max_num_seqs": 4, "prefix_caching": True, "dtype": "float32"}
    backwards = dict(reversed(options.items()))
    assert render(EngineOptions("m", **options)) == render(EngineOptions("m", **backwards))  # type: ignore[arg-type]


def test_every_typed_and_owned_flag_exists_under_its_first_name() -> None:
    names = {flag.name for flag in flag_table("0.32.0").flags}
    assert sorted({*TYPED, *KEYED, *OPERATOR_OWNED} - names) == []


def test_no_flag_is_both_typed_and_owned() -> None:
    assert TYPED.keys() & OPERATOR_OWNED.keys() == set()
    assert KEYED.keys() & (TYPED.keys() | OPERATOR_OWNED.keys()) == set()


EVERYTHING = EngineOptions(
    model="m",
    served_model_names=("n",),
    runner="generate",
    convert="none",
    chat_template="/t",
    trust_remote_code=True,
    weights="fp8",
    dtype="float16",
    kv_cache="fp8",
    tensor_parallel_size=2,
    pipeline_parallel_size=2,
    data_parallel_size=2,
    expert_parallel=True,
    max_num_seqs=1,
    max_num_batched_tokens=1,
    max_model_len=1,
    max_num_queued_requests=1,
    max_num_queued_tokens=1,
    chunked_prefill=True,
    long_prefill_token_threshold=1,
    prefix_caching=False,
    prefix_caching_hash_algo="sha256",
    scheduling_policy="fcfs",
    block_size=16,
    kv_offloading_gib=1.0,
    kv_offloading_backend="native",
    attention_backend="TRITON_ATTN",
    enforce_eager=True,
    compilation_mode="none",
    cuda_graphs="none",
    optimization_level=1,
    speculation=Speculation("ngram", 1),
    lora=LoRA(1, 1, 1),
    tool_call_parser="a",
    reasoning_parser="a",
    seed=1,
    generation_defaults=GenerationDefaults(top_p=1),
    allowed_media_domains=("a",),
    sleep_mode=True,
    gpu_memory_utilization=0.5,
)


def test_everything_rendered_is_typed_or_owned() -> None:
    names = {token.replace("--no-", "--") for token in render(EVERYTHING) if token.startswith("--")}
    assert names <= {*TYPED, *KEYED, *OPERATOR_OWNED}
    not_said = {"--api-key", "--hf-token", "--revision", "--lora-modules"}
    shorthands = {"--spec-method", "--spec-model", "--spec-tokens"}
    assert TYPED.keys() - names == not_said | shorthands
