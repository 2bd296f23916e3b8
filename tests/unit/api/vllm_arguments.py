"""A combination of the matrix as vLLM's EngineArgs, and what came of it in vLLM's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmservice_api.matrix.techniques import NEEDS_DRAFT_MODEL
from llmservice_operator.manifests.server import constant, snake

from tests.unit.vllm_models import LENGTH

Values = Mapping[str, str]
_EXTENDED = 4 * LENGTH
_LENGTHS = {"above the model's": 2 * LENGTH, "above the extended": 2 * _EXTENDED, "within": LENGTH}
_YARN = {
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": LENGTH,
        "rope_theta": 10_000.0,
    },
    "max_position_embeddings": _EXTENDED,
}

# What one value of one dimension adds. What is not here depends on several, and is below.
_ARGUMENTS: dict[tuple[str, str], dict[str, Any]] = {
    ("expertParallel", "on"): {"enable_expert_parallel": True},
    ("tensorParallel", "above 1"): {"tensor_parallel_size": 2},
    ("pipelineParallel", "above 1"): {"pipeline_parallel_size": 2},
    ("dataParallel", "above 1"): {"data_parallel_size": 2},
    ("lora", "on"): {"enable_lora": True},
    ("cpuLoras", "fewer than maxLoras"): {"max_loras": 4, "max_cpu_loras": 2},
    ("cpuLoras", "enough"): {"max_loras": 4, "max_cpu_loras": 4},
    ("prefixCaching", "on"): {"enable_prefix_caching": True},
    ("prefixCaching", "off"): {"enable_prefix_caching": False},
    ("chunkedPrefill", "on"): {"enable_chunked_prefill": True},
    ("chunkedPrefill", "off"): {"enable_chunked_prefill": False},
    ("sequenceTokens", "fewer than maxNumSeqs"): {"max_num_seqs": 8, "max_num_batched_tokens": 4},
    ("sequenceTokens", "enough"): {"max_num_seqs": 8, "max_num_batched_tokens": 512},
    ("promptTokens", "fewer than maxModelLen"): {"max_num_seqs": 8, "max_num_batched_tokens": LENGTH // 2},
    ("promptTokens", "enough"): {"max_num_seqs": 8, "max_num_batched_tokens": LENGTH},
    ("draftTokens", "too few for all guesses"): {"max_num_seqs": 32, "max_num_batched_tokens": 64},
    ("draftTokens", "enough"): {"max_num_seqs": 32, "max_num_batched_tokens": 512},
    ("longPrefill", "above maxModelLen"): {"long_prefill_token_threshold": LENGTH + 1},
    ("longPrefill", "within"): {"long_prefill_token_threshold": LENGTH // 2},
    ("kvOffloading", "on"): {"kv_offloading_size": 1.0},
    ("sleepMode", "on"): {"enable_sleep_mode": True},
    ("enforceEager", "on"): {"enforce_eager": True},
    ("contextExtension", "yarn"): {"hf_overrides": _YARN},
    ("runner", "pooling"): {"runner": "pooling"},
}


def engine_arguments(values: Values, models: Path) -> dict[str, Any]:
    """The keywords of EngineArgs."""
    arguments: dict[str, Any] = {"model": str(models / _model(values)), "skip_tokenizer_init": True}
    for pair in values.items():
        arguments |= _ARGUMENTS.get(pair, {})
    for name, keyword in (("kvCache", "kv_cache_dtype"), ("dtype", "dtype"), ("backend", "attention_backend")):
        if values.get(name, "auto") != "auto":
            arguments[keyword] = values[name]
    if "blockSize" in values:
        arguments["block_size"] = int(values["blockSize"])
    if "contextLength" in values:
        arguments["max_model_len"] = _LENGTHS[values["contextLength"]]
    if values.get("expertParallel") == "on" and "tensorParallel" not in values:
        arguments["tensor_parallel_size"] = 2
    compilation = {
        key: constant(values[name])
        for name, key in (("compilation", "mode"), ("cudaGraphs", "cudagraph_mode"))
        if name in values
    }
    if compilation:
        arguments["compilation_config"] = compilation
    if values.get("speculation", "none") != "none":
        arguments["speculative_config"] = _speculation(values, models)
        arguments |= {"tensor_parallel_size": 4} if "draftParallel" in values else {}
    return arguments


def _model(values: Values) -> str:
    if values.get("speculation") == "mtp":
        return "mtp"
    if values.get("mla") == "yes":
        return "mla"
    if values.get("experts") == "mixture":
        return "mixture"
    return "alibi" if values.get("positions") == "alibi" else "llama"


def _speculation(values: Values, models: Path) -> dict[str, Any]:
    method = values["speculation"]
    config: dict[str, Any] = {"method": snake(method), "num_speculative_tokens": 3}
    if method in NEEDS_DRAFT_MODEL and values.get("draftModel") != "absent":
        config["model"] = str(models / method)
    if draft := {"1": 1, "another": 2}.get(values.get("draftParallel", "")):
        config["draft_tensor_parallel_size"] = draft
    lookups = {"min to max": (2, 4), "min above max": (4, 2)}
    if lookup := lookups.get(values.get("promptLookup", "")):
        config |= dict(zip(("prompt_lookup_min", "prompt_lookup_max"), lookup, strict=True))
    return config


def kept(dimension: str, value: str, config: Any) -> bool:
    """Whether a configuration that vLLM made holds what was asked for."""
    compilation = config.compilation_config
    if dimension == "compilation":
        return bool(compilation.mode.name == constant(value))
    if dimension == "cudaGraphs":
        return bool(compilation.cudagraph_mode.name == constant(value))
    raise KeyError(dimension)
