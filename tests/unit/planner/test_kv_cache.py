"""Bytes, blocks and tokens of the KV cache, by figures that others published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_planner.kv_cache import layout
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import (
    Architecture,
    Attention,
    FeedForward,
    Incomplete,
    Kind,
    Layer,
    Linear,
    Part,
)
from llmservice_planner.plan import GIB, Device, Draft, Request

from tests.unit.planner_models import CONFIGS


def full(heads: int, kv_heads: int, dim: int = 128) -> Attention:
    return Attention(Kind.FULL, heads, kv_heads, dim, dim)


def latent(heads: int = 128) -> Attention:
    return Attention(Kind.LATENT, heads, latent_dim=512, rope_dim=64)


def sliding(window: int, heads: int, kv_heads: int, dim: int = 128) -> Attention:
    return replace(full(heads, kv_heads, dim), kind=Kind.SLIDING, window=window)


def model(count: int, *attention: Attention, name: str = "LlamaForCausalLM", **more: Any) -> Architecture:
    """So many layers, of these kinds in turns."""
    kinds = [Layer(one, FeedForward(1)) for one in attention]
    return Architecture(name, 4096, 32000, tuple(kinds[place % len(kinds)] for place in range(count)), **more)


def ask(architecture: Architecture, device: Device | None = None, **more: Any) -> Request:
    return Request(architecture, device or Device("H100", 80.0, (9, 0)), **more)


LLAMA_8B = model(32, full(32, 8))
LLAMA_70B = model(80, full(64, 8))
DEEPSEEK = model(61, latent())
GEMMA_27B = model(62, *(sliding(1024, 32, 16),) * 5, full(32, 16))

PER_TOKEN: dict[str, tuple[Request, float]] = {
    "Llama-3.1-8B": (ask(LLAMA_8B), 131_072),
    "fp8": (ask(LLAMA_8B, kv_cache_dtype="fp8"), 65_536),
    "float32": (ask(LLAMA_8B, dtype="float32"), 262_144),
    "float32, cache in 16 bit": (ask(LLAMA_8B, dtype="float32", kv_cache_dtype="bfloat16"), 131_072),
    "8 bits and two scales a head": (ask(LLAMA_8B, kv_cache_dtype="int8_per_token_head"), 32 * 8 * (2 * 128 + 8)),
    "4 bits and two scales a head": (ask(LLAMA_8B, kv_cache_dtype="int4_per_token_head"), 32 * 8 * (128 + 8)),
    "4.5 bits": (ask(LLAMA_8B, kv_cache_dtype="nvfp4"), 131_072 * 4.5 / 16),
    # Not in the two first and the two last layers.
    "4 bits": (ask(LLAMA_8B, kv_cache_dtype="turboquant_4bit_nc"), 28 * 8 * (64 + 2 + 64 + 4) + 4 * 8 * 512),
    "keys of 8 bits": (ask(LLAMA_8B, kv_cache_dtype="turboquant_k8v4"), 28 * 8 * (128 + 64 + 4) + 4 * 8 * 512),
    "3 and 4 bits with scales of blocks": (ask(LLAMA_8B, kv_cache_dtype="octave_k3v4"), 32 * 8 * 248),
    "4 bits with scales": (ask(LLAMA_8B, kv_cache_dtype="ultraquant_4bit"), 28 * 8 * 2 * (64 + 4) + 4 * 8 * 512),
    "16 GPUs: a head each, twice": (ask(LLAMA_70B, tensor_parallel_size=16), 40_960),
    "4 stages": (ask(LLAMA_70B, pipeline_parallel_size=4), 81_920),
    "DeepSeek-R1 on 16 GPUs: all of it on each": (ask(DEEPSEEK, tensor_parallel_size=16), 70_272),
    "latent, fp8": (ask(DEEPSEEK, kv_cache_dtype="fp8"), 35_136),
    "latent, 4 bits and two scales": (ask(DEEPSEEK, kv_cache_dtype="int4_per_token_head"), 61 * (288 + 8)),
    "latent, 8 bits and two scales": (ask(DEEPSEEK, kv_cache_dtype="int8_per_token_head"), 61 * (576 + 8)),
    "DeepSeek-V3.2's packed rows": (ask(DEEPSEEK, kv_cache_dtype="fp8_ds_mla"), 61 * 656),
    "Gemma-3-27B: what grows is a sixth": (ask(GEMMA_27B), 10 * 16 * 2 * 128 * 2),
    "Mistral-7B 0.1: within the window": (ask(model(32, sliding(4096, 32, 8))), 131_072),
    "layers that share": (ask(model(2, full(8, 2, 256), replace(full(8, 2, 256), shares_cache=True))), 2_048),
}


@pytest.mark.parametrize(("request_", "expected"), PER_TOKEN.values(), ids=PER_TOKEN)
def test_bytes_of_a_token(request_: Request, expected: float) -> None:
    assert layout(request_).bytes_per_token == expected


CPU = Device("cpu", 1, is_cpu=True)
DELTA_NET = Attention(Kind.STATE, conv_values=8192 * 3, recurrent_values=32 * 128 * 128)
INDEXED = Layer(latent(), FeedForward(1), (Linear("self_attn.indexer.wk", Part.ATTENTION, 7168, 128),))
BLOCKS: dict[str, tuple[Request, int]] = {
    "a GPU": (ask(LLAMA_8B), 16),
    "no GPU known": (Request(LLAMA_8B, None), 16),
    "Blackwell": (ask(LLAMA_8B, Device("B200", 178.0, (10, 0))), 16),
    "asked for": (ask(LLAMA_8B, block_size=64), 64),
    "a CPU": (ask(LLAMA_8B, CPU), 128),
    "a CPU, asked for": (ask(LLAMA_8B, CPU, block_size=64), 64),
    "MLA on Hopper": (ask(DEEPSEEK), 16),
    "MLA on Hopper, fp8: another kernel": (ask(DEEPSEEK, kv_cache_dtype="fp8"), 64),
    "MLA on Ampere": (ask(DEEPSEEK, Device("A100", 80.0, (8, 0))), 16),
    "MLA on Blackwell": (ask(DEEPSEEK, Device("B200", 178.0, (10, 0))), 32),
    "MLA on a CPU without AMX, whatever is asked for": (ask(DEEPSEEK, CPU, block_size=64), 16),
    "sparse MLA": (ask(replace(DEEPSEEK, layers=(INDEXED,) * 61)), 64),
    # 48 layers of Qwen3-Next: a state of 49,152 + 1,048,576 bytes in blocks of 2,048 bytes a token.
    "states ask for as many tokens as they weigh": (
        ask(model(48, *(DELTA_NET,) * 3, full(16, 2, 256), name="Qwen3NextForCausalLM")),
        544,
    ),
    # 4-bit keys and values take 136 bytes, the outermost layers 512: blocks hold 16 tokens of those.
    "types that leave the outermost layers alone": (ask(LLAMA_8B, kv_cache_dtype="turboquant_4bit_nc"), 64),
}


@pytest.mark.parametrize(("request_", "expected"), BLOCKS.values(), ids=BLOCKS)
def test_tokens_of_a_block(request_: Request, expected: int) -> None:
    assert layout(request_).block_size == expected


SCALED: dict[str, tuple[dict[str, Any], int]] = {
    # quantization_config, bytes of a token
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, 65_536),
    "modelopt, old file": ({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}, 65_536),
    "modelopt, new file": (
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        65_536,
    ),
    "compressed tensors": (
        {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        65_536,
    ),
    "8 bits alone": ({"quant_method": "fp8", "kv_cache_scheme": None}, 131_072),
}


@pytest.mark.parametrize(("quantization", "expected"), SCALED.values(), ids=SCALED)
def test_a_checkpoint_with_scales_for_the_cache_has_it_in_8_bits(quantization: dict[str, Any], expected: int) -> None:
    read = config_json.read(CONFIGS["llama-3.1-8b"] | {"quantization_config": quantization})
    assert layout(ask(read)).bytes_per_token == expected
    assert layout(ask(read, kv_cache_dtype="bfloat16")).bytes_per_token == 131_072


SPARSE = replace(DEEPSEEK, layers=(INDEXED,) * 61)
ROWS: dict[str, tuple[Request, int]] = {
    # Bytes of one token in one layer, without the index.
    "Hopper": (ask(SPARSE), 1152),
    "Hopper, fp8: packed with its scales": (ask(SPARSE, kv_cache_dtype="fp8"), 656),
    "Blackwell, fp8": (ask(SPARSE, Device("B200", 178.0, (10, 0)), kv_cache_dtype="fp8"), 576),
    "desktop Blackwell has nothing else": (ask(SPARSE, Device("RTX PRO 6000", 95.0, (12, 0))), 656),
    "GLM-5 on Blackwell": (
        ask(replace(SPARSE, name="GlmMoeDsaForCausalLM"), Device("B200", 178.0, (10, 0))),
        576,
    ),
}


@pytest.mark.parametrize(("request_", "expected"), ROWS.values(), ids=ROWS)
def test_rows_of_sparse_attention(request_: Request, expected: int) -> None:
    assert layout(request_).bytes_per_token == 61 * (expected + 132)


SPECULATION: dict[str, tuple[Draft, float]] = {
    # Bytes a token of Llama-3.1-8B's 32 layers, and of what is added.
    "nothing but guesses": (Draft("ngram", 4), 131_072),
    "medusa's heads store nothing": (Draft("medusa", 4), 131_072),
    "a head is one layer more": (Draft("eagle3", 4), 131_072 / 32 * 33),
    "a head that is known": (Draft("eagle", 4, model(1, full(32, 8))), 131_072 / 32 * 33),
    "a model of its own": (Draft("draftModel", 4, model(16, full(32, 8, 64))), 131_072 + 16 * 8 * 2 * 64 * 2),
}


@pytest.mark.parametrize(("draft", "expected"), SPECULATION.values(), ids=SPECULATION)
def test_speculation_stores_its_own_layers(draft: Draft, expected: float) -> None:
    assert layout(ask(LLAMA_8B, draft=draft)).bytes_per_token == expected


def test_layers_for_multi_token_prediction_store_what_the_others_do() -> None:
    predicting = replace(DEEPSEEK, mtp_layers=1)
    assert layout(ask(predicting)).bytes_per_token == 70_272
    assert layout(ask(predicting, draft=Draft("mtp", 1))).bytes_per_token == 62 * 576 * 2


def test_several_modules_that_predict_keep_more_of_a_window() -> None:
    windows = [ask(replace(model(32, sliding(4096, 32, 8)), mtp_layers=count)) for count in (1, 3)]
    one, several = (layout(replace(question, draft=Draft("mtp", 3))) for question in windows)
    # 4,095 tokens and two steps of 8,192 in flight, in blocks of 16, and one more; two tokens more go into another.
    assert (one.blocks_of(10**6), several.blocks_of(10**6)) == (1281, 1282)


def test_chunks_are_kept_whole_with_a_draft_from_hidden_states() -> None:
    chunks = model(48, *(replace(sliding(8192, 40, 8), chunked=True),) * 3, full(40, 8))
    assert len(layout(ask(chunks)).groups) == 4
    assert layout(ask(chunks, draft=Draft("eagle3", 3))).bytes_per_token == 49 * 8 * 2 * 128 * 2


def test_a_drafts_layers_are_on_the_last_stage_and_on_its_own_ranks() -> None:
    drafting = Draft("draftModel", 2, model(8, full(32, 8)))
    # Of 33 layers the first stage has 17.
    made = layout(ask(model(33, full(32, 8)), pipeline_parallel_size=2, draft=drafting))
    assert made.bytes_per_token == (16 + 8) * 8 * 2 * 128 * 2
    made = layout(ask(LLAMA_8B, tensor_parallel_size=2, draft=replace(drafting, tensor_parallel_size=1)))
    assert made.bytes_per_token == (32 * 4 + 8 * 8) * 2 * 128 * 2


def test_an_unknown_model_or_draft_is_named() -> None:
    with pytest.raises(Incomplete, match=r"draft model's config\.json"):
        layout(ask(LLAMA_8B, draft=Draft("draftModel", 4)))
    with pytest.raises(Incomplete, match=r"model\.architecture"):
        layout(Request(None, CPU))


def test_states_take_more_with_guesses() -> None:
    hybrid = model(48, *(DELTA_NET,) * 3, full(16, 2, 256), name="Qwen3NextForCausalLM")
    alone, guessing = (layout(ask(hybrid, draft=draft)) for draft in (None, Draft("ngram", 3)))
    # Two states in each of three groups, and three guesses more.
    assert guessing.blocks_of(1) - alone.blocks_of(1) == 3 * 3


def test_instruction_sets_of_a_cpu_change_blocks() -> None:
    """With AMX the kernel for MLA takes larger ones; with AVX-512 BF16 recurrent states are in float32."""
    assert layout(ask(DEEPSEEK, CPU), amx=True).block_size == 128
    hybrid = ask(model(48, *(DELTA_NET,) * 3, full(16, 2, 256), name="Qwen3NextForCausalLM"), CPU)
    narrow, wide = layout(hybrid), layout(hybrid, wide_states=True)
    assert (narrow.block_size, wide.block_size) == (640, 1152)


@pytest.mark.parametrize(("name", "block_size"), [("Qwen3_5ForCausalLM", 1056), ("Qwen3NextForCausalLM", 544)])
def test_only_some_classes_heed_the_type_of_their_states(name: str, block_size: int) -> None:
    wide = replace(DELTA_NET, recurrent_bytes=4)
    assert layout(ask(model(48, *(wide,) * 3, full(16, 2, 256), name=name))).block_size == block_size


def test_states_alone_take_the_same_whatever_the_length() -> None:
    made = layout(ask(model(24, DELTA_NET, name="MambaForCausalLM")))
    assert made.blocks_of(1) == made.blocks_of(10**6) == 1
    assert made.bytes_per_token == 0
    assert made.capacity(24 * made.bytes_per_block, 1000).tokens == 24_000


def test_a_model_without_a_cache_needs_none() -> None:
    made = layout(ask(model(24, replace(full(8, 8), shares_cache=True))))
    assert (made.needed(4096), made.longest(0, 4096), made.capacity(GIB, 4096).tokens) == (0, 4096, 0)


def test_memory_that_is_not_there_holds_nothing() -> None:
    made = layout(ask(LLAMA_8B))
    for available in (-GIB, 0, made.bytes_per_block):
        assert made.longest(available, 4096) == 0
    assert made.capacity(-GIB, 4096).num_blocks == 0
    assert made.longest(2 * made.bytes_per_block, 4096) == 16


def test_blocks_of_a_request_round_up_and_one_block_is_spared() -> None:
    made = layout(ask(LLAMA_8B))
    available = 10_000 * made.bytes_per_block
    assert made.capacity(available, 29_001).tokens == 159_961
    assert made.longest(available, 10**6) == 159_984
