"""`Request`, the planner's input, and `Plan`, its answer; memory.py computes one from the other.

Per-GPU values are of the fullest GPU (the last or the widest pipeline stage); GiB are 2**30 bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from llmservice_api.dtypes import DType, KVCache, Weights, float_dtype
from llmservice_vllm.facts import GPU_MEMORY_UTILIZATION as GPU_MEMORY_UTILIZATION
from llmservice_vllm.facts import MAX_LORA_RANK, MAX_LORAS

from llmservice_planner.model.architecture import Architecture, Tensors

if TYPE_CHECKING:  # the command line starts without the spec's models
    from llmservice_api.engine import CudaGraphs, SpeculativeMethod

GIB = 2**30
NOT_READ = "config.json"
"""In `Plan.missing`: the read of the model's configuration was stopped, and nothing is known."""


_UNIFIED = re.compile(r"(?<![a-z0-9])(gb10|dgx[\s-]spark|thor|orin)(?![a-z0-9])")
"""Names of GPUs with unified memory: GB10, Jetson Thor, Jetson Orin."""


class Fit(StrEnum):
    FITS = "Fits"
    TIGHT = "Tight"
    """The margin is within the error band: it may start or not."""
    DOES_NOT_FIT = "DoesNotFit"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the engine sees it, or a CPU rank."""

    name: str
    """A product label, or the user's name for it."""
    memory_gib: float
    """Total by the driver; on CPUs the KV cache space in whole GiB."""
    capability: tuple[int, int] | None = None
    is_cpu: bool = False
    is_amd: bool = False

    @property
    def is_unified(self) -> bool:
        """Whether the GPU uses the node's memory, which the system and other processes use too."""
        return _UNIFIED.search(self.name.lower()) is not None

    @property
    def accelerator(self) -> Literal["cpu", "amd", "nvidia"]:
        """The value of spec.accelerator.type."""
        return "cpu" if self.is_cpu else "amd" if self.is_amd else "nvidia"


@dataclass(frozen=True, slots=True)
class Draft:
    method: SpeculativeMethod
    """As in the spec."""
    num_speculative_tokens: int = 0
    architecture: Architecture | None = None
    """Of a draft model or head, if known."""
    tensor_parallel_size: int | None = None


@dataclass(frozen=True, slots=True)
class Adapters:
    max_loras: int = MAX_LORAS
    max_lora_rank: int = MAX_LORA_RANK


@dataclass(frozen=True, slots=True)
class Request:
    """Everything that memory depends on, with vLLM's names. None: not set, vLLM's default applies."""

    architecture: Architecture | None
    """None: the model is unknown except perhaps `parameters` or `weights_gib`."""
    device: Device | None
    """None: no GPU is known, and the verdict is Unknown."""
    tensors: Tensors | None = None
    dtype: DType = "auto"
    """As stated; `compute_dtype` is what vLLM gets."""
    quantization: str | None = None
    """vLLM's method, if stated in addition to (or against) the checkpoint's own."""
    weights: Weights = "auto"
    """spec.precision.weights."""
    kv_cache_dtype: KVCache = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    nodes: int = 1
    """Over which one replica is spread."""
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    max_model_len: int | Literal["auto"] | None = None
    """None: the model's own maximum."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    chunked_prefill: bool | None = None
    block_size: int | None = None
    attention_backend: str | None = None
    """None: vLLM chooses."""
    enforce_eager: bool = False
    cuda_graphs: CudaGraphs | None = None
    """From spec.compilation; None: vLLM's default, which records some."""
    own_image: bool = False
    """A user's image, for which the GPUs of its vLLM build are unknown."""
    allow_deprecated_quantization: bool = False
    """--allow-deprecated-quantization is among extraArgs."""
    cpu_offload_gib: float = 0.0
    """--cpu-offload-gb: weights of each GPU that stay in the node's memory."""
    kv_offloading_gib: float = 0.0
    """KV cache in the node's memory, of all GPUs."""
    tables_on_gpu: bool = False
    """N-gram tables are not offloaded (--engram-config)."""
    disabled_inputs: frozenset[str] = frozenset()
    """Input kinds (image, video) that are switched off."""
    draft: Draft | None = None
    adapters: Adapters | None = None
    own_class: bool = True
    """vLLM's class follows from config.json; False where extraArgs name another one."""
    parameters: int | None = None
    """Stated by the user; overrides counted ones."""
    weights_gib: float | None = None
    """Of the whole model, stated by the user; overrides everything."""
    vllm_version: str | None = None
    """None: the operator's default version."""

    @property
    def compute_dtype(self) -> DType:
        return float_dtype(self.dtype, self.weights)

    @property
    def gpus(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


@dataclass(frozen=True, slots=True)
class Line:
    """One step of the arithmetic."""

    name: str
    """weights, non-torch, activation, graphs, KV cache, ..."""
    gib: float | None
    formula: str
    """With numbers inserted."""
    source: str = ""
    """The constants and their sources."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change with which it would fit, with the new plan's values."""

    change: str
    """In words: `set spec.batching.maxModelLen to 20480`."""
    patch: tuple[tuple[str, object], ...]
    """Fields of the spec (dotted paths under spec) with new values; empty for another GPU."""
    gpu: str | None
    """Another product, if that is the change."""
    verdict: Fit
    max_model_len: int | None
    kv_cache_tokens: int | None

    @classmethod
    def of(cls, change: str, patch: tuple[tuple[str, object], ...], plan: Plan, gpu: str | None = None) -> Remedy:
        return cls(change, patch, gpu, plan.verdict, plan.max_model_len, plan.kv_cache_tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. None: unknown (see `missing`)."""

    verdict: Fit
    reason: str
    """One or two sentences with the decisive figures."""
    missing: tuple[str, ...] = ()
    """Facts that an Unknown verdict needs, named as in config.json or the spec."""
    gpu: str | None = None
    gpus: int = 1
    """GPUs of one replica."""
    memory_gib: float | None = None
    budget_gib: float | None = None
    """gpu_memory_utilization x memory."""
    weights_gib: float | None = None
    non_torch_gib: float | None = None
    activation_gib: float | None = None
    graph_gib: float | None = None
    kv_cache_gib: float | None = None
    """Left for the KV cache; negative where nothing is."""
    kv_bytes_per_token: float | None = None
    """Per GPU, over all its layers."""
    kv_cache_tokens: int | None = None
    """As vLLM prints it, of one engine (all its GPUs hold the same tokens)."""
    block_size: int | None = None
    num_blocks: int | None = None
    kv_groups: int | None = None
    """Groups of layers with blocks of their own for the same tokens: several with windows or states."""
    max_model_len: int | None = None
    """The largest that surely fits: below the error band, and within the model's limit."""
    requested_max_model_len: int | None = None
    max_concurrency: float | None = None
    """Requests of the requested length at once."""
    recommended_max_num_seqs: int | None = None
    error_band: float | None = None
    """Relative error of kv_cache_tokens: nine of ten starts lie within."""
    error_band_gib: float | None = None
    """The same in GiB per GPU."""
    margin_gib: float | None = None
    """KV cache left beside one request of the requested length; negative where it is too little."""
    weights_total_gib: float | None = None
    """Over all GPUs of one replica."""
    kv_cache_total_gib: float | None = None
    host_memory_gib: float | None = None
    """Memory of the node that vLLM pins for one replica beside its processes; None: none."""
    naive_attention_gib: float | None = None
    """Memory of attention with all scores for one sequence of the requested length, per GPU."""
    flash_attention_gib: float | None = None
    explanation: tuple[Line, ...] = ()
    remedies: tuple[Remedy, ...] = ()

    @property
    def kv_cache_text(self) -> str:
        """The tokens that vLLM will print, and its number of blocks.

        With several groups of layers, the tokens are of requests of full length, each of which takes blocks of every
        group, at most a window's: then tokens are not a multiple of blocks.
        """
        tokens, blocks = f"{self.kv_cache_tokens or 0:,} tokens", f"{self.num_blocks or 0:,} blocks"
        if (self.kv_groups or 1) == 1:
            return f"{tokens} in {blocks} of {self.block_size}"
        requests = f"{self.max_concurrency or 0:.2f} requests of {self.requested_max_model_len or 0:,}"
        return f"{tokens} ({requests}); {blocks} that {self.kv_groups} groups of layers share"
