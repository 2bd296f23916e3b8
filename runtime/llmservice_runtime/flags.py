"""vLLM's flags: what the operator renders, and what users may add. The public face of three modules."""

from __future__ import annotations

from llmservice_runtime.engine_flags import (
    FLOAT_WEIGHTS,
    LOAD_METHODS,
    OPERATOR_OWNED,
    TYPED,
    EngineOptions,
    compute_dtype,
    quantization_method,
    render,
)
from llmservice_runtime.flag_checks import FlagProblem, check_extra_args
from llmservice_runtime.flag_table import (
    Ambiguous,
    Flag,
    FlagTable,
    Match,
    Resolution,
    Unknown,
    UnknownVersion,
    flag_table,
    known_versions,
)

__all__ = [
    "FLOAT_WEIGHTS",
    "LOAD_METHODS",
    "OPERATOR_OWNED",
    "TYPED",
    "Ambiguous",
    "EngineOptions",
    "Flag",
    "FlagProblem",
    "FlagTable",
    "Match",
    "Resolution",
    "Unknown",
    "UnknownVersion",
    "check_extra_args",
    "compute_dtype",
    "flag_table",
    "known_versions",
    "quantization_method",
    "render",
]
