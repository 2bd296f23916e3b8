"""Parsing takes what the API server stores, refuses what it refuses, and never fails in another way."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubeloop.resources import Key
from llmservice_api.crd import schema
from llmservice_api.errors import InvalidSpec
from llmservice_api.kubernetes import SHAPED_FIELDS
from llmservice_api.model import (
    BucketSource,
    ClaimSource,
    FileSource,
    HubSource,
    ImageSource,
    Source,
    is_fetched,
    parse,
)
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService, parse_spec

from tests.contract.manifests import SECTIONS, Case, manifest

# Leaves in Kubernetes' own shape are handed on as they are, and Kubernetes judges them. Duplicates in a set and of a
# list's keys are refused by the API server, so that no stored object has any.
SHAPED = ("runtime.env", "runtime.resources", "podTemplate.spec.")
INVALID = [
    case
    for case in SECTIONS["structure"]
    if "Duplicate value" not in case.says
    and (not next(iter(case.change)).startswith(SHAPED) or "podTemplate.spec.hostNetwork" in case.change)
]
URIS = [case for case in SECTIONS["models"] if case.field == "spec.model.uri"]


@pytest.mark.parametrize("case", INVALID + URIS, ids=[case.id for case in INVALID + URIS])
def test_what_the_api_server_refuses_is_invalid(case: Case) -> None:
    change = case.change if case in INVALID else {"model.uri": case.change["model.uri"]}
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(manifest("good", change)["spec"])
    (problem,) = caught.value.problems
    assert problem.field == case.field or (not case.field and problem.field in case.says[0])
    assert problem.remedy.startswith("Write ") if case in URIS else problem.remedy
    assert problem.reason is Reason.INVALID_SPEC


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("hf://Qwen/Qwen2.5-7B-Instruct@refs/pr/1", HubSource("Qwen/Qwen2.5-7B-Instruct", "refs/pr/1")),
        ("s3://models", BucketSource("models")),
        ("s3://team.models/a/b-c/", BucketSource("team.models", "a/b-c")),
        ("gs://team_models/a/b-c/", BucketSource("team_models", "a/b-c", "gs")),
        ("az://models/a/b", BucketSource("models", "a/b", "az")),
        ("image://registry.example:5000/a/b:v1", ImageSource("registry.example:5000/a/b:v1")),
        (f"image://a/b@sha256:{'0' * 64}#/m/n/", ImageSource(f"a/b@sha256:{'0' * 64}", "m/n")),
        ("pvc://models/", ClaimSource("models")),
        ("pvc://team.models/a_b/", ClaimSource("team.models", "a_b")),
        ("file:///models/", FileSource("/models")),
    ],
)
def test_good_uris(uri: str, source: Source) -> None:
    assert parse(uri) == source
    assert is_fetched(source) is uri.startswith(("hf://", "s3://", "gs://", "az://"))


DRAFT = {"method": "eagle", "model": {"uri": "x"}, "numSpeculativeTokens": 1}
WRONG: list[tuple[Any, set[str]]] = [
    ({"speculativeDecoding": DRAFT}, {"spec.speculativeDecoding.model.uri"}),
    ({"adapters": [{"name": "a", "uri": "hf://a/b"}, {"name": "b", "uri": "x"}]}, {"spec.adapters[b].uri"}),
    (
        {"batching": {"maxModelLen": "x", "maxNumSeqs": 0}, "nope": 1},
        {"spec.batching.maxModelLen", "spec.batching.maxNumSeqs", "spec.nope"},
    ),
]


@pytest.mark.parametrize(("part", "fields"), WRONG, ids=["draft model", "adapter", "several"])
def test_all_that_is_wrong_is_named(part: dict[str, Any], fields: set[str]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec({"model": {"uri": "hf://a/b"}, **part})
    assert {problem.field for problem in caught.value.problems} == fields


@pytest.mark.parametrize("raw", [None, [], "x", 7, {"model": None}, {"model": []}, {"model": {"uri": None}}])
def test_nonsense_is_invalid_and_no_crash(raw: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(raw)
    assert all(problem.field.startswith("spec") for problem in caught.value.problems)


def test_null_is_absent_as_it_is_for_the_api_server() -> None:
    raw = {"model": {"uri": "hf://a/b", "cache": None}, "batching": {"maxNumSeqs": None}, "runtime": None}
    assert parse_spec(raw) == parse_spec({"model": {"uri": "hf://a/b"}})


def test_a_service_has_a_key_and_is_immutable() -> None:
    service = LLMService.from_object(
        {"metadata": {"name": "a", "namespace": "b"}, "spec": {"model": {"uri": "hf://a/b"}}}
    )
    assert service.key == Key("b", "a")
    with pytest.raises(AttributeError):
        service.name = "b"  # type: ignore[misc]
    with pytest.raises(ValueError):
        service.spec.paused = True  # type: ignore[misc]
    with pytest.raises(TypeError):
        service.status["a"] = 1  # type: ignore[index]


CHECKED_AFTERWARDS = {"uri", "start", "end", "timeZone"}
"""What the schema takes and CEL or the operator may refuse: see test_api_schedule and contract/bad.yaml."""


def strategy(part: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a structural schema accepts."""
    if part.get("x-kubernetes-int-or-string"):
        strings = st.from_regex(part["pattern"], fullmatch=True) if "pattern" in part else st.just("1")
        return st.integers(part.get("minimum", 0), part.get("maximum", 99)) | strings
    if "enum" in part:
        return st.sampled_from(part["enum"])
    match part.get("type"):
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(part.get("minimum", 0), part.get("maximum", 99))
        case "number":
            return st.floats(part["minimum"], part["maximum"])
        case "string":
            return strings_of(part)
        case "array":
            unique = part.get("x-kubernetes-list-type") == "set"
            key = (lambda item: json.dumps(item)) if unique else None
            return st.lists(strategy(part["items"]), min_size=part.get("minItems", 0), max_size=3, unique_by=key)
    if "additionalProperties" in part:
        return st.dictionaries(st.sampled_from(["cpu", "memory"]), strategy(part["additionalProperties"]), max_size=2)
    return objects_of(part)


def strings_of(part: dict[str, Any]) -> st.SearchStrategy[str]:
    low, high = part.get("minLength", 0), part["maxLength"]
    if "pattern" not in part:
        return st.text(min_size=low, max_size=min(high, 8))
    return st.from_regex(part["pattern"], fullmatch=True).filter(lambda text: low <= len(text) <= high)


def objects_of(part: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: field_of(name, child) for name, child in part.get("properties", {}).items()}
    required = {name: fields.pop(name) for name in part.get("required", [])}
    return st.fixed_dictionaries(required, optional=fields)


def field_of(name: str, part: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Kubernetes-shaped leaves are not looked into, so one value of each will do; the schema cannot say the rest."""
    return st.just(part["example"]) if name in SHAPED_FIELDS or name in CHECKED_AFTERWARDS else strategy(part)


SPECS = objects_of(schema()["properties"]["spec"])


@settings(max_examples=40)
@given(SPECS)
def test_what_the_schema_takes_can_be_parsed(spec: dict[str, Any]) -> None:
    parsed = parse_spec(spec)
    assert parsed.model.uri == spec["model"]["uri"]
    written = json.loads(parsed.model_dump_json(by_alias=True, exclude_unset=True))
    assert written == json.loads(json.dumps(spec))
