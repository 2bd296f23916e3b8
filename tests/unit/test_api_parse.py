"""Parsing takes what the API server stores, refuses what it refuses, and never fails in another way."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from llmservice_operator.api.crd import schema
from llmservice_operator.api.errors import InvalidSpec
from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.service import Key, LLMService, parse_spec
from llmservice_operator.api.shapes import SHAPED_FIELDS
from llmservice_operator.api.uri import (
    BucketSource,
    ClaimSource,
    FileSource,
    HubSource,
    ImageSource,
    Source,
    is_fetched,
    parse,
)

from tests.contract.bad_models import model
from tests.contract.bad_structure import structural
from tests.contract.manifests import Bad, manifest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
# Leaves in Kubernetes' own shape are handed on as they are, and Kubernetes judges them.
SHAPED = ("runtime.env", "runtime.resources", "podTemplate.spec.")
STRUCTURAL = [bad for bad in structural() if not any(shape in f"spec.{next(iter(bad.change))}" for shape in SHAPED)]
STRUCTURAL += [bad for bad in structural() if bad.id == "unknown-pod-field"]
URIS = [bad for bad in model() if bad.field == "spec.model.uri"]


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_examples(path: Path) -> None:
    written = yaml.safe_load(path.read_text())
    service = LLMService.from_object({**written, "metadata": {**written["metadata"], "namespace": "team"}})
    assert service.key == Key("team", written["metadata"]["name"])
    assert service.spec.model.uri == written["spec"]["model"]["uri"]


@pytest.mark.parametrize("bad", STRUCTURAL, ids=[bad.id for bad in STRUCTURAL])
def test_what_the_schema_refuses_is_invalid(bad: Bad) -> None:
    # Duplicates in a set and of a list's keys are the API server's affair, which no stored object has.
    if bad.id in ("served-twice", "adapter-twice"):
        return
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(manifest("good", bad.change)["spec"])
    (problem,) = caught.value.problems
    assert problem.field == bad.field or (not bad.field and problem.field in bad.says[0])
    assert problem.remedy
    assert problem.reason is Reason.INVALID_SPEC


@pytest.mark.parametrize("bad", URIS, ids=[bad.id for bad in URIS])
def test_uris_that_cel_refuses_are_invalid(bad: Bad) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec({"model": bad.change["model.uri"] and {"uri": bad.change["model.uri"]}})
    (problem,) = caught.value.problems
    assert problem.field == "spec.model.uri"
    assert problem.remedy.startswith("Write ")


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("hf://a/b", HubSource("a/b")),
        ("hf://Qwen/Qwen2.5-7B-Instruct@refs/pr/1", HubSource("Qwen/Qwen2.5-7B-Instruct", "refs/pr/1")),
        ("s3://models", BucketSource("models")),
        ("s3://team.models/a/b-c/", BucketSource("team.models", "a/b-c")),
        ("gs://team_models/a/b-c/", BucketSource("team_models", "a/b-c", "gs")),
        ("az://models/a/b", BucketSource("models", "a/b", "az")),
        ("image://registry.example:5000/a/b:v1", ImageSource("registry.example:5000/a/b:v1")),
        ("image://a#m", ImageSource("a", "m")),
        (f"image://a/b@sha256:{'0' * 64}#/m/n/", ImageSource(f"a/b@sha256:{'0' * 64}", "m/n")),
        ("pvc://models", ClaimSource("models")),
        ("pvc://models/", ClaimSource("models")),
        ("pvc://team.models/a b/".replace(" ", "_"), ClaimSource("team.models", "a_b")),
        ("pvc://models/a/b/", ClaimSource("models", "a/b")),
        ("file:///models/tiny-chat", FileSource("/models/tiny-chat")),
        ("file:///models/", FileSource("/models")),
    ],
)
def test_good_uris(uri: str, source: Source) -> None:
    assert parse(uri) == source
    assert is_fetched(source) is uri.startswith(("hf://", "s3://", "gs://", "az://"))


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (
            {"speculativeDecoding": {"method": "eagle", "model": {"uri": "x"}, "numSpeculativeTokens": 1}},
            "spec.speculativeDecoding.model.uri",
        ),
        ({"adapters": [{"name": "a", "uri": "hf://a/b"}, {"name": "b", "uri": "x"}]}, "spec.adapters[b].uri"),
    ],
    ids=["draft model", "adapter"],
)
def test_every_uri_is_looked_at(part: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec({"model": {"uri": "hf://a/b"}, **part})
    assert [problem.field for problem in caught.value.problems] == [field]


@pytest.mark.parametrize("raw", [None, [], "x", 7, {"model": None}, {"model": []}, {"model": {"uri": None}}])
def test_nonsense_is_invalid_and_no_crash(raw: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(raw)
    assert all(problem.field.startswith("spec") for problem in caught.value.problems)


def test_null_is_absent_as_it_is_for_the_api_server() -> None:
    raw = {"model": {"uri": "hf://a/b", "cache": None}, "batching": {"maxNumSeqs": None}, "runtime": None}
    assert parse_spec(raw) == parse_spec({"model": {"uri": "hf://a/b"}})


def test_several_problems_are_all_named() -> None:
    raw = {"model": {"uri": "hf://a/b"}, "batching": {"maxModelLen": "x", "maxNumSeqs": 0}, "nope": 1}
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(raw)
    fields = {problem.field for problem in caught.value.problems}
    assert fields == {"spec.batching.maxModelLen", "spec.batching.maxNumSeqs", "spec.nope"}


def test_a_service_does_not_change() -> None:
    service = LLMService.from_object(
        {"metadata": {"name": "a", "namespace": "b"}, "spec": {"model": {"uri": "hf://a/b"}}}
    )
    with pytest.raises(AttributeError):
        service.name = "b"  # type: ignore[misc]
    with pytest.raises(ValueError):
        service.spec.paused = True  # type: ignore[misc]
    with pytest.raises(TypeError):
        service.status["a"] = 1  # type: ignore[index]


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
    """Kubernetes-shaped leaves are not looked into, so one value of each will do; what a uri may be says CEL."""
    return st.just(part["example"]) if name in SHAPED_FIELDS or name == "uri" else strategy(part)


SPECS = objects_of(schema()["properties"]["spec"])


@settings(max_examples=150)
@given(SPECS)
def test_what_the_schema_takes_can_be_parsed(spec: dict[str, Any]) -> None:
    parsed = parse_spec(spec)
    assert parsed.model.uri == spec["model"]["uri"]
    written = json.loads(parsed.model_dump_json(by_alias=True, exclude_unset=True))
    assert written == json.loads(json.dumps(spec))
