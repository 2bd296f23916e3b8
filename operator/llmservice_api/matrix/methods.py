"""Quantization methods: types of weights and computation, and devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from llmservice_runtime.contract import FailureReason
from llmservice_vllm import quantization

from llmservice_api.matrix.dimensions import CAPABILITIES, DIMENSIONS, Check, Incompatibility, below, others, when
from llmservice_api.reasons import Reason

FLOATS = ("float32", "bfloat16", "float16")
_MANY_KINDS = ("compressed-tensors", "quark", "torchao", "inc", "humming", "online")
WEIGHTS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fp8": (
            *("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "mxfp8", "deepseek_v4_fp8"),
            *("modelopt", "modelopt_mxfp8", "modelopt_mixed", *_MANY_KINDS),
        ),
        "int8": (
            *("experts_int8", "int8_per_channel_weight_only", "moe_wna16", "gptq", "auto_gptq", "gptq_marlin"),
            *_MANY_KINDS,
        ),
        "int4": (*("awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "moe_wna16"), *_MANY_KINDS),
    }
)
"""Methods by the type of their weights."""

_QUANTIZATION = "vllm/model_executor/layers/quantization"


def capability_of(method: str) -> str:
    """The lowest compute capability of a method, as MAJOR.MINOR."""
    return f"{quantization.MINIMUM_CAPABILITY[method] // 10}.{quantization.MINIMUM_CAPABILITY[method] % 10}"


def rows() -> Iterator[Incompatibility]:
    """Every incompatible combination of precision, except with attention."""
    yield from _contradictions()
    yield from _compute_types()
    yield from _capabilities()
    yield from _accelerators()


def _contradictions() -> Iterator[Incompatibility]:
    yield Incompatibility(
        when(weights=FLOATS, method=DIMENSIONS["method"].values),
        "method",
        "a float type for the weights and a quantization method contradict each other",
        "Remove spec.precision.quantization, or set spec.precision.weights to auto",
        "the operator's own: vLLM has no flag for the weights' type",
        {"weights": "auto"},
        reason=Reason.INVALID_SPEC,
    )
    for weights, methods in WEIGHTS_OF.items():
        yield Incompatibility(
            when(weights=weights, method=others("method", *methods)),
            "method",
            f"the method does not hold weights in {weights}",
            f"Choose {methods[0]} or another method that does, or set spec.precision.weights to auto",
            _QUANTIZATION,
            {"weights": "auto"},
            reason=Reason.INVALID_SPEC,
        )
    for weights in FLOATS:
        yield Incompatibility(
            when(weights=weights, dtype=others("dtype", weights)),
            "dtype",
            f"vLLM holds float weights in the type that it computes in, and weights asks for {weights}",
            "Set one of spec.precision.weights and spec.precision.dtype and leave the other at auto",
            "vllm/config/model.py: ModelConfig.dtype is both",
            {"weights": "auto"},
            reason=Reason.INVALID_SPEC,
        )


def _compute_types() -> Iterator[Incompatibility]:
    source = f"{_QUANTIZATION}: get_supported_act_dtypes"
    yield Incompatibility(
        when(method=others("method", *quantization.FLOAT32_METHODS), dtype="float32"),
        "dtype",
        "quantized weights are not computed with in float32",
        "Set spec.precision.dtype to auto, bfloat16 or float16",
        source,
        check=Check.CALL,
        reason=Reason(FailureReason.PRECISION_UNSUPPORTED),
    )
    yield Incompatibility(
        when(method=quantization.BFLOAT16_METHODS, dtype="float16"),
        "dtype",
        "the method computes in bfloat16 only",
        "Set spec.precision.dtype to auto or bfloat16",
        source,
        check=Check.CALL,
        reason=Reason(FailureReason.PRECISION_UNSUPPORTED),
    )


def _capabilities() -> Iterator[Incompatibility]:
    yield Incompatibility(
        when(accelerator="nvidia", dtype="bfloat16", capability=below("8.0")),
        "dtype",
        "bfloat16 needs compute capability 8.0",
        "Set it to float16",
        "vllm/platforms/cuda.py: check_if_supports_dtype",
        {"dtype": "float16", "weights": "auto"},
        Check.CALL,
        Reason(FailureReason.PRECISION_UNSUPPORTED),
    )
    for least in sorted(set(map(capability_of, quantization.MINIMUM_CAPABILITY)), key=CAPABILITIES.index):
        older = below(least)
        for decided_late in (False, True):
            methods = [
                method
                for method in DIMENSIONS["method"].values
                if capability_of(method) == least and (method in quantization.KERNELS_DECIDE) == decided_late
            ]
            if methods and older:
                yield Incompatibility(
                    when(accelerator="nvidia", method=methods, capability=older),
                    "method",
                    f"the quantization method needs compute capability {least}",
                    "Choose another precision",
                    f"{_QUANTIZATION}/online: the kernels" if decided_late else f"{_QUANTIZATION}: get_min_capability",
                    check=Check.NONE if decided_late else Check.CALL,
                    reason=Reason(FailureReason.PRECISION_UNSUPPORTED),
                )


def _accelerators() -> Iterator[Incompatibility]:
    yield Incompatibility(
        when(accelerator="amd", method=others("method", *quantization.AMD_METHODS)),
        "method",
        "vLLM does not serve this method on AMD GPUs",
        "Choose fp8_per_tensor, awq, gptq or compressed-tensors, or another kind of GPU in spec.accelerator.type",
        "vllm/platforms/rocm.py: supported_quantization",
        {"method": "fp8_per_tensor"},
        Check.CALL,
    )
    for layers, methods in quantization.NO_CPU_KERNEL.items():
        yield Incompatibility(
            when(accelerator="cpu", method=methods),
            "method",
            f"vLLM has no kernel for {layers} layers on CPUs",
            "Choose fp8, awq, gptq or compressed-tensors, or a GPU in spec.accelerator.type",
            f"vllm/model_executor/kernels/linear/__init__.py: _POSSIBLE_{layers}_KERNELS",
            {"method": "fp8"},
            Check.CALL,
        )
    yield Incompatibility(
        when(accelerator="cpu", kvCache=others("kvCache", *quantization.CPU_KV_TYPES)),
        "kvCache",
        "CPUs hold the KV cache in auto, float16, bfloat16 or fp8",
        "Choose one of these, or a GPU in spec.accelerator.type",
        "vllm/v1/attention/backends/cpu_attn.py: supported_kv_cache_dtypes",
        {"kvCache": "auto"},
        Check.CALL,
    )
