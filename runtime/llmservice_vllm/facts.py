"""Facts of versions that were read from vLLM's sources by a person, not by a program.

A new version has the facts of the one before until it gets an entry here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from llmservice_vllm.versions import DEFAULT, order, series

GPU_MEMORY_UTILIZATION = 0.92
MAX_LORAS = 1
MAX_LORA_RANK = 16
"""Defaults of flags, the same in all known versions."""
HEADS = ("eagle", "eagle3", "medusa")
"""Speculation with a draft that reads the model's hidden states, over all versions."""


@dataclass(frozen=True)
class Facts:
    """Facts of one version; file names are vLLM's."""

    second_runner_takes_all: bool
    """Whether vllm/v1/worker/gpu/model_runner.py runs every model; else only unquantized dense text models."""
    first_runner_methods: frozenset[str]
    """Speculation that the second runner does not support (config/vllm.py,
    _get_v2_model_runner_unsupported_features)."""
    methods_in_turn: frozenset[str]
    """Speculation without asynchronous scheduling (config/vllm.py)."""
    small_batch_capabilities: frozenset[tuple[int, int]]
    """GPUs with the defaults of small ones whatever their memory (engine/arg_utils.py, get_batch_defaults)."""
    reads_layer_types: bool
    """Whether DeepSeek V4's layers are read in transformers' format."""
    refuses_other_float_kv_cache: bool
    """Whether a float16 or bfloat16 KV cache must have the model's own type (config/vllm.py,
    _reject_mismatched_float_kv_cache)."""
    moe_backends_without_lora: frozenset[str]
    """Values of --moe-backend that vLLM refuses with LoRA (config/lora.py, verify_with_kernel_config)."""
    sleep_with_connectors: Mapping[str, tuple[str, object] | None]
    """KV connectors that are refused with sleep mode, unless an option has the given value, its default
    (supports_sleep_mode of each)."""
    are_refusals_read: bool
    """Whether its refusals of checkpoints, and of speculation with --async-scheduling, were read; earlier versions may
    refuse less."""


_V28 = Facts(
    second_runner_takes_all=False,
    first_runner_methods=frozenset({"medusa", "suffix", "mlp_speculator"}),
    methods_in_turn=frozenset({"ngram", "medusa", "suffix", "mlp_speculator"}),
    small_batch_capabilities=frozenset(),
    reads_layer_types=False,
    refuses_other_float_kv_cache=False,
    moe_backends_without_lora=frozenset(),
    sleep_with_connectors={},
    are_refusals_read=False,
)
_V32 = replace(_V28, second_runner_takes_all=True, are_refusals_read=True)
_V33 = replace(
    _V32,
    first_runner_methods=frozenset({"suffix", "custom_class"}),
    methods_in_turn=frozenset({"suffix", "custom_class"}),
    small_batch_capabilities=frozenset({(12, 1)}),
    reads_layer_types=True,
    refuses_other_float_kv_cache=True,
    moe_backends_without_lora=frozenset(
        {
            "aiter_mega_moe",
            "deep_gemm_mega_moe",
            "flashinfer_moe_ep_cutedsl",
            "flashinfer_moe_ep_mega_deep_gemm",
        }
    ),
    sleep_with_connectors={
        "MooncakeConnector": ("mooncake_protocol", "rdma"),
        "MooncakeStoreConnector": None,
        "MoRIIOConnector": None,
        "NixlConnector": ("backends", ["UCX"]),
        "NixlPullConnector": ("backends", ["UCX"]),
        "NixlPushConnector": None,
    },
)
SINCE = {"0.28": _V28, "0.32": _V32, "0.33": _V33}
"""By the first version for which they hold."""


def facts(version: str | None) -> Facts:
    """Facts of a version; of the default one without a version or for invalid text."""
    return _facts(series(version or "") or DEFAULT)


@functools.cache
def _facts(known: str) -> Facts:
    earlier = [since for since in SINCE if order(since) <= order(known)]
    return SINCE[max(earlier, key=order)] if earlier else _V28
