"""KV caches as vLLM's own classes describe them, and what its own functions make of them.

Nothing of the planner's arithmetic is used here: layers become vLLM's KVCacheSpecs, its backends pack them, and its
engine core groups and counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from llmservice_planner.model.architecture import Attention, Kind
from vllm.config import VllmConfig
from vllm.distributed.utils import get_pp_indices
from vllm.model_executor.layers.attention.attention import _largest_kernel_block_within
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator as Shapes
from vllm.models.deepseek_v4.attention import DeepseekV4Attention, DeepseekV4IndexerCache
from vllm.models.deepseek_v4.compressor import CompressorStateCache
from vllm.platforms.interface import Platform
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.attention.backends.mla.sparse_swa import DeepseekV4SWACache
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    get_kv_quant_mode,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

GATED_DELTA_NET: dict[str, int] = {"num_k_heads": 16, "num_v_heads": 32, "head_k_dim": 128, "head_v_dim": 128}
MAMBA2: dict[str, int] = {
    "intermediate_size": 8192,
    "n_groups": 8,
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "conv_kernel": 4,
}
StateShapes = Callable[[int, int], tuple[tuple[int, ...], ...]]
STATES: Mapping[str, StateShapes] = {
    # Of one rank, for so many ranks and guessed tokens.
    "gated delta net": lambda ranks, guesses: Shapes.gated_delta_net_state_shape(
        ranks, **GATED_DELTA_NET, conv_kernel_size=4, num_spec=guesses
    ),
    "mamba2": lambda ranks, guesses: Shapes.mamba2_state_shape(ranks, **MAMBA2, num_spec=guesses),
}


@dataclass(frozen=True)
class Setting:
    """An engine."""

    ranks: int = 1
    stages: int = 1
    kv_dtype: str = "auto"
    dtype: str = "bfloat16"
    block_size: int = 16
    batched_tokens: int = 2048
    length: int = 32768
    guesses: int = 0
    states: str = ""
    state_dtype: str = "bfloat16"
    checkpoints: int = 0
    runs_ahead: bool = True
    is_cpu: bool = False
    layout: KVCacheLayout = KVCacheLayout.LBNHC

    @property
    def backend(self) -> Any:
        if self.kv_dtype.startswith("turboquant"):
            return TurboQuantAttentionBackend
        return CPUAttentionBackend if self.is_cpu else TritonAttentionBackend

    @property
    def plain(self) -> torch.dtype:
        return STR_DTYPE_TO_TORCH_DTYPE[self.dtype]

    @property
    def stored(self) -> torch.dtype:
        return self.plain if self.kv_dtype == "auto" else STR_DTYPE_TO_TORCH_DTYPE[self.kv_dtype]


class Config(SimpleNamespace):
    """As much of a VllmConfig as the engine core reads, with vLLM's own properties."""

    max_in_flight_tokens = VllmConfig.max_in_flight_tokens
    max_concurrent_batches = VllmConfig.max_concurrent_batches
    num_prefill_lookahead_tokens = VllmConfig.num_prefill_lookahead_tokens


def config(setting: Setting) -> Config:
    return Config(
        model_config=SimpleNamespace(max_model_len=setting.length, original_max_model_len=None),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None,
            mamba_cache_mode="align",
            prefix_cache_retention_interval=0,
            cache_dtype=setting.kv_dtype,
            block_size=setting.block_size,
            get_resolved_kv_cache_layout=lambda: setting.layout,
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False,
            async_scheduling=setting.runs_ahead,
            max_num_batched_tokens=setting.batched_tokens,
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, tensor_parallel_size=setting.ranks, pipeline_parallel_size=setting.stages
        ),
        speculative_config=None,
        attention_config=SimpleNamespace(hisparse_config=None),
        device_config=SimpleNamespace(device_type="cuda"),
        use_v2_model_runner=True,
    )


def specs(layers: Sequence[Attention], setting: Setting) -> list[dict[str, KVCacheSpec]]:
    """Of each stage."""
    block, padded = _aligned(layers, setting)
    stages = []
    for stage in range(setting.stages):
        first, last = get_pp_indices(len(layers), stage, setting.stages)
        if layers[0].kind is Kind.COMPRESSED:
            stages.append(
                {
                    f"{place}.{name}": spec
                    for place in range(first, last)
                    for name, spec in _compressed(layers[place], setting).items()
                }
            )
            continue
        stages.append(
            {
                str(place): _spec(layers[place], setting, block, padded)
                for place in range(first, last)
                if not layers[place].shares_cache
            }
        )
    return stages


def _spec(attention: Attention, setting: Setting, block: int, padded: int | None) -> KVCacheSpec:
    common: dict[str, Any] = {"dtype": setting.stored, "kv_quant_mode": get_kv_quant_mode(setting.kv_dtype)}
    if attention.kind is Kind.STATE:
        return _state(setting, padded)
    if attention.kind is Kind.LATENT:
        packed = {"fp8_ds_mla": 656}.get(setting.kv_dtype)
        width = attention.latent_dim + attention.rope_dim
        return MLAAttentionSpec(block_size=block, num_kv_heads=1, head_size=width, state_content_bytes=packed, **common)
    heads = max(1, attention.kv_heads // setting.ranks)
    common |= {"num_kv_heads": heads, "head_size": attention.key_dim, "head_size_v": attention.value_dim}
    if attention.kind is Kind.FULL:
        return setting.backend.customize_spec(FullAttentionSpec(block_size=block, **common))
    window = attention.window
    assert window is not None
    if attention.chunked:
        chunked = ChunkedLocalAttentionSpec(block_size=block, attention_chunk_size=window, **common)
        return setting.backend.customize_spec(chunked)
    one = setting.backend.customize_spec(SlidingWindowSpec(block_size=1, sliding_window=window, **common))
    own = _largest_kernel_block_within(setting.backend, one.page_size_bytes, one.page_size_bytes * block, block, one)
    return setting.backend.customize_spec(SlidingWindowSpec(block_size=own, sliding_window=window, **common))


def _compressed(attention: Attention, setting: Setting) -> dict[str, KVCacheSpec]:
    """By DeepSeek V4's own modules, whose attributes are made by hand where they need a GPU."""
    with (
        mock.patch("vllm.v1.attention.backends.mla.sparse_swa.get_current_vllm_config") as first,
        mock.patch("vllm.models.deepseek_v4.compressor.get_current_vllm_config") as second,
        mock.patch("vllm.models.deepseek_v4.attention.get_current_vllm_config") as third,
    ):
        for one in (first, second, third):
            one.return_value = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context={}))
        return {name: made.get_kv_cache_spec(config(setting)) for name, made in _modules(attention, setting).items()}


def _modules(attention: Attention, setting: Setting) -> dict[str, Any]:
    ratio, width = attention.compress_ratio, attention.latent_dim + attention.rope_dim
    cache, is_packed = config(setting).cache_config, setting.kv_dtype == "fp8_ds_mla"
    dtype = torch.uint8 if is_packed else setting.stored
    made: dict[str, Any] = {}
    if attention.index_dim:
        key = attention.index_dim + attention.index_dim // 128 * 4
        made["indexer.k_cache"] = DeepseekV4IndexerCache(key, torch.uint8, "indexer.k_cache", cache, ratio)
        state = CompressorStateCache(4 * attention.index_dim, torch.float32, ratio, "indexer.compressor")
        made["indexer.compressor"] = state
    made["swa_cache"] = DeepseekV4SWACache(width, attention.window or 0, dtype, "swa_cache", cache)
    if ratio > 1:
        own = SimpleNamespace(
            compress_ratio=ratio, kv_cache_dtype=setting.kv_dtype, kv_cache_torch_dtype=dtype, head_dim=width
        )
        made["attn"] = SimpleNamespace(get_kv_cache_spec=partial(DeepseekV4Attention.get_kv_cache_spec, own))
        sums = 4 if ratio == 4 else 2
        made["compressor"] = CompressorStateCache(sums * width, torch.float32, ratio, "compressor")
    return made


def _state(setting: Setting, padded: int | None) -> MambaSpec:
    return MambaSpec(
        block_size=setting.block_size,
        shapes=STATES[setting.states](setting.ranks, setting.guesses),
        dtypes=(setting.plain, STR_DTYPE_TO_TORCH_DTYPE[setting.state_dtype]),
        page_size_padded=padded,
        mamba_cache_mode="align",
        num_speculative_blocks=setting.guesses,
        num_prefill_checkpoint_blocks=setting.checkpoints,
    )


def _aligned(layers: Sequence[Attention], setting: Setting) -> tuple[int, int | None]:
    """The block size of attention beside states, and what a state is padded to; by vLLM's platform."""
    attending = [layer for layer in layers if layer.kind is not Kind.STATE]
    if len(attending) in (0, len(layers)):
        return setting.block_size, None
    latent = attending[0].kind is Kind.LATENT
    cache = SimpleNamespace(
        cache_dtype=setting.kv_dtype,
        kv_cache_dtype_skip_layers=[],
        block_size=setting.block_size,
        mamba_cache_mode="align",
        mamba_page_size_padded=None,
    )
    width = attending[0].latent_dim + attending[0].rope_dim if latent else attending[0].key_dim
    model = SimpleNamespace(
        dtype=setting.plain,
        use_mla=latent,
        architecture="",
        get_num_kv_heads=lambda _: 1 if latent else max(1, attending[0].kv_heads // setting.ranks),
        get_head_size=lambda: width,
    )
    state = _state(setting, None)
    made = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: state.shapes,
        get_mamba_state_dtype_from_config=lambda _: state.dtypes,
    )
    whole = SimpleNamespace(cache_config=cache, model_config=model, parallel_config=None)
    with (
        mock.patch("vllm.model_executor.models.ModelRegistry.resolve_model_cls", return_value=(made, None)),
        mock.patch("vllm.config.vllm.set_current_vllm_config", mock.MagicMock()),
        mock.patch.object(Platform, "_find_non_ssm_backends", return_value=[setting.backend]),
    ):
        Platform._align_hybrid_block_size(whole, setting.backend)
    return cache.block_size, cache.mamba_page_size_padded


@dataclass(frozen=True)
class Counted:
    """By vLLM."""

    num_blocks: int
    tokens: int
    concurrency: float


def counted(layers: Sequence[Attention], setting: Setting, available: int) -> Counted:
    """ValueError where vLLM refuses to start."""
    made = config(setting)
    worker = kv_cache_utils.get_kv_cache_configs(made, specs(layers, setting), [available] * setting.stages)
    scheduler = kv_cache_utils.generate_scheduler_kv_cache_config(worker)
    tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(made, scheduler)
    return Counted(scheduler.num_blocks, tokens, concurrency)


def automatic(layers: Sequence[Attention], setting: Setting, available: int) -> int:
    """The length that `--max-model-len auto` takes, up to the setting's; 0: vLLM refuses."""
    made = config(setting)
    made.model_config.original_max_model_len = -1
    try:
        kv_cache_utils.get_kv_cache_configs(made, specs(layers, setting), [available] * setting.stages)
    except ValueError:
        return 0
    length: int = made.model_config.max_model_len
    return length
