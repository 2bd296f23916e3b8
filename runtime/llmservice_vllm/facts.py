"""What is true of a version and no program reads out of it: somebody read it in its sources.

A new version has what the one before it had until it gets a row of its own here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from llmservice_vllm.versions import DEFAULT, order, series

GPU_MEMORY_UTILIZATION = 0.92
MAX_LORAS = 1
MAX_LORA_RANK = 16
"""Defaults of flags, the same in all versions so far."""
HEADS = ("eagle", "eagle3", "medusa")
"""Speculation by a draft that reads the model's hidden states, in all versions together."""


@dataclass(frozen=True)
class Facts:
    """Of one version; files are vLLM's."""

    second_runner_takes_all: bool
    """Whether vllm/v1/worker/gpu/model_runner.py takes every model; else dense text models that are not quantized."""
    first_runner_methods: frozenset[str]
    """Speculation that the second runner does not know (config/vllm.py, _get_v2_model_runner_unsupported_features)."""
    methods_in_turn: frozenset[str]
    """Speculation that keeps the next step from being scheduled before the last one ended (config/vllm.py)."""
    small_batch_capabilities: frozenset[tuple[int, int]]
    """GPUs with the defaults of small ones whatever their memory (engine/arg_utils.py, get_batch_defaults)."""
    reads_layer_types: bool
    """Whether DeepSeek V4's layers are read by transformers' words."""
    refuses_other_float_kv_cache: bool
    """Whether a KV cache in float16 or bfloat16 must be of the model's own type (config/vllm.py,
    _reject_mismatched_float_kv_cache)."""
    moe_backends_without_lora: frozenset[str]
    """--moe-backend that vLLM refuses with LoRA (config/lora.py, verify_with_kernel_config)."""
    sleep_with_connectors: Mapping[str, tuple[str, object] | None]
    """KV connectors that sleep mode is refused with, but for an option with its value, which is its default
    (supports_sleep_mode of each)."""
    are_refusals_read: bool
    """Whether its refusals of checkpoints, and of speculation with --async-scheduling, were read; those of versions
    before may be fewer."""


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
"""By the version from which they hold."""


def facts(version: str | None) -> Facts:
    """Of a version; of the default one where none is stated or the text is no version."""
    return _facts(series(version or "") or DEFAULT)


@functools.cache
def _facts(known: str) -> Facts:
    earlier = [since for since in SINCE if order(since) <= order(known)]
    return SINCE[max(earlier, key=order)] if earlier else _V28
