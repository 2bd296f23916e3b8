"""Regular expressions and globs of a repository: the same matches as Python's, in time that no pattern decides."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from fnmatch import translate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import InvalidModel
from llmservice_planner.model.module_forms import LONGEST, UnreadablePattern, glob, regular_expression

from tests.unit.planner_models import CONFIGS

NAMES = ["model.layers.0.self_attn.q_proj", "model.layers.12.mlp.experts.down_proj", "lm_head"]
NAMES += ["model.layers.3.block_sparse_moe.gate"]
PATTERNS = [r".*lm_head", r".*mlp.gate$", r"model.layers.*.self_attn.*", r"^model\.layers\.([3-9]|1\d)\.mlp\..*"]
PATTERNS += [r"model\.layers\.(?:0|12)\.", r".*\.(q|k|v|o)_proj", r"(?i)LM_HEAD", r"\S+", r"[a-z.]*\d{2}.*"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_usual_patterns_match_as_in_python(pattern: str) -> None:
    matches = regular_expression(pattern)
    assert [matches(name) for name in NAMES] == [re.match(pattern, name) is not None for name in NAMES]


@given(pattern=some.text("ab.*?[]!-1", max_size=8), name=some.text("ab.1-", max_size=8))
def test_globs_match_as_in_python(pattern: str, name: str) -> None:
    try:
        found = glob(pattern)(name)
    except UnreadablePattern:
        return
    assert found == (re.match(translate(pattern + "*"), name) is not None)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"model\.(?!layers)", "perl operator"),
        (r"(?<=x)y", "perl operator"),
        (r"(a)\1", "escape"),
        ("(", "missing"),
        ("a{1001}", "repetition"),
        (r"(\pL{1,100}){10}", "too large"),
        ("x" * (LONGEST + 1), "characters"),
        ("\ud800", "characters"),
    ],
)
def test_unreadable_patterns_have_a_reason(pattern: str, why: str) -> None:
    with pytest.raises(UnreadablePattern, match=why):
        regular_expression(pattern)


def quantized(*ignore: str) -> dict[str, Any]:
    section = {"quant_method": "compressed-tensors", "ignore": list(ignore)}
    return CONFIGS["llama-3.1-8b"] | {"num_hidden_layers": 64, "quantization_config": section}


def seconds_to_read(*ignore: str) -> float:
    """The least of three: other work on the machine counts little."""
    found = []
    for _ in range(3):
        before = time.process_time()
        config_json.read(quantized(*ignore))
        found.append(time.process_time() - before)
    return min(found)


COSTLY = {
    "alternatives": "re:" + "(.|.)" * 200 + "!",
    "nested quantifiers": "re:(a+)+$",
    "quantifiers in a row": "re:" + ".*" * 300 + "!",
    "equal words": "re:(" + "|".join(["model"] * 150) + ")*!",
    "stars": "*a" * 300 + "!",
}


@pytest.mark.parametrize("pattern", COSTLY.values(), ids=COSTLY)
def test_no_pattern_takes_much_longer_than_a_usual_one(pattern: str) -> None:
    usual = seconds_to_read(r"re:.*layers\.(1|2)\.mlp\.gate_proj$")
    assert seconds_to_read(pattern) < 50 * usual


class Counted:
    """A compiled pattern that counts how often any is matched."""

    tries = 0

    def __init__(self, compiled: Any) -> None:
        self.compiled, self.programsize = compiled, compiled.programsize

    def match(self, name: str) -> Any:
        Counted.tries += 1
        return self.compiled.match(name)


MANY: dict[str, tuple[list[str], float | None]] = {
    # Patterns for the modules of 61 layers; how many matches reading them takes at most, None: it is refused.
    "globs of each layer": (
        [f"model.layers.{n}.{part}*" for n in range(61) for part in ("self_attn", "mlp.gate")],
        8e3,
    ),
    "without where they begin": ([f"*layers.{n}.self_attn*" for n in range(61)], 8e3),
    "expressions of each layer": ([f"re:.*layers\\.{n}\\.mlp\\..*" for n in range(61)], 2e4),
    "few of all layers": ([r"re:.*self_attn\..*\d", "re:.*lm_head", r"re:.*mlp\.(gate|up)_proj$"], 2e4),
    "as many as there may be, each with a number": ([f"re:.*layers\\.[0-9]+\\.attn.*{n}" for n in range(500)], 5e4),
    "globs that match nothing": ([f"*layers.{n}.*a*a*a*a*b" for n in range(500)], 1e5),
    "as many that could be anything": ([f"re:.*[a-z]{{{n}}}.*[0-9].*[x-z]$" for n in range(1, 500)], None),
    "each large": ([f"re:(?:[a-z]|[0-9]|.){{1,{n}}}y" for n in range(500, 900)], None),
}


@pytest.mark.parametrize(("patterns", "most"), MANY.values(), ids=MANY)
def test_many_patterns_are_tried_where_they_may_match(
    patterns: list[str], most: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import re2

    compiled = re2.compile
    monkeypatch.setattr(re2, "compile", lambda *given: Counted(compiled(*given)))
    Counted.tries = 0
    section = {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": patterns}
    with contextlib.nullcontext() if most else pytest.raises(InvalidModel, match="patterns than can be tried"):
        config_json.read(CONFIGS["deepseek-r1"] | {"quantization_config": section})
    assert Counted.tries <= (most or 2**18)


LITERALS = [
    r"a.b",
    r"ab*c",
    r"a+b",
    r"x{2}y",
    r"\.a\-b",
    r"[]a]b",
    r"[^]]b[x\]]c",
    r"a|b",
    r"(a)b",
    r"\x41b",
    r"^ab$",
    r"[[:alpha:]]b",
]


@given(some.sampled_from(LITERALS), some.text("abcxyA.-]", max_size=6))
def test_what_a_pattern_must_have_is_no_more_than_it_has(pattern: str, name: str) -> None:
    import re2

    assert regular_expression(pattern)(name) == (re2.match(pattern, name) is not None)


def test_a_pattern_that_is_not_read_is_named() -> None:
    with pytest.raises(InvalidModel, match=r"not read, 're:model\\\\.\(\?!layers\)'.*perl operator"):
        config_json.read(quantized(r"re:model\.(?!layers)"))


def test_re2_is_loaded_for_patterns_only() -> None:
    program = (
        "import sys; from llmservice_planner.model import config_json; import llmservice_cli.app; "
        "print('re2' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "False"
