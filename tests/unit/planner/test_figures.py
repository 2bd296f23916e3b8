"""Published figures about memory that the planner's arithmetic must come out at.

Sources: Hugging Face's guide to large models in production, the papers of the models, vLLM 0.32's rules, and start-ups
that people measured on GPUs.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from llmservice_api.matrix.backends import BACKENDS
from llmservice_planner import memory
from llmservice_planner.checks import Combination, verdicts
from llmservice_planner.kv_cache import layout
from llmservice_planner.memory import attention_per_gpu, flash_attention_bytes, naive_attention_bytes
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import Architecture, Attention, FeedForward, Kind, Layer
from llmservice_planner.plan import GIB, Request
from llmservice_planner.weights import weigh

from tests.unit.planner_models import CONFIGS, architecture, gpu

GB, MB, TIB = 10**9, 10**6, 2**40
OCTOCODER = CONFIGS["starcoder"]
"""StarCoder, trained on."""
LLAMA_70B = architecture("llama-2-70b")

PUBLISHED_WEIGHTS = {
    # billions of parameters by name, GB in 16 bit
    "gpt-3": (175, 350),
    "bloom": (176, 352),
    "llama-2-70b": (70, 140),
    "falcon-40b": (40, 80),
    "mpt-30b": (30, 60),
    "starcoder": (15.5, 31),
}


@pytest.mark.parametrize("name", PUBLISHED_WEIGHTS)
def test_two_bytes_a_parameter(name: str) -> None:
    """Names round: Llama-2-70B has 68.98 billion, Falcon-40B 41.30."""
    billions, published = PUBLISHED_WEIGHTS[name]
    stated = int(billions * GB)
    assert weigh(Request(None, None, parameters=stated)).total == published * GB
    assert weigh(Request(None, None, parameters=stated, dtype="float32")).total == 2 * published * GB
    counted = architecture(name)
    assert counted.counted_parameters == pytest.approx(stated, rel=0.035)
    assert weigh(Request(counted, None)).total == pytest.approx(published * GB, rel=0.035)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # the hub's count of safetensors, or the models' papers
        ("bloom", 176_247_271_424),
        ("llama-2-70b", 68_976_648_192),
        ("starcoder", 15_517_456_384),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("deepseek-v2-lite", 15_706_484_224),
    ],
)
def test_parameters_are_counted_to_the_last_one(name: str, parameters: int) -> None:
    assert architecture(name).counted_parameters == parameters


# OctoCoder in the guide's measurement: torch's peak with a prompt of some 20 tokens and 60 new ones. Beside the weights
# that peak has, in transformers and bitsandbytes (not in vLLM):
CAUSAL_MASK = 8192 * 8192
"""A table of n_positions x n_positions bytes that the model keeps."""
WIDEST = 6144 * 24576
"""Values of the MLP's matrices. int8 keeps one a second time while it brings it into the GPU's layout; 4 bit makes it
16 bit and, with the default compute type, from that 32 bit for the product."""
FP4 = {"load_in_4bit": True, "bnb_4bit_use_double_quant": False, "bnb_4bit_quant_type": "fp4"}


@pytest.mark.parametrize(
    ("quantization", "rest", "published"),
    [({}, 0, 29.03), ({"load_in_8bit": True}, WIDEST, 15.22), (FP4, WIDEST * (2 + 4), 9.54)],
    ids=["bf16", "int8", "int4"],
)
def test_octocoder(quantization: dict[str, Any], rest: int, published: float) -> None:
    section = {"quantization_config": {"quant_method": "bitsandbytes", **quantization}} if quantization else {}
    weights = weigh(Request(config_json.read(OCTOCODER | section), None)).total
    assert (weights + CAUSAL_MASK + rest) / GIB == pytest.approx(published, rel=0.03)


def test_sixteen_thousand_tokens_with_all_heads_and_with_one() -> None:
    """7,864,320,000 values, about 15 GB in 16 bit; under 400 MB with one kv head."""
    models = (config_json.read(OCTOCODER | {"multi_query": is_one}) for is_one in (False, True))
    every, one = (16_000 * layout(Request(model, gpu("A100-80"))).bytes_per_token for model in models)
    assert every / 2 == 7_864_320_000
    assert one == every / 48 < 400 * MB


@pytest.mark.parametrize("tokens", [1, 16, 17, 16_000])
def test_less_than_a_block_is_wasted(tokens: int) -> None:
    """And one block more is kept back that no request gets."""
    found = layout(Request(LLAMA_70B, gpu("H100"), max_model_len=32768))
    block = found.bytes_per_token * found.block_size
    assert block <= found.needed(tokens) - found.bytes_per_token * tokens < 2 * block


def test_a_window_caps_the_tokens() -> None:
    """A long request needs as much as a window and the tokens of the steps in flight, in blocks."""
    windowed = config_json.read(CONFIGS["llama-3.1-8b"] | {"model_type": "mistral", "sliding_window": 4096})
    found = layout(Request(windowed, gpu("L4"), max_model_len=131072, max_num_batched_tokens=2048))
    assert found.needed(131_072) == found.needed(65_536) < found.bytes_per_token * (4096 + 2 * 2048 + 3 * 16)


@pytest.mark.parametrize(("tokens", "published"), [(1_000, 80 * MB), (16_000, 19 * GIB), (100_000, 0.75 * TIB)])
def test_all_scores_of_40_heads(tokens: int, published: float) -> None:
    """heads x bytes x N x N in bf16. The published figures are round ones; FlashAttention grows with the tokens."""
    assert naive_attention_bytes(40, tokens) == 40 * 2 * tokens**2 == pytest.approx(published, rel=0.04)
    assert flash_attention_bytes(40, 128, tokens) == 40 * tokens * (128 * 2 + 4)


def test_attention_of_a_model_on_each_gpu() -> None:
    naive, flash = attention_per_gpu(LLAMA_70B, 16_000)
    assert (naive, flash) == (naive_attention_bytes(64, 16_000) / GIB, flash_attention_bytes(64, 128, 16_000) / GIB)
    assert attention_per_gpu(LLAMA_70B, 16_000, 4) == (naive / 4, flash / 4)
    assert attention_per_gpu(architecture("deepseek-r1"), 16_000) == (2 * naive, 2 * flash)
    states = Layer(Attention(Kind.STATE, heads=32, key_dim=128, value_dim=128), FeedForward())
    assert attention_per_gpu(Architecture("x", 2560, 50280, (states,)), 16_000) == (0.0, 0.0)
    plan = memory.plan(Request(architecture("llama-3.1-8b"), gpu("H100"), max_model_len=16_000))
    assert (plan.naive_attention_gib, plan.flash_attention_gib) == (naive / 2, flash / 2)


# vLLM 0.32's rules


@pytest.mark.parametrize("name", ["Tesla T4", "NVIDIA H100 80GB", "NVIDIA B200"])
@pytest.mark.parametrize("share", [None, 0.5])
def test_the_cache_is_what_the_rest_leaves(name: str, share: float | None) -> None:
    """ceil(total x utilization) - what is taken already - the transient peak - the estimate of CUDA graphs."""
    plan = memory.plan(Request(architecture("qwen2.5-0.5b"), gpu(name), gpu_memory_utilization=share))
    assert plan.budget_gib == math.ceil(gpu(name).memory_gib * GIB * (share or 0.92)) / GIB
    taken = (plan.weights_gib, plan.non_torch_gib, plan.activation_gib, plan.graph_gib, plan.kv_cache_gib)
    assert sum(part or 0.0 for part in taken) == pytest.approx(plan.budget_gib)


RULES: list[tuple[bool, dict[str, str]]] = [
    # is it refused, what is combined
    (True, {"dtype": "bfloat16", "capability": "7.5"}),
    (False, {"dtype": "bfloat16", "capability": "8.0"}),
    (True, {"method": "mxfp4", "dtype": "float16", "capability": "9.0"}),
    (True, {"method": "fp8", "dtype": "float32", "capability": "9.0"}),
    (True, {"backend": "FLASH_ATTN", "capability": "7.5"}),
    (False, {"backend": "FLASH_ATTN", "capability": "8.0"}),
    (True, {"backend": "FLASH_ATTN", "kvCache": "fp8", "capability": "8.9"}),
    (False, {"backend": "FLASH_ATTN", "kvCache": "fp8", "capability": "9.0"}),
    (True, {"backend": "FLASHINFER", "capability": "7.5"}),
    (False, {"backend": "FLASHINFER", "capability": "12.1"}),
    (True, {"backend": "FLEX_ATTENTION", "kvCache": "fp8"}),
    (True, {"backend": "FLEX_ATTENTION", "positions": "alibi"}),
    (False, {"backend": "TRITON_ATTN", "kvCache": "fp8", "capability": "8.9"}),
    (False, {"backend": "TRITON_ATTN", "positions": "alibi"}),
]


@pytest.mark.parametrize(("is_refused", "values"), RULES, ids=[" ".join(row[1].values()) for row in RULES])
def test_what_runs_on_which_gpu(is_refused: bool, values: dict[str, str]) -> None:
    assert {backend.name for backend in BACKENDS} >= {values.get("backend", "FLASH_ATTN")}
    assert (verdicts(Combination({"accelerator": "nvidia", **values})) != ()) == is_refused
