"""What each quantization method of vLLM stores per weight, by its name and its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from llmservice_planner.model.architecture import UNQUANTIZED, InvalidModel, Part, Quantization
from llmservice_planner.model.config_keys import Keys

NESTED_BITS = 8 + 32 / 256
"""Bits of bitsandbytes' scales that are quantized again: 8, and a 32-bit one for 256 of them. vLLM's loader does so
when it quantizes at load (compress_statistics=True)."""

METHODS: Mapping[str, Quantization] = {
    one.method: one
    for one in (
        Quantization("awq", 4, 128, zero_bits=4),
        Quantization("gptq", 4, 128, zero_bits=4),
        Quantization("fp8", 8),
        Quantization("fbgemm_fp8", 8, parts=(Part.FEED_FORWARD, Part.EXPERTS)),
        Quantization("fp8_per_tensor", 8),
        Quantization("fp8_per_channel", 8),
        Quantization("fp8_per_block", 8, 128, scale_bits=32, group_rows=128),
        Quantization("modelopt", 8),
        Quantization("modelopt_fp4", 4, 16, scale_bits=8, parts=(Part.FEED_FORWARD, Part.EXPERTS)),
        Quantization("nvfp4", 4, 16, scale_bits=8),
        Quantization("modelopt_mixed", 4, 16, scale_bits=8),
        Quantization("modelopt_mxfp8", 8, 32, scale_bits=8),
        Quantization("nvfp4_per_token", 4, 16, scale_bits=8),
        Quantization("mxfp4", 4, 32, scale_bits=8, parts=(Part.EXPERTS,)),
        Quantization("mxfp8", 8, 32, scale_bits=8),
        Quantization("int8_per_channel_weight_only", 8),
        Quantization("experts_int8", 8, parts=(Part.EXPERTS,)),
        Quantization("moe_wna16", 4, 128),
        Quantization("bitsandbytes", 4, 64, scale_bits=NESTED_BITS),
        Quantization("compressed-tensors", 8),
        Quantization("quark", 8),
        Quantization("torchao", 8),
        Quantization("inc", 4, 128, zero_bits=4),
        Quantization("gguf", 4.5),
    )
}
"""Defaults of each method: bits, weights per scale, bits of a scale.

AWQ and GPTQ of 4 bits with groups of 128 are their tools' defaults, NVFP4 has an 8-bit scale for 16 values, MX formats
one for 32, bitsandbytes' NF4 one for 64. FBGEMM's fp8 keeps attention in 16 bit, and so do ModelOpt's NVFP4 recipes
(vllm#40291: a 31B that cannot hold its attention beside 29.4 GiB). NVFP4 without a tool covers all linears, as in
compressed-tensors: 8B with 5.98 GiB and 14B with 9.97 GiB on one GPU.
"""

_SAME: Mapping[str, str] = {
    "awq_marlin": "awq",
    "auto_awq": "awq",
    "gptq_marlin": "gptq",
    "auto_gptq": "gptq",
    "gptq_marlin_24": "gptq",
    "autoround": "inc",
    "auto-round": "inc",
    "auto_round": "inc",
    "modelopt_nvfp4": "modelopt_fp4",
    "gpt_oss_mxfp4": "mxfp4",
    "deepseek_v4_fp8": "fp8",
    "online": "fp8",
    "compressed_tensors": "compressed-tensors",
    "int8": "int8_per_channel_weight_only",
    "fp_quant": "nvfp4",
    "fbgemm": "fbgemm_fp8",
}
"""Other names of the same storage."""


def method(name: str) -> Quantization | None:
    """Storage of a method, or None. Common names are accepted: `awq_marlin`, `int8 w8a16`."""
    text = name.strip().lower()
    known = METHODS.get(_SAME.get(text, text))
    if known is not None:
        return known
    if "nvfp4" in text and "per_token" not in text:
        # The tool determines the linears: `modelopt nvfp4`, `compressed-tensors NVFP4`.
        return METHODS["modelopt_fp4" if "modelopt" in text else "nvfp4"]
    for word in sorted({*METHODS, *_SAME}, key=len, reverse=True):
        if word in text:
            return METHODS[_SAME.get(word, word)]
    return None


def by_bits(name: str, values: Keys, base: Quantization | None = None) -> Quantization:
    """AWQ, GPTQ, AutoRound, fp8 and others with bits and group_size; `base` has the defaults.

    0 bits if unknown: nothing can be computed with such a form.
    """
    if name == "fp8" and values.has("weight_block_size"):
        return _blocks(values, "weight_block_size")
    known = base or method(name) or Quantization(name, 0)
    bits = values.number("bits") or values.number("w_bit") or values.number("nbits") or known.bits
    kind = values.text("data_type") or ""
    if isinstance(values.raw("group_size"), list | tuple):
        return replace(_blocks(values, "group_size"), method=name, bits=bits)
    if kind.startswith(("mx_fp", "nv_fp")):
        scaled = METHODS["mxfp8" if kind.startswith("mx") else "nvfp4"]
        return replace(scaled, method=name, bits=bits, group_size=_group(values, scaled.group_size))
    # GPTQ's files have zeros even where quantization is symmetric.
    zero_bits = bits if known.zero_bits and values.raw("zero_point") is not False else 0
    own = replace(known, method=name, bits=bits, group_size=_group(values, known.group_size), zero_bits=zero_bits)
    return replace(own, head=UNQUANTIZED, refused="")


def _group(section: Keys, default: int) -> int:
    """-1 means one scale for a channel."""
    for name in ("group_size", "q_group_size"):
        value = section.raw(name)
        if value is not None:
            number = section.checked(name, value, least=-1)
            return max(number, 0)
    return default


def _blocks(section: Keys, name: str) -> Quantization:
    """fp8 with a 32-bit scale for each block of 128 x 128, as DeepSeek's."""
    sizes = section.values(name) or ()
    if len(sizes) != 2:
        raise InvalidModel(f"quantization_config.{name}", "must be two numbers")
    rows, columns = (section.checked(name, one, least=1) for one in sizes)
    return Quantization("fp8", 8, columns, scale_bits=32, group_rows=rows)


def compressed(weights: Keys, packing: str) -> Quantization:
    """One group's weights (compressed-tensors); `packing` is its format."""
    name, bits = "compressed-tensors", weights.number("num_bits") or 8
    strategy = weights.text("strategy") or ("group" if weights.has("group_size") else "channel")
    if strategy == "tensor_group" or "nvfp4" in packing:
        return Quantization(name, bits, _group(weights, 16), scale_bits=8)
    if "mxfp" in packing:
        return Quantization(name, bits, _group(weights, 32), scale_bits=8)
    if strategy == "block":
        return replace(METHODS["fp8_per_block"], method=name)
    group = _group(weights, 128) if strategy == "group" else 0
    zeros = bits if weights.raw("symmetric") is False and group else 0
    return Quantization(name, bits, group, zero_bits=zeros)


def modelopt(name: str, values: Keys) -> Quantization:
    """One of ModelOpt's algorithms."""
    algorithm = (values.text("quant_algo") or ("NVFP4" if "fp4" in name else "FP8")).upper()
    if "NVFP4" in algorithm or "MIXED" in algorithm:
        return replace(METHODS["modelopt_fp4"], method=name, group_size=_group(values, 16), parts=())
    if "MXFP8" in algorithm:
        return replace(METHODS["modelopt_mxfp8"], method=name)
    if "PB_WO" in algorithm:
        return replace(METHODS["fp8_per_block"], method=name)
    if "W4" in algorithm or "INT4" in algorithm:
        return Quantization(name, 4, _group(values, 128))
    return replace(METHODS["modelopt"], method=name)


def bitsandbytes(section: Keys) -> Quantization:
    """8 bits by row, or NF4 with plain or quantized scales."""
    if section.flag("load_in_8bit") or section.flag("_load_in_8bit"):
        return Quantization("bitsandbytes", 8)
    nested = section.flag("bnb_4bit_use_double_quant")
    return Quantization("bitsandbytes", 4, 64, scale_bits=NESTED_BITS if nested else 32)


_QUARK: Mapping[str, Quantization] = {
    "fp8": METHODS["fp8"],
    "fp4": replace(METHODS["mxfp4"], parts=()),
    "mxfp4": replace(METHODS["mxfp4"], parts=()),
    "int8": Quantization("quark", 8),
    "int4": Quantization("quark", 4, 128),
    "uint4": Quantization("quark", 4, 128, zero_bits=4),
}


def quark(values: Keys | None) -> Quantization | None:
    """One of Quark's layer configurations; None if its weights are not quantized."""
    weight = values.raw("weight") if values is not None else None
    if isinstance(weight, list | tuple):
        weight = weight[0] if weight else None
    if not isinstance(weight, Mapping):
        return None
    facts = Keys(weight, path="quantization_config.weight.")
    text = facts.text("dtype") or "fp8"
    for word in sorted(_QUARK, key=len, reverse=True):
        if text.startswith(word):
            known = _QUARK[word]
            return replace(known, method="quark", group_size=_group(facts, known.group_size))
    return METHODS["quark"]


_TORCHAO_BITS = re.compile(r"int([1-8])weight")
_TORCHAO_GROUPS: Mapping[str, int] = {"Int8DynamicActivation": 32, "Float8DynamicActivationInt4": 128}
"""Weights per scale if torchao's configuration lacks it; its plain int4 has 128."""


def torchao(kind: object, data: Keys) -> Quantization:
    """A torchao configuration by its class: Int4WeightOnlyConfig, Float8WeightOnlyConfig, ...

    Int4WeightOnly has a 16-bit scale and zero for each group; 8 bits have a scale for each output.
    """
    text = kind if isinstance(kind, str) else ""
    weights = data.section("weight_dtype") if isinstance(data.raw("weight_dtype"), Mapping) else None
    stated = str(weights.raw("_data")) if weights is not None else ""
    found = _TORCHAO_BITS.search(f"{stated}weight" if stated else text.lower().replace("_", ""))
    bits = int(found[1]) if found else 8
    if bits == 8:
        return Quantization("torchao", 8)
    default = next((size for word, size in _TORCHAO_GROUPS.items() if text.startswith(word)), 128)
    zeros = 16 if text.lower().replace("_", "").startswith("int4weightonly") else 0
    granularity = data.section("granularity") if isinstance(data.raw("granularity"), Mapping) else None
    inner = None if granularity is None else granularity.section("_data")
    return Quantization("torchao", bits, _group(inner or data, _group(data, default)), zero_bits=zeros)
