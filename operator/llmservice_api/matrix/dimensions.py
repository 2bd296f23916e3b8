"""Dimensions of the matrix, and the type of its entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import get_args

from llmservice_api.dtypes import DType, KVCache, Quantization, Weights
from llmservice_api.engine import (
    AttentionBackend,
    CompilationMode,
    CudaGraphs,
    SpeculativeMethod,
)
from llmservice_api.reasons import Reason

CAPABILITIES = (
    *("6.0", "6.1", "7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0"),
    *("10.0", "10.3", "11.0", "12.0", "12.1"),
)
"""NVIDIA's, oldest first."""
ON, OFF = "on", "off"
ONE, MANY = "1", "above 1"
GIVEN, ABSENT = "given", "absent"


@dataclass(frozen=True, slots=True)
class Dimension:
    """A field, or a property of the model, and its possible values."""

    field: str
    values: tuple[str, ...]
    label: str = ""
    """What the values stand for, if not the value of the field."""


DIMENSIONS: Mapping[str, Dimension] = MappingProxyType(
    {
        "accelerator": Dimension("spec.accelerator.type", ("nvidia", "amd", "cpu")),
        "capability": Dimension("spec.accelerator.products", CAPABILITIES, "compute capability of"),
        "weights": Dimension("spec.precision.weights", get_args(Weights)),
        "method": Dimension("spec.precision.quantization", get_args(Quantization)),
        "dtype": Dimension("spec.precision.dtype", get_args(DType)[1:]),
        "kvCache": Dimension("spec.precision.kvCache", get_args(KVCache)),
        "backend": Dimension("spec.attention.backend", get_args(AttentionBackend)),
        "blockSize": Dimension("spec.batching.blockSize", ("1", "8", "16", "32", "64", "128", "256")),
        "mla": Dimension("spec.model.uri", ("yes", "no"), "latent attention (MLA) in"),
        "positions": Dimension("spec.model.architecture.positions", ("rope", "alibi")),
        "experts": Dimension("spec.model.uri", ("dense", "mixture"), "experts in"),
        "runner": Dimension("spec.model.runner", ("generate", "pooling")),
        "convert": Dimension("spec.model.convert", ("auto", "classify", "embed", "none")),
        "toolCallParser": Dimension("spec.generation.toolCallParser", (GIVEN, ABSENT)),
        "reasoningParser": Dimension("spec.generation.reasoningParser", (GIVEN, ABSENT)),
        "generationDefaults": Dimension("spec.generation.defaults", (GIVEN, ABSENT)),
        "tensorParallel": Dimension("spec.parallelism.tensorParallelSize", (ONE, MANY)),
        "pipelineParallel": Dimension("spec.parallelism.pipelineParallelSize", (ONE, MANY)),
        "dataParallel": Dimension("spec.parallelism.dataParallelSize", (ONE, MANY)),
        "expertParallel": Dimension("spec.parallelism.expertParallel", (ON, OFF)),
        "speculation": Dimension("spec.speculativeDecoding.method", ("none", *get_args(SpeculativeMethod))),
        "draftModel": Dimension("spec.speculativeDecoding.model", (GIVEN, ABSENT)),
        "draftParallel": Dimension(
            "spec.speculativeDecoding.draftTensorParallelSize", (ABSENT, "1", "tensorParallelSize", "another")
        ),
        "promptLookup": Dimension(
            "spec.speculativeDecoding.promptLookupMin", ("absent", "min to max", "min above max")
        ),
        "draftTokens": Dimension("spec.batching.maxNumBatchedTokens", ("enough", "too few for all guesses")),
        "lora": Dimension("spec.lora", (ON, OFF)),
        "cpuLoras": Dimension("spec.lora.maxCpuLoras", ("enough", "fewer than maxLoras")),
        "prefixCaching": Dimension("spec.batching.prefixCaching", (ON, OFF)),
        "hashAlgorithm": Dimension("spec.batching.prefixCachingHashAlgo", (GIVEN, ABSENT)),
        "chunkedPrefill": Dimension("spec.batching.chunkedPrefill", (ON, OFF)),
        "sequenceTokens": Dimension("spec.batching.maxNumBatchedTokens", ("enough", "fewer than maxNumSeqs")),
        "promptTokens": Dimension("spec.batching.maxNumBatchedTokens", ("enough", "fewer than maxModelLen")),
        "longPrefill": Dimension(
            "spec.batching.longPrefillTokenThreshold", (ABSENT, GIVEN, "within", "above maxModelLen")
        ),
        "kvOffloading": Dimension("spec.batching.kvOffloadingSize", (ON, OFF)),
        "offloadingBackend": Dimension("spec.batching.kvOffloadingBackend", (GIVEN, ABSENT)),
        "sleepMode": Dimension("spec.runtime.sleepMode", (ON, OFF)),
        "contextExtension": Dimension("spec.contextExtension", ("none", "yarn")),
        "contextLength": Dimension("spec.batching.maxModelLen", ("within", "above the model's", "above the extended")),
        "enforceEager": Dimension("spec.compilation.enforceEager", (ON, OFF)),
        "optimizationLevel": Dimension("spec.compilation.optimizationLevel", ("0", "1", "2", "3")),
        "compilation": Dimension("spec.compilation.mode", get_args(CompilationMode)),
        "cudaGraphs": Dimension("spec.compilation.cudaGraphs", get_args(CudaGraphs)),
    }
)  # fmt: skip


class Check(StrEnum):
    """How a test compares an entry with the installed vLLM, without GPUs."""

    ENGINE = "vLLM refuses the arguments"
    IGNORED = "vLLM takes the arguments and leaves what they ask for out of its configuration"
    CALL = "vLLM's own list or function says so"
    NONE = "not checkable on a CPU"


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """An incompatible combination: each dimension of `when` has one of its values."""

    when: Mapping[str, frozenset[str]]
    blame: str
    """The dimension whose field the message names."""
    why: str
    remedy: str
    source: str
    fix: Mapping[str, str] = field(default_factory=dict)
    """Values that the remedy sets; empty: the remedy removes the blamed field from the spec."""
    check: Check = Check.NONE
    reason: Reason = Reason.UNSUPPORTED_COMBINATION

    @property
    def name(self) -> str:
        return " + ".join(f"{dimension}={_some(self.when[dimension])}" for dimension in self.when)


def when(**values: str | Iterable[str]) -> Mapping[str, frozenset[str]]:
    """A condition for `when`; KeyError for an unknown dimension, ValueError for an unknown value."""
    made = {name: frozenset({some} if isinstance(some, str) else some) for name, some in values.items()}
    for name, some in made.items():
        unknown = some - set(DIMENSIONS[name].values)
        if unknown or not some:
            raise ValueError(f"{name} has no value {sorted(unknown)}")
    return MappingProxyType(made)


def others(dimension: str, *allowed: str) -> tuple[str, ...]:
    """All values of a dimension except these."""
    return tuple(value for value in DIMENSIONS[dimension].values if value not in allowed)


def below(capability: str) -> tuple[str, ...]:
    """All older compute capabilities."""
    return CAPABILITIES[: CAPABILITIES.index(capability)]


def _some(values: frozenset[str]) -> str:
    shown = sorted(values)
    return "|".join(shown) if len(shown) <= 3 else f"{shown[0]}|...|{shown[-1]} ({len(shown)})"
