"""How a checkpoint is quantized, by its quantization_config, and what vLLM's methods store where none is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmservice_operator.api.dtypes import KVCache
from llmservice_operator.planner.model.architecture import InvalidModel, Part, Quantization
from llmservice_operator.planner.model.config_keys import Keys

MOST_MODULES = 2**20
"""Lists of kept modules name each expert of each layer in some files."""

NESTED_BITS = 8 + 32 / 256
"""Of bitsandbytes' scales where they are quantized once more: 8 bits, and 256 of them share one of 32. vLLM's loader
does so when it quantizes at load (compress_statistics=True)."""

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
"""What a method stores for a weight where no file says it otherwise: bits, weights to a scale, bits of a scale.
The bits are of the formats' definitions: AWQ and GPTQ of 4 bits with groups of 128 are their tools' defaults, NVFP4 has
a scale of 8 bits for 16 values, MX formats one for 32, bitsandbytes' NF4 one for 64. FBGEMM's fp8 leaves attention in
16 bit, and so do ModelOpt's NVFP4 recipes (vllm#40291: a 31B that cannot hold its attention beside 29.4 GiB). NVFP4 by
itself is of all linears, as compressed-tensors makes it: 8B with 5.98 GiB and 14B with 9.97 GiB on one GPU."""

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
    """What a method stores; None where it is not known. People's words count too: `awq_marlin`, `int8 w8a16`."""
    text = name.strip().lower()
    known = METHODS.get(_SAME.get(text, text))
    if known is not None:
        return known
    if "nvfp4" in text and "per_token" not in text:
        # Whoever made the checkpoint says which linears: `modelopt nvfp4`, `compressed-tensors NVFP4`.
        return METHODS["modelopt_fp4" if "modelopt" in text else "nvfp4"]
    for word in sorted({*METHODS, *_SAME}, key=len, reverse=True):
        if word in text:
            return METHODS[_SAME.get(word, word)]
    return None


def read(keys: Keys) -> Quantization | None:
    """From quantization_config (compression_config of old); None where the checkpoint is not quantized."""
    section = keys.section("quantization_config") or keys.section("compression_config")
    if section is None:
        return None
    nested = section.section("quantization") or section
    weights = _weights(section, nested)
    return replace(weights, kv_cache=_kv_cache(section, nested)) if weights.method.startswith(_SCALED) else weights


_SCALED = ("modelopt", "compressed")
"""Methods whose checkpoints bring scales for the KV cache."""


def _kv_cache(section: Keys, nested: Keys) -> KVCache | None:
    """As vLLM reads it for `auto` (utils/torch_utils.py, and the layers themselves for compressed-tensors)."""
    algorithms: Mapping[str, KVCache] = {"FP8": "fp8", "NVFP4": "nvfp4"}
    by_bits: Mapping[int, KVCache] = {8: "fp8", 4: "nvfp4"}
    for where in (nested, section):
        scheme = where.section("kv_cache_scheme") if isinstance(where.raw("kv_cache_scheme"), Mapping) else None
        if scheme is not None:
            return by_bits.get(scheme.integer("num_bits") or 8)
    for where in (nested, section):
        named = where.raw("kv_cache_quant_algo")
        if isinstance(named, str):
            return algorithms.get(named.upper())
    return None


def _weights(section: Keys, nested: Keys) -> Quantization:
    name = _method_of(section, nested)
    kept = _kept(section, nested)
    if name in ("compressed-tensors", "compressed_tensors"):
        return _compressed(section, kept)
    if name.startswith("modelopt"):
        return _modelopt(name, nested, kept)
    if name == "bitsandbytes":
        return _bitsandbytes(section, kept)
    if name == "quark":
        return _quark(section, kept)
    if name == "fp8" and section.has("weight_block_size"):
        return _blocks(section, kept)
    return _plain(name, section, kept)


def _method_of(section: Keys, nested: Keys) -> str:
    name = section.text("quant_method")
    if name is None and nested.has("quant_algo"):
        return "modelopt"
    if name is None and section.has("config_groups"):
        return "compressed-tensors"
    if name is None:
        raise InvalidModel("quantization_config.quant_method", "is missing")
    return name.lower()


def _kept(section: Keys, nested: Keys) -> tuple[str, ...]:
    for where in (section, nested):
        for name in (
            "ignore",
            "modules_to_not_convert",
            "ignored_layers",
            "exclude_modules",
            "exclude",
            "llm_int8_skip_modules",
        ):
            found = where.words(name, MOST_MODULES)
            if found is not None:
                return found
    return ()


def _plain(name: str, section: Keys, kept: tuple[str, ...]) -> Quantization:
    """AWQ, GPTQ, AutoRound and others that say bits and group_size."""
    known = method(name) or Quantization(name, 0)
    bits = section.number("bits") or section.number("w_bit") or section.number("nbits") or known.bits
    if not bits:
        raise InvalidModel("quantization_config", f"does not say how many bits a weight of {name} has")
    group = _group(section, known.group_size)
    # GPTQ's files have zeros even where quantization is symmetric.
    zero_bits = bits if known.zero_bits and section.raw("zero_point") is not False else 0
    return replace(
        known,
        method=name,
        bits=bits,
        group_size=group,
        kept=kept,
        zero_bits=zero_bits,
        head=section.raw("lm_head") is True,
    )


def _group(section: Keys, default: int) -> int:
    """-1 means one scale for a channel."""
    for name in ("group_size", "q_group_size"):
        value = section.raw(name)
        if value is not None:
            number = section.checked(name, value, least=-1)
            return max(number, 0)
    return default


def _blocks(section: Keys, kept: tuple[str, ...]) -> Quantization:
    """fp8 with a 32-bit scale for each block of 128 x 128, as DeepSeek's."""
    sizes = section.values("weight_block_size") or ()
    if len(sizes) != 2:
        raise InvalidModel("quantization_config.weight_block_size", "must be two numbers")
    rows, columns = (section.checked("weight_block_size", one) for one in sizes)
    return Quantization("fp8", 8, columns, kept, scale_bits=32, group_rows=rows)


def _compressed(section: Keys, kept: tuple[str, ...]) -> Quantization:
    """The group with most bits-saving decides; groups of several widths are rare, and their names are not read."""
    groups = section.raw("config_groups")
    weights = [_weights_of(group) for group in (groups.values() if isinstance(groups, Mapping) else ())]
    found = [one for one in weights if one is not None]
    head = any(_targets_head(group) for group in (groups.values() if isinstance(groups, Mapping) else ()))
    if not found:
        return Quantization("compressed-tensors", 8, kept=kept)
    first = found[0]
    bits = first.number("num_bits") or 8
    strategy = first.text("strategy") or ("group" if first.has("group_size") else "channel")
    fmt = section.text("format") or ""
    if strategy == "tensor_group" or "nvfp4" in fmt:
        return Quantization("compressed-tensors", bits, _group(first, 16), kept, scale_bits=8, head=head)
    if "mxfp" in fmt:
        return Quantization("compressed-tensors", bits, _group(first, 32), kept, scale_bits=8, head=head)
    if strategy == "block":
        return replace(METHODS["fp8_per_block"], method="compressed-tensors", kept=kept, head=head)
    group = _group(first, 128) if strategy == "group" else 0
    zeros = bits if first.raw("symmetric") is False and group else 0
    return Quantization("compressed-tensors", bits, group, kept, zero_bits=zeros, head=head)


def _weights_of(group: Any) -> Keys | None:
    if not isinstance(group, Mapping):
        raise InvalidModel("quantization_config.config_groups", "must be an object of objects")
    return Keys(group, path="quantization_config.config_groups.").section("weights")


def _targets_head(group: Mapping[str, Any]) -> bool:
    targets = group.get("targets")
    return isinstance(targets, list) and any(isinstance(one, str) and "lm_head" in one for one in targets)


def _modelopt(name: str, nested: Keys, kept: tuple[str, ...]) -> Quantization:
    algorithm = (nested.text("quant_algo") or ("NVFP4" if "fp4" in name else "FP8")).upper()
    if "NVFP4" in algorithm or "MIXED" in algorithm:
        return replace(METHODS["modelopt_fp4"], method=name, group_size=_group(nested, 16), kept=kept, parts=())
    if "MXFP8" in algorithm:
        return replace(METHODS["modelopt_mxfp8"], method=name, kept=kept)
    if "PB_WO" in algorithm:
        return replace(METHODS["fp8_per_block"], method=name, kept=kept)
    if "W4" in algorithm:
        return Quantization(name, 4, _group(nested, 128), kept)
    return replace(METHODS["modelopt"], method=name, kept=kept)


def _bitsandbytes(section: Keys, kept: tuple[str, ...]) -> Quantization:
    if section.flag("load_in_8bit") or section.flag("_load_in_8bit"):
        return Quantization("bitsandbytes", 8, kept=kept)
    nested = section.flag("bnb_4bit_use_double_quant")
    return Quantization("bitsandbytes", 4, 64, kept, scale_bits=NESTED_BITS if nested else 32)


_QUARK: Mapping[str, Quantization] = {
    "fp8": METHODS["fp8"],
    "fp4": replace(METHODS["mxfp4"], parts=()),
    "mxfp4": replace(METHODS["mxfp4"], parts=()),
    "int8": Quantization("quark", 8),
    "int4": Quantization("quark", 4, 128),
    "uint4": Quantization("quark", 4, 128, zero_bits=4),
}


def _quark(section: Keys, kept: tuple[str, ...]) -> Quantization:
    overall = section.section("global_quant_config")
    weight = overall.raw("weight") if overall is not None else None
    if isinstance(weight, list | tuple):
        weight = weight[0] if weight else None
    if not isinstance(weight, Mapping):
        return replace(METHODS["quark"], kept=kept)
    facts = Keys(weight, path="quantization_config.global_quant_config.weight.")
    text = facts.text("dtype") or "fp8"
    for word in sorted(_QUARK, key=len, reverse=True):
        if text.startswith(word):
            known = _QUARK[word]
            return replace(known, method="quark", group_size=_group(facts, known.group_size), kept=kept)
    return replace(METHODS["quark"], kept=kept)
