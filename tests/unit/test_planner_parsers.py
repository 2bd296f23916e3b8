"""A parser that vLLM does not have is found before any pod."""

from __future__ import annotations

import pytest
from llmservice_operator.api.service import parse_spec
from llmservice_operator.planner.parsers import problems


@pytest.mark.parametrize(
    ("generation", "args", "version", "field", "words"),
    [
        pytest.param({"toolCallParser": "hermes", "reasoningParser": "qwen3"}, [], "0.32.0", None, "", id="known"),
        pytest.param({"toolCallParser": "hermez"}, [], "0.32.1", "toolCallParser", "hermes", id="near one"),
        pytest.param({"toolCallParser": "qwen3"}, [], "0.32.0", "toolCallParser", "qwen3_json", id="of the other kind"),
        pytest.param({"reasoningParser": "zzz"}, [], "0.32.0", "reasoningParser", "deepseek_r1", id="nothing near"),
        pytest.param({"reasoningParser": "zzz"}, [], "0.31.0", None, "", id="another version"),
        pytest.param({"toolCallParser": "zzz"}, ["--tool-parser-plugin=/a.py"], "0.32.0", None, "", id="a plugin"),
        pytest.param(
            {"reasoningParser": "zzz"},
            ["--tool-parser-plugin", "/a"],
            "0.32.0",
            "reasoningParser",
            "--reasoning-parser-plugin",
            id="another plugin",
        ),
    ],
)
def test_parsers(generation: dict[str, str], args: list[str], version: str, field: str | None, words: str) -> None:
    spec = parse_spec({"model": {"uri": "hf://a/b"}, "generation": generation, "runtime": {"extraArgs": args}})
    found = list(problems(spec, version))
    assert [problem.field for problem in found] == ([] if field is None else [f"spec.generation.{field}"])
    assert all(words in problem.remedy for problem in found)
