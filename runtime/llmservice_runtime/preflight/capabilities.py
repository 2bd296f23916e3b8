"""Minimum compute capability of each quantization method; checked by the operator and by the preflight."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MINIMUM_CAPABILITY: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("gptq", "auto_gptq", "gptq_marlin", "inc"), 60),
        **dict.fromkeys(("compressed-tensors", "quark", "moe_wna16"), 70),
        **dict.fromkeys(("awq", "auto_awq", "awq_marlin", "fp8", "deepseek_v4_fp8", "humming", "torchao"), 75),
        **dict.fromkeys(("modelopt_fp4", "modelopt_mixed"), 75),
        **dict.fromkeys(("online", "fp8_per_tensor", "fp8_per_block", "int8_per_channel_weight_only"), 75),
        **dict.fromkeys(("modelopt", "modelopt_mxfp8", "mxfp8", "mxfp4", "gpt_oss_mxfp4", "experts_int8"), 80),
        "fbgemm_fp8": 80,
        # The next two are checked by their kernels, not by the method's get_min_capability.
        "fp8_per_channel": 89,
        "nvfp4_per_token": 100,
        "fp_quant": 100,
    }
)
"""Ten times the compute capability: 75 is 7.5."""

KERNELS_DECIDE = frozenset({"fp8_per_channel", "nvfp4_per_token"})
"""Methods whose minimum is checked by vLLM's kernels when weights are prepared, later than by the method's class."""
