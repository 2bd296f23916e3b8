"""Parsers of tool calls and of thinking, by name: a wrong one would end vLLM after its GPUs are taken."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from llmservice_runtime.flag_table import series
from llmservice_runtime.flags import Match, flag_table

from llmservice_operator.api.errors import Problem
from llmservice_operator.api.spec import LLMServiceSpec

SERIES = "0.32"
"""The lists are this version's; other versions are left to say it themselves."""
TOOL_CALL_PARSERS = (
    *("apertus", "cohere_command3", "cohere_command4", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4"),
    *("deepseek_v41", "dots", "ernie45", "functiongemma", "gemma4", "gigachat3", "glm45", "glm47", "granite"),
    *("granite-20b-fc", "granite4", "hermes", "hf", "hunyuan_a13b", "hy_v3", "hy_v4", "inkling", "internlm", "jamba"),
    *("k2_horizon", "kimi_k2", "kimi_k3", "lfm2", "ling3", "llama3_json", "llama4_json", "llama4_pythonic", "longcat"),
    *("mimo", "minicpm5", "minimax_m2", "minimax_m3", "mistral", "muse_glimmer", "olmo3", "openai", "phi4_mini_json"),
    *("plamo3", "poolside_v1", "pythonic", "qwen3_coder", "qwen3_json", "qwen3_xml", "seed_oss", "step3", "step3p5"),
    "xlam",
)
REASONING_PARSERS = (
    *("cohere_command3", "cohere_command4", "deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "ernie45"),
    *("gemma4", "glm45", "glm47", "granite", "granite_thinking_parser", "hf", "holo2", "hunyuan_a13b", "hy_v3"),
    *("hy_v4", "inkling", "k2_horizon", "kimi_k2", "kimi_k3", "ling3", "mimo", "minicpmv", "minimax_m2"),
    *("minimax_m2_append_think", "minimax_m3", "mistral", "muse_glimmer", "nemotron_v3", "olmo3", "openai_gptoss"),
    *("plamo3", "poolside_v1", "qwen3", "seed_oss", "step3", "step3p5"),
)


def problems(spec: LLMServiceSpec, vllm_version: str) -> Iterator[Problem]:
    """Names that this vLLM does not have; a plugin in extraArgs may bring any."""
    if series(vllm_version) != SERIES:
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
