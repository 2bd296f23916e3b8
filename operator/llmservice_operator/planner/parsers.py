"""Parsers of tool calls and of thinking, by name: a wrong one would end vLLM after its GPUs are taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from llmservice_runtime.flags import Match, flag_table
from llmservice_runtime.flags.table import series

from llmservice_operator.api.errors import Problem
from llmservice_operator.api.spec import LLMServiceSpec

_NAMES = json.loads(Path(__file__).with_name("parsers.json").read_bytes())
VERSION: str = _NAMES["version"]
"""The names are this version's (scripts/add_vllm_version.py writes them); names for other versions are not checked."""
TOOL_CALL_PARSERS = tuple[str, ...](_NAMES["toolCall"])
REASONING_PARSERS = tuple[str, ...](_NAMES["reasoning"])


def problems(spec: LLMServiceSpec, vllm_version: str) -> Iterator[Problem]:
    """Names that this vLLM does not have; a plugin in extraArgs may bring any."""
    if series(vllm_version) != series(VERSION):
        return
    generation = spec.generation
    for field, name, known, plugin in (
        ("toolCallParser", generation.tool_call_parser, TOOL_CALL_PARSERS, "--tool-parser-plugin"),
        ("reasoningParser", generation.reasoning_parser, REASONING_PARSERS, "--reasoning-parser-plugin"),
    ):
        if name is not None and name not in known and not _is_given(spec, plugin, vllm_version):
            near = get_close_matches(name, known, n=3) or known
            yield Problem(
                f"spec.generation.{field}",
                f"vLLM {vllm_version} has no such parser: {name}.",
                f"Use one of {', '.join(near)}, or bring your own with {plugin} in spec.runtime.extraArgs.",
            )


def _is_given(spec: LLMServiceSpec, flag: str, version: str) -> bool:
    table = flag_table(version)
    found = (table.resolve(argument) for argument in spec.runtime.extra_args)
    return any(isinstance(match, Match) and match.flag.name == flag for match in found)
