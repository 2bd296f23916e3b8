"""The planner's KV cache against vLLM's own functions: the same blocks, tokens, concurrency and longest request."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from llmservice_planner.kv_blocks import PLAIN_ROWS
from llmservice_planner.kv_cache import layout
from llmservice_planner.model.architecture import Architecture, Attention, FeedForward, Kind, Layer
from llmservice_planner.plan import Device, Draft, Request

from tests.unit.planner_models import architecture as published

# vLLM and torch warn while they are imported; that is theirs.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

Layers = tuple[Attention, ...]


def full(heads: int, kv_heads: int, key: int = 128, value: int | None = None) -> Attention:
    return Attention(Kind.FULL, heads, kv_heads, key, key if value is None else value)


def sliding(window: int, heads: int, kv_heads: int, key: int = 128) -> Attention:
    return replace(full(heads, kv_heads, key), kind=Kind.SLIDING, window=window)


def pattern(count: int, *layers: Attention) -> Layers:
    """So many layers, in turns."""
    return tuple(layers[place % len(layers)] for place in range(count))


LATENT = Attention(Kind.LATENT, 128, latent_dim=512, rope_dim=64)
# The same layers as STATES in vllm_caches describes them.
GATED_DELTA_NET = Attention(Kind.STATE, conv_values=(2 * 16 * 128 + 32 * 128) * 3, recurrent_values=32 * 128 * 128)
MAMBA2 = Attention(
    Kind.STATE,
    conv_values=(8192 + 2 * 8 * 128) * 3,
    recurrent_values=128 * 64 * 128,
    state_groups=8,
    group_values=2 * 128 * 3,
)
SHARING = Attention(Kind.FULL, 8, 2, 256, 256, shares_cache=True)

ATTENTION: dict[str, Layers] = {
    "opt-125m": pattern(12, full(12, 12, 64)),
    "llama-2-7b": pattern(32, full(32, 32)),
    "llama-3.1-8b": pattern(32, full(32, 8)),
    "llama-3.1-70b": pattern(80, full(64, 8)),
    "falcon-40b": pattern(60, full(128, 8, 64)),
    "octocoder, MHA": pattern(40, full(48, 48)),
    "starcoder, MQA": pattern(40, full(48, 1)),
    "qwen2.5-7b": pattern(28, full(28, 4)),
    "qwen3-14b, 41 layers": pattern(41, full(40, 8)),
    "phi-2, 80 wide": pattern(32, full(32, 32, 80)),
    "keys wider than values": pattern(48, full(64, 8, 192, 128)),
    "heads that differ": (*pattern(20, full(64, 8)), *pattern(11, full(64, 4)), full(64, 2)),
    "widths that differ": (*pattern(30, full(16, 4, 128)), *pattern(6, full(16, 2, 256))),
    "layers that share": (*pattern(20, full(8, 2, 256)), *pattern(15, SHARING)),
    "mistral, all sliding": pattern(32, sliding(4096, 32, 8)),
    "gemma-2, 1:1": pattern(42, sliding(4096, 16, 8, 256), full(16, 8, 256)),
    "gemma-3, 5:1": pattern(62, *(sliding(1024, 32, 16),) * 5, full(32, 16)),
    "gemma-3, 26 layers": pattern(26, *(sliding(512, 4, 1, 256),) * 5, full(4, 1, 256)),
    "gemma-4, wider full layers": pattern(60, *(sliding(1024, 32, 16, 256),) * 5, full(32, 4, 512)),
    "gpt-oss, 1:1": pattern(36, sliding(128, 64, 8, 64), full(64, 8, 64)),
    "12 sliding and 13 full": (*pattern(24, sliding(128, 64, 8, 64), full(64, 8, 64)), full(64, 8, 64)),
    "cohere, 3:1": pattern(33, *(sliding(4096, 32, 8),) * 3, full(32, 8)),
    # One token more would take another block.
    "an odd window": pattern(24, sliding(1025, 32, 8), full(32, 8)),
    "two windows": pattern(30, sliding(512, 32, 8), sliding(4096, 32, 8), full(32, 8)),
    "llama-4, chunks": pattern(48, *(replace(sliding(8192, 40, 8), chunked=True),) * 3, full(40, 8)),
    "nothing but chunks": pattern(12, replace(sliding(8192, 40, 8), chunked=True)),
    "pages that need padding": pattern(24, sliding(512, 16, 5, 96), full(16, 4)),
    "deepseek-v3": pattern(61, LATENT),
    "deepseek-v2-lite": pattern(27, replace(LATENT, heads=16)),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "4 ranks": {"ranks": 4},
    "16 ranks": {"ranks": 16},
    "2 stages": {"stages": 2},
    "3 stages of 2": {"stages": 3, "ranks": 2},
    "fp8": {"kv_dtype": "fp8"},
    "int8": {"kv_dtype": "int8_per_token_head"},
    "int4": {"kv_dtype": "int4_per_token_head"},
    "float32": {"dtype": "float32"},
    "blocks of 64": {"block_size": 64},
    "few tokens a step": {"batched_tokens": 256, "length": 8192},
    "many tokens a step": {"batched_tokens": 16384, "length": 131072},
    "an odd length": {"length": 29001},
    "a CPU": {"block_size": 128, "is_cpu": True, "runs_ahead": False},
    "a CPU, blocks of 48": {"block_size": 48, "is_cpu": True, "runs_ahead": False},
    "a CPU, blocks of 16": {"block_size": 16, "is_cpu": True, "runs_ahead": False},
}
# Enough for some requests, for hardly one, and for less.
MEMORY = (137_438_953_472, 7_777_777_777, 300_000_001)
# A quarter of them in `make unit`, with every attention and every setting in several pairs.
CASES = [
    pytest.param(layers, setting, id=f"{name}, {how}", marks=pytest.mark.full if (row + column) % 4 else ())
    for (row, (name, layers)), (column, (how, setting)) in product(
        enumerate(ATTENTION.items()), enumerate(SETTINGS.items())
    )
    # vLLM has these for other attention or on other devices.
    if not (layers[0].kind is Kind.LATENT and ("is_cpu" in setting or setting.get("kv_dtype", "fp8") != "fp8"))
    # A stage of nothing but layers that share: vLLM ends with a division by zero.
    and not (layers[-1].shares_cache and setting.get("stages", 1) > 2)
]


def architecture(layers: Layers, name: str = "LlamaForCausalLM") -> Architecture:
    return Architecture(name, 4096, 32000, tuple(Layer(one, FeedForward(4096)) for one in layers))


def request(layers: Layers, setting: Any, name: str = "LlamaForCausalLM") -> Request:
    """The planner's words for a setting."""
    return Request(
        architecture(layers, name),
        Device("one", 80.0, (8, 0), is_cpu=setting.is_cpu),
        dtype=setting.dtype,
        kv_cache_dtype=setting.kv_dtype,
        tensor_parallel_size=setting.ranks,
        pipeline_parallel_size=setting.stages,
        max_model_len=setting.length,
        max_num_batched_tokens=setting.batched_tokens,
        block_size=setting.block_size,
        draft=Draft("eagle", setting.guesses) if setting.guesses else None,
    )


@pytest.fixture(scope="module")
def caches() -> Any:
    from tests.unit.planner import vllm_caches

    return vllm_caches


def agree(caches: Any, layers: Layers, setting: Any, planned: Request) -> None:
    """In everything that the engine would print, with much memory and with little."""
    made = layout(planned)
    for available in MEMORY:
        longest = made.longest(available, setting.length)
        assert longest == caches.automatic(layers, setting, available)
        fits = made.needed(setting.length) <= available
        assert fits == (longest == setting.length)
        if not fits:
            with pytest.raises(ValueError, match=r"is needed|No available memory"):
                caches.counted(layers, setting, available)
            continue
        printed = caches.counted(layers, setting, available)
        capacity = made.capacity(available, setting.length)
        assert (capacity.num_blocks, capacity.tokens) == (printed.num_blocks, printed.tokens)
        assert capacity.max_concurrency == printed.concurrency


@pytest.mark.parametrize(("layers", "changes"), CASES)
def test_attention_of_every_kind(caches: Any, layers: Layers, changes: dict[str, Any]) -> None:
    setting = caches.Setting(**changes)
    agree(caches, layers, setting, request(layers, setting))


_HYBRID = (GATED_DELTA_NET,) * 3
_WIDE = (replace(GATED_DELTA_NET, recurrent_bytes=4),) * 3
_NET, _MAMBA = {"states": "gated delta net"}, {"states": "mamba2", "checkpoints": 1}
_FP8 = {"kv_dtype": "fp8", "state_dtype": "float32"}
STATES: dict[str, tuple[str, Layers, dict[str, Any]]] = {
    "qwen3-next": ("Qwen3NextForCausalLM", pattern(48, *_HYBRID, full(16, 2, 256)), _NET),
    "qwen3.5, fp8": ("Qwen3_5ForCausalLM", pattern(48, *_WIDE, full(16, 2, 256)), _NET | _FP8),
    "granite-4": ("GraniteMoeHybridForCausalLM", (*pattern(36, MAMBA2), *pattern(4, full(32, 8))), _MAMBA),
    "nemotron-h": (
        *("NemotronHForCausalLM", pattern(33, *(MAMBA2,) * 7, full(40, 8))),
        _MAMBA | {"state_dtype": "float32", "stages": 2},
    ),
    "kimi-linear": ("KimiLinearForCausalLM", pattern(27, *_HYBRID, LATENT), _NET | {"state_dtype": "float32"}),
}


@pytest.mark.parametrize("ranks", [1, 2, 8, 16])
@pytest.mark.parametrize("guesses", [0, 3])
@pytest.mark.parametrize(("name", "layers", "changes"), STATES.values(), ids=STATES)
def test_states_and_attention(
    caches: Any, name: str, layers: Layers, changes: dict[str, Any], ranks: int, guesses: int
) -> None:
    setting = caches.Setting(ranks=ranks, guesses=guesses, **changes)
    planned = request(layers, setting, name)
    # vLLM's functions are given no layers of a draft here; the states know of its guesses all the same.
    if planned.draft is not None:
        planned = replace(planned, draft=replace(planned.draft, method="ngram"))
        setting = replace(setting, runs_ahead=False)
    agree(caches, layers, setting, planned)


def compressed(ratio: int) -> Attention:
    """A layer of DeepSeek V4."""
    vectors = Attention(Kind.COMPRESSED, 64, 1, 512, 512, 128, latent_dim=448, rope_dim=64, compress_ratio=ratio)
    return replace(vectors, index_dim=128 if ratio == 4 else 0)


_WINDOW, _FOUR, _MANY = map(compressed, (1, 4, 128))
COMPRESSED: dict[str, Layers] = {
    "deepseek-v4-flash": (_WINDOW, _WINDOW, *pattern(41, _FOUR, _MANY)),
    "with a layer for prediction": (_WINDOW, _WINDOW, *pattern(41, _FOUR, _MANY), _WINDOW),
    "deepseek-v4-pro": (_MANY, _MANY, *pattern(59, _FOUR, _MANY)),
    "without an index": pattern(24, _WINDOW, _MANY),
    "few of 128": (*pattern(30, _WINDOW, _MANY), *pattern(7, _WINDOW)),
    "nothing but fours": pattern(12, _FOUR),
    "nothing but windows": pattern(12, _WINDOW),
}
ROWS: dict[str, dict[str, Any]] = {
    "packed": {"kv_dtype": "fp8_ds_mla"},
    "many tokens a step": {"kv_dtype": "fp8_ds_mla", "batched_tokens": 8192, "length": 121344},
    "two stages": {"kv_dtype": "fp8_ds_mla", "stages": 2, "ranks": 2},
    "an odd length": {"kv_dtype": "fp8_ds_mla", "length": 29001},
    "plain": {"kv_dtype": "bfloat16"},
    "plain fp8": {"kv_dtype": "fp8"},
}


@pytest.mark.parametrize("changes", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("layers", COMPRESSED.values(), ids=COMPRESSED)
def test_vectors_of_several_tokens(caches: Any, layers: Layers, changes: dict[str, Any]) -> None:
    """Groups of pages of several sizes, in the one layout that the index has."""
    setting = caches.Setting(block_size=256, layout=caches.KVCacheLayout.BLHNC, **changes)
    planned = request(layers, setting)
    backend = None if setting.kv_dtype == "fp8_ds_mla" else PLAIN_ROWS
    planned = replace(planned, device=Device("one", 80.0, (10, 0)), attention_backend=backend)
    agree(caches, layers, setting, planned)


def test_qwen4s_index_lies_in_the_blocks_of_its_keys() -> None:
    """A block and the blocks of one request, with a group for the open groups of tokens and one for the embeddings."""
    import torch
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator as Shapes
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_cache_interface import (
        CircularBufferSpec,
        FullAttentionSpec,
        KVCacheSpec,
        MambaSpec,
        MLAAttentionSpec,
    )
    from vllm.v1.kv_cache_layout import KVCacheLayout

    from tests.unit.planner.vllm_caches import Setting, config

    setting = Setting(ranks=2, batched_tokens=8192)
    device = Device("NVIDIA-H200", 139.72, (9, 0))
    limits: dict[str, Any] = {"max_model_len": setting.length, "max_num_batched_tokens": setting.batched_tokens}
    found = layout(Request(published("qwen3.8-flash-next"), device, tensor_parallel_size=2, **limits))
    block, half = found.block_size, torch.bfloat16
    keys = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=256, head_size_v=256, dtype=half)
    state: dict[str, Any] = {"block_size": block, "page_size_padded": keys.page_size_bytes, "mamba_cache_mode": "align"}
    net = Shapes.gated_delta_net_state_shape(2, 16, 48, 128, 128, 4, 0)
    words = Shapes.short_conv_state_shape(tp_world_size=1, intermediate_size=10240, conv_kernel=10, num_spec=0)
    group: dict[str, Any] = {"num_kv_heads": 1, "dtype": half}
    specs: dict[str, KVCacheSpec] = {"words": MambaSpec(shapes=words, dtypes=(half,), **state)}
    for layer in range(48):
        if layer % 4 == 3:
            specs[f"{layer}.keys"] = keys
            specs[f"{layer}.open"] = CircularBufferSpec(block_size=4, head_size=140, head_size_v=0, **group)
            specs[f"{layer}.index"] = MLAAttentionSpec(block_size=block, head_size=128, tokens_per_state=4, **group)
        else:
            specs[f"{layer}.net"] = MambaSpec(shapes=net, dtypes=(half, torch.float32), **state)
    made = config(setting)
    made.cache_config.get_resolved_kv_cache_layout = lambda: KVCacheLayout.BLNHC
    of = [each.kv_cache_spec for each in kv_cache_utils.get_kv_cache_groups(made, specs)]
    blocks = sum(-(-spec.max_memory_usage_bytes(made) // spec.page_size_bytes) for spec in of)
    assert (max(spec.page_size_bytes for spec in of), blocks) == (
        found.bytes_per_block,
        found.blocks_of(setting.length),
    )
