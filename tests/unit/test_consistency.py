"""docs/architecture.md, section Consistency: each rule names a test that exists, and the picture files that do."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs/architecture.md").read_text().partition("## Consistency")[2].partition("\n## ")[0]


def test_each_rule_names_a_test_that_exists() -> None:
    rules = re.findall(r"^\| \d+ \|.*$", SECTION, re.MULTILINE)
    assert len(rules) == 11
    for rule in rules:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", rule)
        assert named, rule
        for file, test in named:
            tree = ast.parse((ROOT / "tests/unit" / file).read_text())
            found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert test in found, f"{file} has no {test}"


def test_the_picture_names_files_that_exist() -> None:
    named = re.findall(r"[\w/]+\.py(?=\"\])", SECTION)
    assert len(named) >= 5
    for path in named:
        assert (ROOT / "operator/llmservice_operator" / path).is_file(), path
