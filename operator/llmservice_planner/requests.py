"""Builds the planner's Request from a spec."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from llmservice_api.engine import ContextExtension, CudaGraphs
from llmservice_api.spec import LLMServiceSpec
from llmservice_vllm.flags import Match
from llmservice_vllm.versions import flag_table_or_default

from llmservice_planner.model.architecture import Architecture, Tensors
from llmservice_planner.plan import Adapters, Device, Draft, Request
from llmservice_planner.quantity import amount, gibibytes
from llmservice_planner.versions import given, is_on

# Input kinds of a multimodal model that are switched off, by flags without a field.

_LIMITS, _TEXT_ONLY, _UNPROFILED = "--limit-mm-per-prompt", "--language-model-only", "--skip-mm-profiling"
ENCODED = frozenset({"image", "video"})
_MOST = 4096
"""Characters of a value that is read; longer ones contain more than a few numbers."""


def disabled_inputs(arguments: Sequence[str], version: str) -> frozenset[str]:
    """Of `image` and `video`, those that vLLM does not profile: the limit is 0, or profiling is off.

    In every spelling of that vLLM's parser; of duplicates the last.
    """
    found: dict[str, bool] = {}
    nothing: dict[str, bool] = {}
    for argument, resolution, following in flag_table_or_default(version).grouped(arguments):
        if not isinstance(resolution, Match):
            continue
        flag, value = resolution.flag.name, resolution.value or next(iter(following), "")
        _, dot, kind = argument.partition("=")[0].partition(".")
        if flag in (_TEXT_ONLY, _UNPROFILED):
            nothing[flag] = not resolution.is_negated
        elif flag == _LIMITS and dot:
            found[kind.removesuffix(".count")] = value == "0"
        elif flag == _LIMITS:
            found |= {kind: limit == 0 for kind, limit in _limits(value)}
    return ENCODED if any(nothing.values()) else frozenset(kind for kind in ENCODED if found.get(kind))


def _limits(text: str) -> Iterator[tuple[str, object]]:
    """`{"video": 0}`, or with further options `{"video": {"count": 0}}`."""
    try:
        limits = json.loads(text) if len(text) <= _MOST else None
    except (ValueError, RecursionError):
        return
    for kind, limit in limits.items() if isinstance(limits, Mapping) else ():
        yield kind, limit.get("count") if isinstance(limit, Mapping) else limit


CPU = "cpu"
_GRAPHS_OF_LEVEL: Mapping[int | None, CudaGraphs] = {0: "none", 1: "piecewise"}
"""Without cudaGraphs; from level 2 on vLLM records all."""
_CPU_OFFLOAD, _TABLES = "--cpu-offload-gb", "--engram-config"
_MOST_OFFLOADED = 2.0**20
_ALLOW_DEPRECATED = "--allow-deprecated-quantization"
_OTHER_CLASS = ("--model-impl", "--hf-overrides", "--hf-config-path")
_KV_BYTES_FLAG = "--kv-cache-memory-bytes"


def request_of(
    spec: LLMServiceSpec,
    *,
    architecture: Architecture | None,
    tensors: Tensors | None,
    device: Device | None,
    vllm_version: str,
    cpu_kv_cache_gib: int,
    draft: Architecture | None = None,
) -> Request:
    """Everything in a spec that memory depends on.

    `device` is one GPU of a replica; on CPUs it is derived from `cpu_kv_cache_gib`. `draft` is the draft model's
    architecture, if known.
    """
    precision, parallelism, batching = spec.precision, spec.parallelism, spec.batching
    return Request(
        architecture=extended(architecture, spec.context_extension),
        device=cpu(cpu_kv_cache_gib) if spec.accelerator.type == "cpu" else device,
        tensors=tensors,
        dtype=precision.dtype,
        quantization=precision.quantization,
        weights=precision.weights,
        kv_cache_dtype=precision.kv_cache,
        tensor_parallel_size=parallelism.tensor_parallel_size,
        pipeline_parallel_size=parallelism.pipeline_parallel_size,
        data_parallel_size=parallelism.data_parallel_size,
        enable_expert_parallel=parallelism.expert_parallel,
        nodes=parallelism.node_count,
        gpu_memory_utilization=spec.accelerator.gpu_memory_utilization,
        kv_cache_memory_bytes=_kv_bytes(spec.runtime.extra_args),
        max_model_len=batching.max_model_len,
        max_num_seqs=batching.max_num_seqs,
        max_num_batched_tokens=batching.max_num_batched_tokens,
        chunked_prefill=batching.chunked_prefill,
        block_size=batching.block_size,
        attention_backend=None if spec.attention.backend == "auto" else spec.attention.backend,
        enforce_eager=spec.compilation.enforce_eager,
        cuda_graphs=_cuda_graphs(spec),
        allow_deprecated_quantization=is_on(_ALLOW_DEPRECATED, spec.runtime.extra_args, vllm_version),
        cpu_offload_gib=cpu_offload_gib(spec, vllm_version),
        kv_offloading_gib=kv_offloading_gib(spec),
        tables_on_gpu=_has_tables_on_gpu(spec, vllm_version),
        disabled_inputs=disabled_inputs(spec.runtime.extra_args, vllm_version),
        draft=_draft(spec, draft),
        adapters=_adapters(spec),
        own_class=not any(given(flag, spec.runtime.extra_args, vllm_version) for flag in _OTHER_CLASS),
        vllm_version=vllm_version,
        own_image=spec.runtime.image is not None,
    )


def cpu(kv_cache_gib: int) -> Device:
    """A CPU rank: vLLM reserves its KV cache beside the weights, in whole GiB."""
    return Device(CPU, float(kv_cache_gib), is_cpu=True)


def extended(architecture: Architecture | None, extension: ContextExtension | None) -> Architecture | None:
    """The architecture with the length of spec.contextExtension."""
    if architecture is None or extension is None:
        return architecture
    original = extension.original_max_position_embeddings or architecture.max_position_embeddings
    if original is None:
        return architecture
    return replace(architecture, max_position_embeddings=int(original * extension.factor), default_max_len=None)


def _cuda_graphs(spec: LLMServiceSpec) -> CudaGraphs | None:
    """CUDA graphs by level, mode and cudaGraphs (vllm/config/vllm.py, OPTIMIZATION_LEVEL_TO_CONFIG and
    _normalize_piecewise_cudagraph_mode): only vLLM's own compilation creates piecewise graphs."""
    compilation = spec.compilation
    requested, level = compilation.cuda_graphs, compilation.optimization_level
    mode = compilation.mode or ("none" if level == 0 else "vllmCompile")
    graphs = requested or _GRAPHS_OF_LEVEL.get(level)
    is_without = mode == "stockTorchCompile" or (mode != "vllmCompile" and graphs == "piecewise")
    return "none" if is_without or graphs == "none" else requested


def _draft(spec: LLMServiceSpec, architecture: Architecture | None) -> Draft | None:
    speculation = spec.speculative_decoding
    if speculation is None:
        return None
    ranks = speculation.draft_tensor_parallel_size
    return Draft(speculation.method, speculation.num_speculative_tokens, architecture, ranks)


def _adapters(spec: LLMServiceSpec) -> Adapters | None:
    """vLLM reserves memory for adapters at its start, even without any."""
    if not spec.is_lora_on:
        return None
    if spec.lora is None:
        return Adapters()
    default = Adapters()
    return Adapters(spec.lora.max_loras or default.max_loras, spec.lora.max_lora_rank or default.max_lora_rank)


def kv_offloading_gib(spec: LLMServiceSpec) -> float:
    """KV cache that vLLM itself keeps in the node's memory; LMCache uses a separate process."""
    batching = spec.batching
    if batching.kv_offloading_size is None or batching.kv_offloading_backend == "lmcache":
        return 0.0
    return gibibytes(batching.kv_offloading_size)


def limit_gib(spec: LLMServiceSpec) -> float | None:
    """The container's memory limit; the shared-memory volume, which holds offloaded KV cache, is added to it."""
    limit = (spec.runtime.resources.get("limits") or {}).get("memory")
    return None if limit is None else gibibytes(str(limit)) + kv_offloading_gib(spec)


def cpu_offload_gib(spec: LLMServiceSpec, vllm_version: str) -> float:
    """Weights of each GPU that --cpu-offload-gb leaves in the node's memory."""
    found = given(_CPU_OFFLOAD, spec.runtime.extra_args, vllm_version)
    try:
        stated = 0.0 if found is None else float(found[1])
    except ValueError:
        return 0.0
    return stated if 0 < stated < _MOST_OFFLOADED else 0.0


def _has_tables_on_gpu(spec: LLMServiceSpec, vllm_version: str) -> bool:
    """--engram-config {"cpu_offload": false}, or --engram-config.cpu_offload false."""
    found = given(_TABLES, spec.runtime.extra_args, vllm_version)
    if found is None:
        return False
    argument, value, _ = found
    text = re.sub(r"[\s\"'{}]", "", f"{argument.partition('=')[0].partition('.')[2]}:{value}".lower().replace("-", "_"))
    return "cpu_offload:false" in text


def _kv_bytes(arguments: Sequence[str]) -> int | None:
    """--kv-cache-memory-bytes, which has no field and overrides the budget; of duplicates the last, as in argparse."""
    found: str | None = None
    for index, argument in enumerate(arguments):
        name, equals, value = argument.replace("_", "-").partition("=")
        if name == _KV_BYTES_FLAG:
            found = value if equals else next(iter(arguments[index + 1 : index + 2]), None)
    return None if found is None else _bytes(found)


def _bytes(text: str) -> int | None:
    """As vLLM parses it: 8G is 2**30 x 8, 8g is 10**9 x 8; None if invalid."""
    unit = text[-1:]
    try:
        if unit in ("K", "M", "G", "T"):
            return max(0, int(amount(f"{text}i")))
        return max(0, int(amount(f"{text[:-1]}{unit.upper()}" if unit in ("m", "g", "t") else text)))
    except ValueError:
        return None
