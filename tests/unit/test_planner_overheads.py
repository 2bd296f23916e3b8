"""What lies beside weights and KV cache: figures of single start-ups that print them, and what each grows with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_operator.planner.batching import Batching, batching
from llmservice_operator.planner.constants import CONSTANTS
from llmservice_operator.planner.engines import CURRENT, engine
from llmservice_operator.planner.model import config_json
from llmservice_operator.planner.overheads import Overheads, absorbed, capture_sizes, load, overheads
from llmservice_operator.planner.plan import GIB, Device, Draft, Request


def config(**more: Any) -> dict[str, Any]:
    """A Llama of 8 billion parameters, or what is said instead."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    } | more


L4 = Device("NVIDIA-L4", 22.03, (8, 9))
B200 = Device("NVIDIA-B200", 178.4, (10, 0))
QWEN_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}
MOE: dict[str, Any] = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128, "num_experts_per_tok": 8}
MOE |= {"moe_intermediate_size": 1536, "head_dim": 128}


def beside(version: str | None = None, model: dict[str, Any] | None = None, **more: Any) -> Overheads:
    """Of one request."""
    architecture = config_json.read(config(**(model or {})))
    request = Request(architecture, L4, vllm_version=version)
    request = replace(request, **more)
    assert request.device is not None
    generation = engine(version)
    return overheads(load(request, architecture, request.device, generation, batching(request)), generation)


@pytest.mark.parametrize(
    ("found", "measured", "share"),
    [
        pytest.param(beside("0.6", max_model_len=20000), 2.07, 0.08, id="8B at 20,000 tokens (vllm#10517)"),
        pytest.param(beside("0.6", max_model_len=29000), 2.99, 0.08, id="8B at 29,000 tokens (vllm#10517)"),
        pytest.param(beside("0.6.5", max_model_len=8192), 1.26, 0.15, id="8B: the sampler's floor (vllm#10511)"),
        pytest.param(beside(None, QWEN_7B), 1.04 - 0.53, 0.05, id="7B on an L4, graphs taken off"),
    ],
)
def test_activation_peaks_that_were_printed(found: Overheads, measured: float, share: float) -> None:
    assert found.activation / GIB == pytest.approx(measured, rel=share)


def test_graphs_as_the_engine_estimates_them() -> None:
    assert beside(None, QWEN_7B).graphs / GIB == pytest.approx(0.53, rel=0.1)


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        pytest.param({"max_num_seqs": 256, "max_num_batched_tokens": 2048}, "sampler", id="many words"),
        pytest.param({"max_num_seqs": 16, "max_num_batched_tokens": 16384}, "layer", id="many tokens"),
    ],
)
def test_the_peak_is_where_it_is_highest(request_: dict[str, Any], where: str) -> None:
    assert beside(**request_).lines[0].name == f"activation ({where})"


@pytest.mark.parametrize(
    ("tokens_per_image", "tokens"),
    [pytest.param(256, 2048, id="several pictures"), pytest.param(16384, 16384, id="one large picture")],
)
def test_encoders_of_pictures_count(tokens_per_image: int, tokens: int) -> None:
    architecture = replace(config_json.read(config()), vision_values=200_000, tokens_per_image=tokens_per_image)
    request = Request(architecture, L4)
    found = overheads(load(request, architecture, L4, CURRENT, Batching(256, 2048)), CURRENT)
    assert found.lines[0].name == "activation (encoder)"
    assert found.activation == tokens * (200_000 + 4096) * 2


@pytest.mark.parametrize(
    "step", [pytest.param(Batching(256, 2048), id="sampler"), pytest.param(Batching(1, 8192), id="layer")]
)
def test_what_the_encoder_made_lies_beside_the_step(step: Batching) -> None:
    text = config_json.read(config())
    seeing = replace(text, vision_values=1, tokens_per_image=256)
    blind, found = (overheads(load(Request(one, L4), one, L4, CURRENT, step), CURRENT) for one in (text, seeing))
    assert found.activation - blind.activation == step.tokens * 4096 * 2


def test_32_bit_needs_twice_the_activations() -> None:
    many: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 8192}
    assert beside(dtype="float32", **many).activation == 2 * beside(dtype="bfloat16", **many).activation


def test_experts_count_for_every_token_that_uses_them() -> None:
    few: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 8192}
    eight, sixteen = (beside(model=MOE | {"num_experts_per_tok": used}, **few).activation for used in (8, 16))
    assert sixteen - eight == 8192 * 8 * (4096 + 1536) * 2


@pytest.mark.parametrize(
    ("more", "counted"),
    [
        pytest.param({}, True, id="current engine"),
        pytest.param({"enforce_eager": True}, False, id="eager"),
        pytest.param({"cuda_graphs": "none"}, False, id="switched off"),
        pytest.param({"version": "0.20.0"}, False, id="before 0.21 they came on top"),
    ],
)
def test_graphs_in_the_budget(more: dict[str, Any], counted: bool) -> None:
    assert (beside(**more).counted_graphs > 0) is counted


def test_each_rank_adds_buffers() -> None:
    one, four = beside(), beside(tensor_parallel_size=4)
    assert (four.non_torch - one.non_torch) / GIB == pytest.approx(3 * CONSTANTS.non_torch_peer.value)


@pytest.mark.parametrize(
    ("device", "step", "each", "count", "largest"),
    [
        pytest.param(L4, Batching(256, 2048), 1, 51, 512, id="the default"),
        pytest.param(L4, Batching(1, 2048), 1, 2, 2, id="one sequence"),
        pytest.param(L4, Batching(256, 64), 1, 11, 64, id="no more than a step has"),
        pytest.param(L4, Batching(64, 2048), 4, 51, 512, id="guessed tokens count"),
        pytest.param(B200, Batching(1024, 16384), 1, 83, 1024, id="data-centre Blackwell"),
    ],
)
def test_captured_sizes(device: Device, step: Batching, each: int, count: int, largest: int) -> None:
    sizes = list(capture_sizes(device, step, each))
    assert (len(sizes), max(sizes)) == (count, largest)


def test_speculation_captures_more() -> None:
    few: dict[str, Any] = {"max_num_seqs": 32}
    assert beside(draft=Draft("ngram", 4), **few).graphs > beside(**few).graphs


DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
}


@pytest.mark.parametrize(("version", "gib"), [("0.7.3", 4.05), ("0.8.4 (V1)", 0.0), (None, 0.0)])
def test_v0_multiplied_mla_out(version: str | None, gib: float) -> None:
    """671B in fp8 on 8 GPUs took 83.88 GiB each with such an engine, of which 79.6 are the checkpoint's."""
    model = config_json.read(DEEPSEEK)
    request = Request(model, L4, quantization="fp8", tensor_parallel_size=8, vllm_version=version)
    assert sum(absorbed(request, model, engine(version))) / GIB == pytest.approx(gib, abs=0.05)
