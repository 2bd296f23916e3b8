"""Types of spec.precision, without pydantic, for the planner."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

Weights = Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8", "int4"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
_Int4 = Literal["awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin"]
_ModelOpt = Literal["fp8", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"]
_Mixed = Literal["humming", "compressed-tensors", "experts_int8", "quark", "moe_wna16", "torchao", "inc"]
_OneModel = Literal["mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8"]
_Online = Literal["online", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only"]
Quantization = Literal[_Int4, _ModelOpt, _Mixed, _OneModel, _Online, "nvfp4_per_token", "mxfp8"]
_Fp8KV = Literal["fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"]
_PerHeadKV = Literal["fp8_per_token_head", "int8_per_token_head", "int4_per_token_head"]
_Fp4KV = Literal["nvfp4", "nvfp4_4over6", "nvfp4_ds_mla"]
_TurboKV = Literal["turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"]
_OctaveKV = Literal["octave_k3v4", "octave_k3v3", "octave_k3v3_compact"]
KVCache = Literal["auto", "float16", "bfloat16", _Fp8KV, _PerHeadKV, _Fp4KV, _TurboKV, "ultraquant_4bit", _OctaveKV]

# Quantization methods that `weights` implies without a named method. `fp8` reads an fp8 checkpoint, and converts an
# unquantized one (vLLM then uses fp8_per_tensor, with a warning). No method creates int4 weights at load, and the one
# for int8 leaves all but MoE layers unquantized: `int8` and `int4` need a quantized checkpoint, whose method vLLM
# detects.
LOAD_METHODS: Mapping[str, str] = MappingProxyType({"fp8": "fp8"})
FLOAT_WEIGHTS = frozenset({"float32", "bfloat16", "float16"})


def float_dtype(dtype: DType, weights: Weights) -> DType:
    """The dtype of weights, arithmetic and KV cache: vLLM has one for all. `dtype`, else the one that `weights`
    implies."""
    return weights if dtype == "auto" and weights in ("float32", "bfloat16", "float16") else dtype
