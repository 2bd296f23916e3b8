"""vLLM's flags, by version."""

from __future__ import annotations

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
    "Ambiguous",
    "Flag",
    "FlagTable",
    "Match",
    "Resolution",
    "Unknown",
    "UnknownVersion",
    "flag_table",
    "known_versions",
    "newest_version",
]
