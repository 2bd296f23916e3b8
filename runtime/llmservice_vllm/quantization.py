"""Quantization methods: required capability, compute types and devices; used by the operator and the preflight."""

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
        # The next two are checked by their kernels, not by get_min_capability of the method.
        "fp8_per_channel": 89,
        "nvfp4_per_token": 100,
        "fp_quant": 100,
    }
)
"""Ten times the compute capability: 75 is 7.5."""

KERNELS_DECIDE = frozenset({"fp8_per_channel", "nvfp4_per_token"})
"""Methods whose capability vLLM's kernels check when weights are prepared, later than the method's class."""

DEPRECATED = frozenset({"fbgemm_fp8", "fp_quant"})

ONLINE = frozenset({"online", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "nvfp4_per_token"})
"""They quantize an unquantized checkpoint."""
NOT_READ_BY_FP8 = frozenset({"compressed-tensors", "gptq", "awq", "bitsandbytes", "modelopt", "mxfp4", "quark"})
"""Methods of checkpoints."""

FLOAT32_METHODS = ("torchao", "compressed-tensors")
"""Methods that can compute in float32; others accept bfloat16 and float16."""

BFLOAT16_METHODS = ("mxfp4", "gpt_oss_mxfp4", "modelopt_mxfp8")
"""Methods that compute in bfloat16 only, if the checkpoint has that method."""

# Accepted by vLLM's ROCm platform; its CPU platform leaves it to each method.
AMD_METHODS = (
    *("awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "fp8", "deepseek_v4_fp8", "compressed-tensors", "inc"),
    *("quark", "mxfp4", "mxfp8", "torchao", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"),
    *("fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "online", "gpt_oss_mxfp4"),
)

NO_CPU_KERNEL: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"MXFP8": ("mxfp8", "modelopt_mxfp8"), "NVFP4": ("modelopt_fp4", "nvfp4_per_token")}
)
"""Methods whose layers have kernels on GPUs only, by vLLM's name of the layers."""

CPU_KV_TYPES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")

AWQ = frozenset({"awq", "auto_awq", "awq_marlin"})
PACKED = frozenset({"gptq", "auto_gptq", "gptq_marlin", "inc", "compressed-tensors"})
"""On CPUs, these use the operator cpu_gemm_wna16 with four-bit weights; AWQ always has four bits."""
