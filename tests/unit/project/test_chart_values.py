"""The chart's files agree with each other and with the project."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_activator.holding import forward
from llmservice_activator.holding.limits import Limits
from llmservice_operator.manifests.settings import Settings
from llmservice_planner.quantity import amount

from scripts import chart_values
from tests.support.stand_in.engine import FIRST_TOKEN_BOUNDS, INTER_TOKEN_BOUNDS

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "llmservice-operator"
JSON = Mapping[str, Any]
ABOUT: JSON = yaml.safe_load((CHART / "Chart.yaml").read_text())
VALUES: JSON = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: JSON = json.loads((CHART / "values.schema.json").read_text())


def closed_objects(schema: JSON, values: Any, path: str = "") -> Iterator[tuple[str, JSON, Any]]:
    """Every object of the schema that lists its keys, with the values that stand there."""
    if "properties" in schema and schema.get("type") == "object" and "items" not in schema:
        yield path or "/", schema, values
        for key, below in schema["properties"].items():
            if key in values and isinstance(values[key], dict):
                yield from closed_objects(below, values[key], f"{path}/{key}")


OBJECTS = list(closed_objects(SCHEMA, VALUES))


@pytest.mark.parametrize(("schema", "values"), [each[1:] for each in OBJECTS], ids=[each[0] for each in OBJECTS])
def test_values_and_schema_list_the_same_keys(schema: JSON, values: JSON) -> None:
    assert schema["additionalProperties"] is False
    # `global` is Helm's; `claims` has no default.
    assert set(schema["properties"]) - {"global", "claims"} == set(values)


def test_targets_of_the_alerts_are_bounds_of_vllms_histograms() -> None:
    """cli/test_top.py holds these bounds against vLLM itself."""
    rule = SCHEMA["properties"]["metrics"]["properties"]["prometheusRule"]["properties"]
    bounds = {"ttftSeconds": FIRST_TOKEN_BOUNDS, "itlSeconds": INTER_TOKEN_BOUNDS}
    assert {name: tuple(rule["thresholds"]["properties"][name]["enum"]) for name in bounds} == bounds


def test_every_top_level_value_has_a_comment_above_it_or_inside() -> None:
    text = (CHART / "values.yaml").read_text()
    blocks = [block for block in text.split("\n\n")[1:] if ":" in block]
    scheduling = "podAnnotations: {}"  # Kubernetes' own words, which explain themselves
    assert [
        block for block in blocks if "#" not in block and scheduling not in block and "resources:" not in block
    ] == []


def test_the_activators_memory_limit_is_for_all_that_it_keeps_and_one_body_that_is_parsed() -> None:
    """A head takes up to three times its bytes, parsed and kept; a body of LONGEST_JSON, as text and values, 460 MB."""
    bounds = Limits()
    kept = bounds.held_bytes + 3 * bounds.head_bytes + bounds.slots * forward.REPLAY_BYTES
    assert amount(VALUES["autoscaling"]["resources"]["limits"]["memory"]) - kept >= 512 << 20


def test_chart_and_project_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert ABOUT["version"] == ABOUT["appVersion"] == project


def test_the_chart_carries_the_crd_of_the_repository() -> None:
    assert (CHART / "files" / "crd.yaml").read_text() == (ROOT / "crds" / "llmservices.llmservice.dev.yaml").read_text()


def test_the_page_of_values_is_fresh() -> None:
    assert chart_values.PAGE.read_text(encoding="utf-8") == chart_values.rendered(), "run `make crds`"


def keys(schema: JSON, path: str = "") -> Iterator[str]:
    for name, below in schema["properties"].items():
        yield f"{path}{name}"
        if "properties" in below:
            yield from keys(below, f"{path}{name}.")


def test_every_key_of_the_schema_is_on_the_page_of_values() -> None:
    page = chart_values.PAGE.read_text(encoding="utf-8")
    assert [key for key in keys(SCHEMA) if f"`{key}`" not in page and f"`{key}." not in page] == ["global"]


def test_a_value_has_its_comment_type_and_default() -> None:
    text = """\
# Of the group.
group:
  # Of both | words.
  first: 1
  second: "a"
  third: []

  fourth: {}
"""
    integer = {"type": "integer", "minimum": 1, "maximum": 3}
    group = {"properties": {"first": integer, "second": {"$ref": "#/definitions/x"}, "third": {}, "fourth": {}}}
    schema = {"definitions": {"x": {"enum": ["a", "b"]}}, "properties": {"group": group}}
    found = chart_values.values(text, schema)
    assert [(value.path, value.kind, value.default, value.description) for value in found] == [
        ("group", "any", "", "Of the group."),
        ("group.first", "integer, 1 to 3", "1", "Of both | words."),
        ("group.second", "`a`, `b`", '"a"', "Of both | words."),
        ("group.third", "any", "[]", "Of both | words."),
        ("group.fourth", "any", "{}", ""),
    ]
    assert "| `group.first` | integer, 1 to 3 | `1` | Of both \\| words. |" in chart_values.page(found)
    with pytest.raises(KeyError, match="unknown"):
        chart_values.values("unknown: 1\n", schema)


SINCE = {"helperCpu": Settings().helper_cpu, "helperMemory": Settings().helper_memory}
"""Settings that the operator before this chart refuses, with their defaults."""


def test_settings_that_an_older_operator_refuses_are_rendered_only_where_they_differ() -> None:
    """During an upgrade its pods may restart with the new settings."""
    assert {key: VALUES["services"][key] for key in SINCE} == SINCE
    by_default = yaml.safe_load((ROOT / "deploy" / "kustomize" / "base" / "settings.yaml").read_text())
    assert not SINCE.keys() & by_default["services"].keys()
    defaults = " ".join(f'"{key}" "{value}"' for key, value in SINCE.items())
    assert f"(dict {defaults})" in (CHART / "templates" / "_settings.tpl").read_text()
