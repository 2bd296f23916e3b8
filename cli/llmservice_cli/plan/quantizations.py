"""Names of quantization, as vLLM, checkpoints and people write them: `awq_marlin`, `int8 w8a16`, `modelopt nvfp4`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import get_args

from llmservice_operator.api.dtypes import Quantization

from .values import Refused, one_of, shown

METHODS = (*get_args(Quantization), "bitsandbytes", "fbgemm_fp8", "fp_quant", "gguf", "ptpc_fp8")
"""The newest vLLM's methods, and those that older versions or plugins have."""
OFFERED = (
    "awq",
    "gptq",
    "gptq int8",
    "fp8",
    "compressed-tensors",
    "bitsandbytes",
    "nvfp4",
    "modelopt_fp4",
    "mxfp4",
    "int8 w8a16",
    "int4 w4a16",
)
ALL_NVFP4 = "nvfp4"
"""NVFP4 of all linears, as llm-compressor makes it; vLLM serves it as compressed-tensors. ModelOpt's recipes
(modelopt_fp4) leave attention in 16 bit."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """A method by vLLM's name (or ALL_NVFP4), and what it holds the weights in where the name leaves that open."""

    method: str | None
    weights: str = "auto"

    @property
    def field(self) -> str | None:
        """The method as spec.precision.quantization has it."""
        return "compressed-tensors" if self.method == ALL_NVFP4 else self.method


_EIGHT = re.compile(r"(?<![a-z0-9])(int.?8|8.?bits?|w8a\d+|q8)(?![a-z0-9])")
"""A name that says 8 bits of integers; in what method comes after."""
_OF_EIGHT: tuple[tuple[str, Quantized], ...] = (
    (r"fp8", Quantized("fp8")),
    (r"bitsandbytes|\bbnb\b", Quantized("bitsandbytes", "int8")),
    (r"gptq", Quantized("gptq", "int8")),
    (r"auto.?round|\binc\b", Quantized("inc", "int8")),
    (r"torchao", Quantized("torchao", "int8")),
    (r"quark", Quantized("quark", "int8")),
    (r"", Quantized("compressed-tensors", "int8")),  # of AWQ, HQQ and GGUF no method is known that stores 8 bits
)
_RULES: tuple[tuple[str, Quantized], ...] = (
    (r"bitsandbytes|\bbnb\b|\bnf4\b", Quantized("bitsandbytes")),
    (r"gguf|\bq\d(_[a-z0-9]+)+\b", Quantized("gguf")),
    (r"awq.?marlin", Quantized("awq_marlin")),
    (r"gptq.?marlin", Quantized("gptq_marlin")),
    (r"awq", Quantized("awq")),
    (r"gptq", Quantized("gptq")),
    (r"auto.?round", Quantized("inc")),
    (r"\bfp4\b", Quantized(ALL_NVFP4)),
    (r"\bw4a\d+|\bint.?4\b|(?<![a-z0-9])4.?bits?\b|\bhqq", Quantized(None, "int4")),
    (r"\bfp8", Quantized("fp8")),
    (r"compressed.?tensors", Quantized("compressed-tensors")),
    (r"torchao", Quantized("torchao")),
    (r"quark", Quantized("quark")),
)
_FORMATS: tuple[tuple[str, Quantized], ...] = (
    (r"fbgemm", Quantized("fbgemm_fp8")),
    (r"mixed", Quantized("modelopt_mixed")),
    (r"modelopt.*mxfp8", Quantized("modelopt_mxfp8")),
    (r"modelopt.*fp4|fp4.*modelopt", Quantized("modelopt_fp4")),
    (r"nvfp4", Quantized(ALL_NVFP4)),
    (r"mxfp4", Quantized("mxfp4")),
    (r"mxfp8", Quantized("mxfp8")),
    (r"modelopt", Quantized("modelopt")),
)
"""The first that is found in a name; narrow ones come first."""


def quantized(raw: object) -> Quantized:
    """What a name means; Refused for one that means nothing here."""
    word = raw.strip().lower() if isinstance(raw, str) else ""
    if word in ("none", "auto"):
        return Quantized(None)
    if word in METHODS:
        return Quantized(word)
    of_eight = _OF_EIGHT if _EIGHT.search(word.replace("_", " ")) else ()
    for pattern, meant in (*_FORMATS, *of_eight, *_RULES):
        if re.search(pattern, word):
            return meant
    raise Refused(f"{shown(raw)} is no quantization that vLLM knows.", one_of(OFFERED, raw))
