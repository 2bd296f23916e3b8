"""spec.precision: of weights, dtype and quantization set one; where more are set, they must agree."""

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from llmservice_api import constants
from llmservice_api.dtypes import DType, Quantization, Weights
from llmservice_api.spec import LLMServiceSpec
from llmservice_cli.admission.check import problems
from llmservice_planner import checks

from tests.unit.operator.test_flags import arguments

PAGE = Path(__file__).parents[3] / "docs/serving/precision.md"
COMBINATIONS = [
    {"weights": weights, "dtype": dtype} | ({} if method is None else {"quantization": method})
    for weights, dtype, method in product(get_args(Weights), get_args(DType), (None, *get_args(Quantization)))
]


def rows_under(heading: str) -> list[list[str]]:
    """The cells of the rows of the table whose first column this is."""
    table = PAGE.read_text(encoding="utf-8").split(f"| {heading} |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def typed(cell: str) -> dict[str, Any]:
    """What the code of a cell sets below spec.precision."""
    return {key: value for code in re.findall(r"`(\w+: \w+)`", cell) for key, value in yaml.safe_load(code).items()}


def refused(precision: Mapping[str, str]) -> set[str]:
    """The fields that the API refuses, by its own rules."""
    spec = {"model": {"uri": "hf://a/b"}, "precision": precision}
    whole: dict[str, Any] = {"apiVersion": constants.API_VERSION, "kind": constants.KIND, "spec": spec}
    return {problem.field for problem in problems(whole | {"metadata": {"name": "a"}})}


@pytest.mark.parametrize("row", rows_under("You want"), ids=lambda row: row[0])
def test_what_the_page_says_to_type_becomes_these_flags(row: list[str]) -> None:
    precision = typed(row[1])
    flags = arguments({"precision": precision})
    wanted = [word for code in re.findall(r"`(--.*?)`", row[2]) for word in code.split()]
    assert (bool(precision), refused(precision)) == (row[1] != "nothing", set())
    assert [word for word in flags if word in wanted] == wanted
    assert {"--dtype", "--quantization"}.intersection(flags) == {word for word in wanted if word.startswith("--")}


@pytest.mark.parametrize("row", rows_under("Together"), ids=lambda row: row[0])
def test_what_the_page_says_is_refused_is_refused(row: list[str]) -> None:
    precision = typed(row[0])
    assert len(precision) == 2
    assert refused(precision) == {f"spec.precision.{row[1].strip('`')}"}
    assert [refused({key: value}) for key, value in precision.items()] == [set(), set()]


def test_the_api_and_the_operator_refuse_the_same() -> None:
    """The operator's own rules hold where a manifest did not pass through this CRD; both name one of the three."""
    fields = {f"spec.precision.{name}" for name in ("weights", "dtype", "quantization")}
    disagreeing, seen = [], set()
    for precision in COMBINATIONS:
        spec = LLMServiceSpec.model_validate({"model": {"uri": "hf://a/b"}, "precision": precision})
        by_the_operator = {problem.field for problem in checks.matrix_problems(spec)}
        by_the_api = refused(precision)
        seen |= by_the_operator | by_the_api
        if bool(by_the_api) != bool(by_the_operator):
            disagreeing.append(precision)
    assert disagreeing == []
    assert seen <= fields
