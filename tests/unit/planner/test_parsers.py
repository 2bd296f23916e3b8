"""A parser that vLLM does not have is found before any pod."""

from __future__ import annotations

import pytest
from llmservice_api.service import parse_spec
from llmservice_planner.versions import problems
from llmservice_vllm.versions import default_version, series

VERSION = default_version()
PATCHED = f"{series(VERSION)}.9"


@pytest.mark.parametrize(
    ("generation", "args", "version", "field", "words"),
    [
        pytest.param({"toolCallParser": "hermes", "reasoningParser": "qwen3"}, [], VERSION, None, "", id="known"),
        pytest.param({"toolCallParser": "hermez"}, [], PATCHED, "toolCallParser", "hermes", id="near one"),
        pytest.param({"toolCallParser": "qwen3"}, [], VERSION, "toolCallParser", "qwen3_json", id="of the other kind"),
        pytest.param({"reasoningParser": "zzz"}, [], VERSION, "reasoningParser", "deepseek_r1", id="nothing near"),
        pytest.param({"reasoningParser": "zzz"}, [], "0.31.0", "reasoningParser", "deepseek_r1", id="another version"),
        pytest.param({"toolCallParser": "zzz"}, ["--tool-parser-plugin=/a.py"], VERSION, None, "", id="a plugin"),
        pytest.param(
            {"reasoningParser": "zzz"},
            ["--tool-parser-plugin", "/a"],
            VERSION,
            "reasoningParser",
            "--reasoning-parser-plugin",
            id="another plugin",
        ),
    ],
)
def test_parsers(generation: dict[str, str], args: list[str], version: str, field: str | None, words: str) -> None:
    spec = parse_spec({"model": {"uri": "hf://a/b"}, "generation": generation, "runtime": {"extraArgs": args}})
    found = list(problems(spec, version, ()))
    assert [problem.field for problem in found] == ([] if field is None else [f"spec.generation.{field}"])
    assert all(words in problem.remedy for problem in found)
