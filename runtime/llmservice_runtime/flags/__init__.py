"""vLLM's flags: what the operator renders, and what users may add. The public face of four modules."""

from __future__ import annotations

from llmservice_runtime.flags.checks import FlagProblem, check_extra_args
from llmservice_runtime.flags.engine_options import (
    FLOAT_WEIGHTS,
    LOAD_METHODS,
    EngineOptions,
    GenerationDefaults,
    LoRA,
    Speculation,
    compute_dtype,
    quantization_method,
)
from llmservice_runtime.flags.render import KEYED, OPERATOR_OWNED, TYPED, render
from llmservice_runtime.flags.table import (
    Ambiguous,
    Flag,
    FlagTable,
    Match,
    Resolution,
    Unknown,
    UnknownVersion,
    flag_table,
    known_versions,
    newest_version,
)

__all__ = [
    "FLOAT_WEIGHTS",
    "KEYED",
    "LOAD_METHODS",
    "OPERATOR_OWNED",
    "TYPED",
    "Ambiguous",
    "EngineOptions",
    "Flag",
    "FlagProblem",
    "FlagTable",
    "GenerationDefaults",
    "LoRA",
    "Match",
    "Resolution",
    "Speculation",
    "Unknown",
    "UnknownVersion",
    "check_extra_args",
    "compute_dtype",
    "flag_table",
    "known_versions",
    "newest_version",
    "quantization_method",
    "render",
]
