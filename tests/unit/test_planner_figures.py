"""Every published figure about memory that the planner's arithmetic must come out at, each with its source.

Sources: the techniques' published figures (Hugging Face's guide to large models in production, the papers of the
models), vLLM 0.32's rules, and start-ups that people measured on GPUs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from llmservice_operator.api.matrix.backends import BACKENDS
from llmservice_operator.planner import gpus, memory
from llmservice_operator.planner.attention_memory import flash_bytes, naive_bytes, per_gpu
from llmservice_operator.planner.batching import batching
from llmservice_operator.planner.compatibility import Combination, verdicts
from llmservice_operator.planner.kv_cache import layout
from llmservice_operator.planner.model import config_json
from llmservice_operator.planner.model.architecture import Architecture, Attention, FeedForward, Kind, Layer
from llmservice_operator.planner.plan import GIB, Device, Request
from llmservice_operator.planner.weights import weigh
from llmservice_runtime.preflight.capabilities import MINIMUM_CAPABILITY

from tests.unit.planner_models import architecture

GB, MB, TIB = 10**9, 10**6, 2**40


def read(**config: Any) -> Architecture:
    return config_json.read(config)


GPT_3 = {"model_type": "gpt2", "n_layer": 96, "n_embd": 12288, "n_head": 96, "n_positions": 2048, "vocab_size": 50257}
BLOOM = {"model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112, "vocab_size": 250880}
LLAMA_2_70B = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 32000,
}
FALCON_40B = {
    "model_type": "falcon",
    "num_hidden_layers": 60,
    "hidden_size": 8192,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "vocab_size": 65024,
    "new_decoder_architecture": True,
    "bias": False,
}
MPT_30B = {
    "model_type": "mpt",
    "n_layers": 48,
    "d_model": 7168,
    "n_heads": 64,
    "vocab_size": 50432,
    "expansion_ratio": 4,
    "no_bias": True,
    "max_seq_len": 8192,
}
STARCODER = {
    "model_type": "gpt_bigcode",
    "n_layer": 40,
    "n_embd": 6144,
    "n_head": 48,
    "n_inner": 24576,
    "n_positions": 8192,
    "vocab_size": 49152,
    "multi_query": True,
}
OCTOCODER = STARCODER
"""StarCoder, trained on."""

PUBLISHED_WEIGHTS = {
    # billions of parameters by name, GB in 16 bit, config
    "GPT-3": (175, 350, GPT_3),
    "BLOOM": (176, 352, BLOOM),
    "Llama-2-70B": (70, 140, LLAMA_2_70B),
    "Falcon-40B": (40, 80, FALCON_40B),
    "MPT-30B": (30, 60, MPT_30B),
    "StarCoder": (15.5, 31, STARCODER),
}


@pytest.mark.parametrize(("billions", "published", "_"), PUBLISHED_WEIGHTS.values(), ids=PUBLISHED_WEIGHTS)
def test_two_bytes_a_parameter(billions: float, published: float, _: dict[str, Any]) -> None:
    """A model of X billion parameters: 2X GB in 16 bit, 4X GB in 32."""
    stated = Request(None, None, parameters=int(billions * GB))
    assert weigh(stated).total == published * GB
    assert weigh(replace(stated, dtype="float32")).total == 2 * published * GB


@pytest.mark.parametrize(("billions", "published", "config"), PUBLISHED_WEIGHTS.values(), ids=PUBLISHED_WEIGHTS)
def test_the_same_counted_from_the_configuration(billions: float, published: float, config: dict[str, Any]) -> None:
    """Names round: Llama-2-70B has 68.98 billion, Falcon-40B 41.30."""
    counted = read(**config)
    assert counted.counted_parameters == pytest.approx(billions * GB, rel=0.035)
    assert weigh(Request(counted, None)).total == pytest.approx(published * GB, rel=0.035)


COUNTED = {
    # the hub's count of safetensors, or the models' papers
    "BLOOM": (BLOOM, 176_247_271_424),
    "Llama-2-70B": (LLAMA_2_70B, 68_976_648_192),
    "StarCoder": (STARCODER, 15_517_456_384),
}


@pytest.mark.parametrize(("config", "parameters"), COUNTED.values(), ids=COUNTED)
def test_parameters_are_counted_to_the_last_one(config: dict[str, Any], parameters: int) -> None:
    assert read(**config).counted_parameters == parameters


# OctoCoder in the guide's measurement: torch's peak with a prompt of some 20 tokens and 60 new ones. Beside the weights
# that peak has, in transformers and bitsandbytes (not in vLLM):
CAUSAL_MASK = 8192 * 8192
"""A table of n_positions x n_positions bytes that the model keeps."""
WIDEST = 6144 * 24576
"""Values of the MLP's matrices. int8 keeps one a second time while it brings it into the GPU's layout; 4 bit makes it
16 bit and, with the default compute type, from that 32 bit for the product."""

OCTOCODER_PEAKS = {
    "bf16": ({}, CAUSAL_MASK, 29.03),
    "int8": ({"load_in_8bit": True}, CAUSAL_MASK + WIDEST, 15.22),
    "int4": (
        {"load_in_4bit": True, "bnb_4bit_use_double_quant": False, "bnb_4bit_quant_type": "fp4"},
        *(CAUSAL_MASK + WIDEST * (2 + 4), 9.54),
    ),
}


@pytest.mark.parametrize(("quantization", "rest", "published"), OCTOCODER_PEAKS.values(), ids=OCTOCODER_PEAKS)
def test_octocoder(quantization: dict[str, Any], rest: int, published: float) -> None:
    section = {"quantization_config": {"quant_method": "bitsandbytes", **quantization}} if quantization else {}
    weights = weigh(Request(read(**OCTOCODER, **section), None)).total
    assert (weights + rest) / GIB == pytest.approx(published, rel=0.03)


def test_octocoder_without_what_its_measurement_adds() -> None:
    """What vLLM would hold. int4's peak is mostly weights made large again, which kernels of vLLM never store whole."""
    assert weigh(Request(read(**OCTOCODER), None)).total / GIB == pytest.approx(29.03, rel=0.03)
    int8 = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    assert weigh(Request(read(**OCTOCODER, **int8), None)).total / GIB == pytest.approx(15.22, rel=0.03)


MEASURED_WEIGHTS = {
    # vLLM's "Loading model weights took"
    "bf16": ("qwen2.5-7b", {}, 14.25),
    "fp8": ("qwen2.5-7b", {"quantization": "fp8"}, 8.18),
    "GPTQ, 4 bit": ("qwen2.5-7b", {"quantization": "gptq"}, 5.27),
}


@pytest.mark.parametrize(("model", "how", "gib"), MEASURED_WEIGHTS.values(), ids=MEASURED_WEIGHTS)
def test_embedding_and_head_stay_in_16_bit(model: str, how: dict[str, Any], gib: float) -> None:
    request = replace(Request(architecture(model), gpus.device("L4")), **how)
    assert weigh(request).per_gpu / GIB == pytest.approx(gib, rel=0.02)


BYTES_PER_TOKEN = {
    # 2 x layers x kv_heads x head_dim x bytes; config, settings, bytes on each GPU
    "OctoCoder's size with all heads": ({**OCTOCODER, "multi_query": False}, {}, 2 * 40 * 48 * 128 * 2),
    "OctoCoder, one kv head": (OCTOCODER, {}, 2 * 40 * 1 * 128 * 2),
    "one kv head on four GPUs": (OCTOCODER, {"tensor_parallel_size": 4}, 2 * 40 * 1 * 128 * 2),
    "Llama-2-70B": (LLAMA_2_70B, {}, 2 * 80 * 8 * 128 * 2),
    "Llama-2-70B on four GPUs": (LLAMA_2_70B, {"tensor_parallel_size": 4}, 2 * 80 * 2 * 128 * 2),
    "Llama-2-70B on sixteen GPUs": (LLAMA_2_70B, {"tensor_parallel_size": 16}, 2 * 80 * 1 * 128 * 2),
    "Llama-2-70B in two stages": (LLAMA_2_70B, {"pipeline_parallel_size": 2}, 2 * 40 * 8 * 128 * 2),
    "Llama-2-70B in fp8": (LLAMA_2_70B, {"kv_cache_dtype": "fp8"}, 2 * 80 * 8 * 128),
}


@pytest.mark.parametrize(("config", "how", "size"), BYTES_PER_TOKEN.values(), ids=BYTES_PER_TOKEN)
def test_bytes_of_a_token(config: dict[str, Any], how: dict[str, Any], size: int) -> None:
    assert layout(replace(Request(read(**config), gpus.device("H100")), **how)).bytes_per_token == size


@pytest.mark.parametrize("ranks", [1, 2, 8, 16])
def test_latent_attention_is_the_same_on_every_rank(ranks: int) -> None:
    """The 671B family: 61 layers x (512 + 64) x 2 bytes."""
    request = Request(architecture("deepseek-r1"), gpus.device("H200"), tensor_parallel_size=ranks)
    assert layout(request).bytes_per_token == 70_272


def test_sixteen_thousand_tokens_with_all_heads_and_with_one() -> None:
    """7,864,320,000 values, about 15 GB in 16 bit; under 400 MB with one kv head."""
    gpu = gpus.device("A100-80")
    every = layout(Request(read(**{**OCTOCODER, "multi_query": False}), gpu)).bytes_per_token * 16_000
    assert every / 2 == 7_864_320_000
    assert every / GB == pytest.approx(15, rel=0.05)
    one = layout(Request(read(**OCTOCODER), gpu)).bytes_per_token * 16_000
    assert one == every / 48
    assert one < 400 * MB


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 4000, 16_000])
def test_less_than_a_block_is_wasted(tokens: int) -> None:
    """And one block more is kept back that no request gets."""
    found = layout(Request(read(**LLAMA_2_70B), gpus.device("H100"), max_model_len=32768))
    block = found.bytes_per_token * found.block_size
    waste = found.needed(tokens) - found.bytes_per_token * tokens
    assert block <= waste < 2 * block


def test_a_window_caps_the_tokens() -> None:
    """A long request needs as much as a window and the tokens of the steps in flight, in blocks."""
    layers = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    mistral = {"model_type": "mistral", "intermediate_size": 14336, "vocab_size": 32000, **layers}
    windowed = Request(read(**mistral, sliding_window=4096), gpus.device("L4"), max_model_len=131072)
    found = layout(replace(windowed, max_num_batched_tokens=2048))
    assert found.needed(131_072) == found.needed(65_536) < found.bytes_per_token * (4096 + 2 * 2048 + 3 * 16)
    assert layout(replace(windowed, architecture=read(**mistral))).needed(131_072) > 131_072 * 4096


NAIVE_ATTENTION = {
    # 40 heads in bf16: tokens, bytes as published
    "1,000 tokens": (1_000, 80 * MB),
    "16,000 tokens": (16_000, 19 * GIB),
    "100,000 tokens": (100_000, 0.75 * TIB),
}


@pytest.mark.parametrize(("tokens", "published"), NAIVE_ATTENTION.values(), ids=NAIVE_ATTENTION)
def test_all_scores(tokens: int, published: float) -> None:
    """heads x bytes x N x N. The published figures are round ones."""
    assert naive_bytes(40, tokens) == 40 * 2 * tokens**2
    assert naive_bytes(40, tokens) == pytest.approx(published, rel=0.04)


def test_flash_attention_grows_with_the_tokens() -> None:
    assert flash_bytes(40, 128, 32_000) == 2 * flash_bytes(40, 128, 16_000)
    assert naive_bytes(40, 32_000) == 4 * naive_bytes(40, 16_000)
    assert flash_bytes(40, 128, 16_000) == 40 * 16_000 * (128 * 2 + 4)


def test_attention_of_a_model_on_each_gpu() -> None:
    naive, flash = per_gpu(read(**LLAMA_2_70B), 16_000)
    assert (naive, flash) == (naive_bytes(64, 16_000) / GIB, flash_bytes(64, 128, 16_000) / GIB)
    assert per_gpu(read(**LLAMA_2_70B), 16_000, 4) == (naive / 4, flash / 4)
    assert per_gpu(architecture("deepseek-r1"), 16_000) == (
        *(naive_bytes(128, 16_000) / GIB, flash_bytes(128, 128, 16_000) / GIB),
    )
    states = Layer(Attention(Kind.STATE, heads=32, key_dim=128, value_dim=128), FeedForward())
    assert per_gpu(Architecture("x", 2560, 50280, (states,)), 16_000) == (0.0, 0.0)


def test_a_plan_shows_both() -> None:
    plan = memory.plan(Request(architecture("llama-3.1-8b"), gpus.device("H100"), max_model_len=16_000))
    assert plan.naive_attention_gib == pytest.approx(32 * 2 * 16_000**2 / GIB)
    assert plan.flash_attention_gib == pytest.approx(32 * 16_000 * (128 * 2 + 4) / GIB)


# vLLM 0.32's rules


@pytest.mark.parametrize("gpu", ["Tesla T4", "NVIDIA L4", "NVIDIA H100 80GB", "NVIDIA B200"])
@pytest.mark.parametrize("share", [None, 0.5, 0.9])
def test_the_cache_is_what_the_rest_leaves(gpu: str, share: float | None) -> None:
    """ceil(total x utilization) - what is taken already - the transient peak - the estimate of CUDA graphs."""
    device = gpus.device(gpu)
    assert device is not None
    plan = memory.plan(Request(architecture("qwen2.5-0.5b"), device, gpu_memory_utilization=share))
    assert plan.budget_gib == math.ceil(device.memory_gib * GIB * (share or 0.92)) / GIB
    taken = (plan.weights_gib, plan.non_torch_gib, plan.activation_gib, plan.graph_gib, plan.kv_cache_gib)
    assert sum(part or 0.0 for part in taken) == pytest.approx(plan.budget_gib)


STEPS = {
    # GPU: sequences and tokens of a step where nobody says them
    "Tesla T4": (256, 2048),
    "NVIDIA L40S": (256, 2048),
    "A100-80": (256, 2048),
    "NVIDIA H100 80GB": (1024, 8192),
    "NVIDIA H200": (1024, 8192),
    "NVIDIA B200": (1024, 16384),
    "MI300X": (1024, 16384),
}


@pytest.mark.parametrize(("gpu", "step"), STEPS.items(), ids=STEPS)
def test_the_scheduler_by_memory(gpu: str, step: tuple[int, int]) -> None:
    found = batching(Request(architecture("llama-3.1-8b"), gpus.device(gpu)))
    assert (found.sequences, found.tokens) == step


def test_the_scheduler_on_cpus() -> None:
    found = batching(Request(architecture("llama-3.1-8b"), Device("cpu", 1.0, is_cpu=True)))
    assert (found.sequences, found.tokens) == (128, 2048)


LEAST_CAPABILITIES = {
    60: ("gptq", "auto_gptq", "gptq_marlin", "inc"),
    70: ("compressed-tensors", "quark", "moe_wna16"),
    75: ("awq", "auto_awq", "awq_marlin", "fp8", "modelopt_fp4", "modelopt_mixed", "humming", "torchao"),
    80: ("modelopt", "modelopt_mxfp8", "mxfp8", "mxfp4", "gpt_oss_mxfp4", "experts_int8", "fbgemm_fp8"),
    100: ("fp_quant",),
}


@pytest.mark.parametrize(("least", "methods"), LEAST_CAPABILITIES.items(), ids=LEAST_CAPABILITIES)
def test_the_least_capability_of_a_method(least: int, methods: tuple[str, ...]) -> None:
    assert {method: MINIMUM_CAPABILITY[method] for method in methods} == dict.fromkeys(methods, least)


def _is_refused(**values: str) -> bool:
    return verdicts(Combination({"accelerator": "nvidia", **values})) != ()


@pytest.mark.parametrize(
    ("values", "is_refused"),
    [
        pytest.param({"dtype": "bfloat16", "capability": "7.5"}, True, id="bfloat16 below 8.0"),
        pytest.param({"dtype": "bfloat16", "capability": "8.0"}, False, id="bfloat16 from 8.0 on"),
        pytest.param({"method": "mxfp4", "dtype": "float16", "capability": "9.0"}, True, id="mxfp4 computes in bf16"),
        pytest.param({"method": "fp8", "dtype": "float32", "capability": "9.0"}, True, id="fp8 computes in 16 bit"),
        pytest.param({"backend": "FLASH_ATTN", "capability": "7.5"}, True, id="FlashAttention below 8.0"),
        pytest.param({"backend": "FLASH_ATTN", "capability": "8.0"}, False, id="FlashAttention from 8.0 on"),
        pytest.param(
            {"backend": "FLASH_ATTN", "kvCache": "fp8", "capability": "8.9"}, True, id="FlashAttention 2 and fp8"
        ),
        pytest.param(
            {"backend": "FLASH_ATTN", "kvCache": "fp8", "capability": "9.0"}, False, id="FlashAttention 3 and fp8"
        ),
        pytest.param({"backend": "FLASHINFER", "capability": "7.5"}, True, id="FlashInfer below 8.0"),
        pytest.param({"backend": "FLASHINFER", "capability": "12.1"}, False, id="FlashInfer up to 12.1"),
        pytest.param({"backend": "FLEX_ATTENTION", "kvCache": "fp8"}, True, id="FlexAttention has no fp8 cache"),
        pytest.param({"backend": "FLEX_ATTENTION", "positions": "alibi"}, True, id="FlexAttention has no ALiBi"),
        pytest.param({"backend": "TRITON_ATTN", "kvCache": "fp8", "capability": "8.9"}, False, id="Triton and fp8"),
        pytest.param({"backend": "TRITON_ATTN", "positions": "alibi"}, False, id="Triton and ALiBi"),
    ],
)
def test_what_runs_where(values: dict[str, str], is_refused: bool) -> None:
    assert {backend.name for backend in BACKENDS} >= {values.get("backend", "FLASH_ATTN")}
    assert _is_refused(**values) == is_refused
