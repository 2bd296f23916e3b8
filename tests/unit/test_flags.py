"""From the knobs of a service to vLLM's command line."""

from __future__ import annotations

import pytest
from llmservice_runtime.flags import OPERATOR_OWNED, TYPED, EngineOptions, flag_table, render

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
        pytest.param({"served_names": ("a", "b")}, ("--served-model-name", "a", "b"), id="served names"),
        pytest.param({"revision": "v1"}, ("--revision", "v1"), id="revision"),
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
        pytest.param({"enable_expert_parallel": True}, ("--enable-expert-parallel",), id="EP"),
        pytest.param({"max_num_seqs": 4}, ("--max-num-seqs", "4"), id="seqs"),
        pytest.param({"max_num_batched_tokens": 4}, ("--max-num-batched-tokens", "4"), id="batched tokens"),
        pytest.param({"max_model_len": 4096}, ("--max-model-len", "4096"), id="length"),
        pytest.param({"max_model_len": "auto"}, ("--max-model-len", "auto"), id="length auto"),
        pytest.param({"max_num_queued_requests": 0}, ("--max-num-queued-reqs", "0"), id="no queue"),
        pytest.param({"chunked_prefill": True}, ("--enable-chunked-prefill",), id="chunked"),
        pytest.param({"chunked_prefill": False}, ("--no-enable-chunked-prefill",), id="not chunked"),
        pytest.param({"prefix_caching": False}, ("--no-enable-prefix-caching",), id="no prefix caching"),
        pytest.param({"scheduling_policy": "priority"}, ("--scheduling-policy", "priority"), id="priority"),
        pytest.param({"block_size": 16}, ("--block-size", "16"), id="block size"),
        pytest.param({"gpu_memory_utilization": 0.9}, ("--gpu-memory-utilization", "0.9"), id="memory"),
    ],
)
def test_knob(options: dict[str, object], flags: tuple[str, ...]) -> None:
    rendered = render(EngineOptions(model="a/b", **options))  # type: ignore[arg-type]
    assert rendered == ("--model", "a/b", *flags, *OWN)


def test_extra_args_come_last() -> None:
    assert render(EngineOptions(model="m", extra_args=("--enforce-eager",)))[-1] == "--enforce-eager"


def test_the_same_options_give_the_same_flags() -> None:
    options = {"max_num_seqs": 4, "prefix_caching": True, "dtype": "float32"}
    backwards = dict(reversed(options.items()))
    assert render(EngineOptions("m", **options)) == render(EngineOptions("m", **backwards))  # type: ignore[arg-type]


def test_every_typed_and_owned_flag_exists_under_its_first_name() -> None:
    names = {flag.name for flag in flag_table("0.32.0").flags}
    assert sorted({*TYPED, *OPERATOR_OWNED} - names) == []


def test_no_flag_is_both_typed_and_owned() -> None:
    assert TYPED.keys() & OPERATOR_OWNED.keys() == set()


def test_everything_rendered_is_typed_or_owned() -> None:
    options = EngineOptions(
        "m", ("n",), "r", True, "fp8", "float16", None, "fp8", 2, 2, 2, True, 1, 1, 1, 1, True, False, "fcfs", 16, 0.5
    )
    names = {token.replace("--no-", "--") for token in render(options) if token.startswith("--")}
    assert names <= {*TYPED, *OPERATOR_OWNED}
    assert TYPED.keys() - names == {"--api-key", "--hf-token"}
