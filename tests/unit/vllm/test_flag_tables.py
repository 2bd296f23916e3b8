"""One table of flags for each series of vLLM: which one applies, and what every one of them must hold."""

from __future__ import annotations

import pytest
from llmservice_api.flags import FLAGS, OPERATOR_OWNED
from llmservice_planner.versions import check_extra_args
from llmservice_vllm.versions import default_version, flag_table, known_versions, order, stated_version

from tests.support.flag_forms import forms, recorded, rendered
from tests.unit.operator.test_flags import arguments


def test_versions_are_newest_first() -> None:
    assert list(known_versions()) == sorted(known_versions(), key=order, reverse=True)
    assert flag_table(default_version()).version == default_version()


@pytest.mark.parametrize("series", known_versions())
def test_a_table_is_of_its_series(series: str) -> None:
    assert flag_table(f"{series}.9").version.startswith(f"{series}.")


@pytest.mark.parametrize("series", known_versions())
def test_what_is_always_rendered_is_a_flag_of_every_series(series: str) -> None:
    table = flag_table(series).by_spelling
    assert [token for token in arguments({}) if token.startswith("--") and token not in table] == []


def test_each_flag_of_a_field_has_forms() -> None:
    """Those of operator/test_flags_vllm.py and vllm/test_vllm_version.py, where vLLM itself is asked."""
    having = {token for fragment in forms(default_version()) for token in fragment}
    assert {flag.name.partition(".")[0] for flag in FLAGS} <= having
    assert {"--no-enable-prefix-caching", "octave_k3v4", '{"mode":"STOCK_TORCH_COMPILE"}', "qwen3_json"} <= having


@pytest.mark.parametrize("series", known_versions())
def test_the_forms_that_a_version_refuses_are_refused_and_no_other(series: str) -> None:
    ours, theirs = rendered(series), recorded(series)
    assert ours.keys() == theirs.keys(), f"run: python -m tests.support.flag_forms {stated_version(series)}"
    assert {form: is_taken for form, is_taken in ours.items() if is_taken is not theirs[form]} == {}


@pytest.mark.parametrize("series", known_versions())
def test_a_flag_that_belongs_to_the_operator_is_never_taken_for_another_one(series: str) -> None:
    table = flag_table(series).by_spelling
    assert {flag: table[flag].name for flag in OPERATOR_OWNED if flag in table} == {
        flag: flag for flag in OPERATOR_OWNED if flag in table
    }


@pytest.mark.parametrize(
    ("argument", "has", "has_not"),
    [
        pytest.param("--enable-shm-tensor-arena", "0.32", "0.31", id="a flag that came"),
        pytest.param("--enable-mamba-fine-grained-prefix-cache", "0.30", "0.31", id="a flag that went"),
        pytest.param("--mamba-cache-mode=all", "0.31", "0.32", id="a value that went"),
    ],
)
def test_flags_are_those_of_the_version(argument: str, has: str, has_not: str) -> None:
    assert check_extra_args([argument], f"{has}.0") == ()
    (problem,) = check_extra_args([argument], f"{has_not}.0")
    assert problem.reason in ("UnknownFlag", "InvalidFlag"), "it holds for this version alone"
