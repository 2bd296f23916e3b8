"""Names of quantization, as vLLM, checkpoints and people write them: `awq_marlin`, `int8 w8a16`, `modelopt nvfp4`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .values import Refused, one_of, shown

METHODS = (
    *("awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "fp8", "fbgemm_fp8", "ptpc_fp8", "modelopt"),
    *("modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "humming", "compressed-tensors", "bitsandbytes", "gguf"),
    *("experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8", "fp_quant"),
    *("online", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only"),
    *("nvfp4_per_token", "mxfp8"),
)
"""vLLM 0.32's methods and those of its older versions."""
OFFERED = (
    "awq",
    "gptq",
    "fp8",
    "compressed-tensors",
    "bitsandbytes",
    "modelopt_fp4",
    "mxfp4",
    "int8 w8a16",
    "int4 w4a16",
)


@dataclass(frozen=True, slots=True)
class Quantized:
    """A method by vLLM's name, and what it holds the weights in where the name leaves that open."""

    method: str | None
    weights: str = "auto"


_RULES: tuple[tuple[str, Quantized], ...] = (
    (r"fbgemm", Quantized("fbgemm_fp8")),
    (r"mixed", Quantized("modelopt_mixed")),
    (r"modelopt.*mxfp8", Quantized("modelopt_mxfp8")),
    (r"nvfp4|modelopt.*fp4", Quantized("modelopt_fp4")),
    (r"mxfp4", Quantized("mxfp4")),
    (r"modelopt", Quantized("modelopt")),
    (r"bitsandbytes|\bbnb\b|\bnf4\b", Quantized("bitsandbytes")),
    (r"gguf|\bq\d(_[a-z0-9]+)+\b", Quantized("gguf")),
    (r"awq.?marlin", Quantized("awq_marlin")),
    (r"gptq.?marlin", Quantized("gptq_marlin")),
    (r"awq", Quantized("awq")),
    (r"gptq", Quantized("gptq")),
    (r"\bw4a\d+|\bint4\b", Quantized(None, "int4")),
    (r"\bw8a8.?fp8|fp8.*w8a8|\bfp8", Quantized("fp8")),
    (r"\bw8a\d+|\bint8\b", Quantized("compressed-tensors", "int8")),
    (r"compressed.?tensors", Quantized("compressed-tensors")),
)
"""The first that is found in a name; narrow ones come first."""


def quantized(raw: object) -> Quantized:
    """What a name means; Refused for one that means nothing here."""
    word = raw.strip().lower() if isinstance(raw, str) else ""
    if word in ("none", "auto"):
        return Quantized(None)
    if word in METHODS:
        return Quantized(word)
    for pattern, meant in _RULES:
        if re.search(pattern, word):
            return meant
    raise Refused(f"{shown(raw)} is no quantization that vLLM knows.", one_of(OFFERED, raw))
