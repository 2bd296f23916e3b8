"""Everything that decides vLLM's command line, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from llmservice_runtime.contract import HTTP_PORT

# What `weights` adds where no quantization method is named. `fp8` reads a checkpoint that is fp8 already, and converts
# one that is not quantized (vLLM then takes it for fp8_per_tensor, and says so in a warning). There is no method
# that makes int4 weights at load, and the one for int8 leaves all but MoE layers as they are: with `int8` and `int4`
# the checkpoint must be quantized already, and vLLM finds its method by itself.
LOAD_METHODS: Mapping[str, str] = MappingProxyType({"fp8": "fp8"})
FLOAT_WEIGHTS = frozenset({"float32", "bfloat16", "float16"})


@dataclass(frozen=True)
class Speculation:
    """Who guesses tokens, and how many; `model` is a path, None where the method needs none."""

    method: str
    num_speculative_tokens: int
    model: str | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    draft_tensor_parallel_size: int | None = None


@dataclass(frozen=True)
class LoRA:
    """What is kept free for adapters."""

    max_loras: int | None = None
    max_lora_rank: int | None = None
    max_cpu_loras: int | None = None


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling parameters of requests that do not say otherwise."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class EngineOptions:
    """Everything that decides vLLM's command line. None means: not said, vLLM decides."""

    model: str
    served_model_names: tuple[str, ...] = ()
    runner: str = "auto"
    convert: str = "auto"
    chat_template: str | None = None
    trust_remote_code: bool = False
    weights: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel: bool = False
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | str | None = None
    max_num_queued_requests: int | None = None
    max_num_queued_tokens: int | None = None
    chunked_prefill: bool | None = None
    long_prefill_token_threshold: int | None = None
    prefix_caching: bool | None = None
    prefix_caching_hash_algo: str | None = None
    scheduling_policy: str | None = None
    block_size: int | None = None
    kv_offloading_gib: float | None = None
    kv_offloading_backend: str | None = None
    attention_backend: str = "auto"
    enforce_eager: bool = False
    compilation_mode: str | None = None
    cuda_graphs: str | None = None
    optimization_level: int | None = None
    speculation: Speculation | None = None
    lora: LoRA | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    seed: int | None = None
    generation_defaults: GenerationDefaults = GenerationDefaults()
    allowed_media_domains: tuple[str, ...] | None = None
    """Hosts that media are fetched from; empty: none, None: any."""
    sleep_mode: bool = False
    gpu_memory_utilization: float | None = None
    host: str = "0.0.0.0"
    port: int = HTTP_PORT
    extra_args: tuple[str, ...] = ()


def compute_dtype(options: EngineOptions) -> str:
    """vLLM has one float type for weights and arithmetic: `dtype`, else the float type of the weights."""
    if options.dtype == "auto" and options.weights in FLOAT_WEIGHTS:
        return options.weights
    return options.dtype


def quantization_method(options: EngineOptions) -> str | None:
    """The method that was named, else the one that converts to the asked weights at load."""
    return options.quantization or LOAD_METHODS.get(options.weights)
