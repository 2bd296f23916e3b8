"""Bytes of a matrix in an engine: type, quantization method, and what stays in 16 bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llmservice_planner.kv_blocks import is_compressed, value_bytes
from llmservice_planner.model import quantized
from llmservice_planner.model.architecture import UNQUANTIZED, Architecture, Incomplete, Linear, Part, Quantization
from llmservice_planner.plan import Request

ROW_SCALE_BITS = 32
"""Methods without groups keep one 32-bit scale for each output row (per-channel fp8 and int8)."""

_OCP_MX = 32
"""Weights per scale."""
_COPIES_MISALIGNED = ("qwen3next", "qwen35", "qwen4exp")
"""Classes or model types, without `_`, with Qwen3NextSparseMoeBlock (vLLM 0.32, models/qwen3_next.py)."""
_SPLITS_ALWAYS = (
    *("afmoe", "aria", "bailing", "cohere2moe", "ernie45", "exaonemoe", "glm4", "granitemoe", "hyv3", "hyv4"),
    *("inkling", "laguna", "minimaxm3", "param2moe", "qwen2moe", "qwen3moe", "qwen3vlmoe", "sarvam", "step3"),
)
"""Models whose shared experts ranks share also where experts are spread over several engines (vLLM 0.32)."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The form of weights in memory or in files."""

    value_bytes: int
    """Of an unquantized value."""
    quantization: Quantization | None = None
    own: bool = False
    """It is the checkpoint's quantization: its excluded modules stay in 16 bit."""

    def form_of(self, linear: Linear) -> Quantization | None:
        """The quantization of a matrix; None: unquantized."""
        form = linear.form if self.own else 0
        if self.quantization is None or linear.plain or form == UNQUANTIZED:
            return None
        parts = self.quantization.parts
        return None if parts and linear.part not in parts else self.quantization.forms[form]

    def bytes_of(self, linear: Linear) -> float:
        """Of all its values, scales, zeros and biases."""
        size = max(4, self.value_bytes) if linear.wide else self.value_bytes
        biases = linear.bias * linear.count * size
        form = self.form_of(linear)
        return (linear.values * size if form is None else quantized_bytes(form, linear)) + biases

    def head_bytes(self, values: int, rows: int) -> float:
        """Of lm_head, which few methods quantize."""
        form = self.quantization.head if self.quantization is not None and self.own else UNQUANTIZED
        return self.bytes_of(Linear("lm_head", Part.HEAD, values // rows, rows, form=form, plain=form == UNQUANTIZED))


def pads(request: Request, linear: Linear, form: Quantization | None) -> bool:
    """Whether each rank gets whole blocks of a shared expert, padded with zeros: DeepSeek V4's in blocks of fp8, except
    on AMD (vllm/models/deepseek_v4/nvidia/model.py, DeepseekV4MLP)."""
    model, device = request.architecture, request.device
    if model is None or form is None or form.group_rows == 1 or (device is not None and device.is_amd):
        return False
    return ".shared_experts." in linear.module and is_compressed(model)


def copies(request: Request, linear: Linear, form: Quantization | None) -> bool:
    """Whether each rank holds all of a shared expert, where experts are spread over ranks.

    With several engines each rank processes some of the tokens (vllm/config/parallel.py, use_sequence_parallel_moe).
    With one engine some classes copy OCP MX experts without whole groups for each rank.
    """
    if request.architecture is None or not request.enable_expert_parallel or ".shared_experts." not in linear.module:
        return False
    name = request.architecture.name.lower().replace("_", "")
    if request.data_parallel_size > 1 and not name.startswith(_SPLITS_ALWAYS):
        return True
    if form is None or form.method != "quark" or form.group_size != _OCP_MX or 8 not in (form.bits, form.scale_bits):
        return False
    width = linear.inputs if linear.is_row_parallel else linear.outputs
    return width % (request.tensor_parallel_size * _OCP_MX) != 0 and name.startswith(_COPIES_MISALIGNED)


def quantized_bytes(quantization: Quantization, linear: Linear) -> float:
    """Bits for each value, a scale (and a zero) for each group; without groups a scale for each output."""
    values, bits = linear.values, quantization.bits
    if quantization.group_size:
        groups = -(-linear.inputs // quantization.group_size) * -(-linear.outputs // quantization.group_rows)
        extra = groups * linear.count * (quantization.scale_bits + quantization.zero_bits)
    else:
        extra = linear.outputs * linear.count * ROW_SCALE_BITS
    return (values * bits + extra) / 8


def checkpoint(architecture: Architecture) -> Storage:
    return Storage(4 if architecture.dtype == "float32" else 2, architecture.quantization, own=True)


def engine(request: Request) -> Storage:
    """The form in the engine: the request's, else the checkpoint's."""
    own = request.architecture.quantization if request.architecture is not None else None
    value = value_bytes(request)
    if own is not None and not all(form.bits for form in own.forms):
        raise Incomplete(f"the bits of a weight with quantization {own.method}")
    if own is not None and _equals_checkpoint(request.quantization, own):
        return Storage(value, own, own=True)
    named = request.quantization or (None if own is not None else _BY_WEIGHTS.get(request.weights))
    if named is None:
        return Storage(value, own, own=True)
    method = quantized.method(named)
    if method is None:
        raise Incomplete(f"the bits of a weight with quantization {named}")
    if request.weights in ("int8", "fp8") and method.bits == 4 and own is None and method.method != "awq":
        method = replace(method, bits=8)
    return Storage(value, method)


_BY_WEIGHTS: Mapping[str, str] = {"fp8": "fp8", "int8": "int8_per_channel_weight_only", "int4": "gptq"}
"""Meaning of spec.precision.weights without a named method."""


def _equals_checkpoint(stated: str | None, own: Quantization) -> bool:
    """Whether the stated method equals the checkpoint's, or none is stated."""
    if stated is None:
        return True
    named, known = quantized.method(stated), quantized.method(own.method)
    if named is None or known is None:
        return stated == own.method
    return named.method == known.method or named.bits == own.bits
