"""What is remembered of a spec: the same for the same, nothing of another's, and nothing once the spec is gone."""

import datetime
import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from llmservice_api import service as memory
from llmservice_api.errors import InvalidSpec
from llmservice_api.service import MAX_RESULTS, LLMService, cached_by_service, cached_by_spec, parse_spec
from llmservice_api.spec import LLMServiceSpec

from tests.unit.decide_world import an_llmservice


def a_spec(number: int) -> dict[str, Any]:
    return {"model": {"uri": "hf://a/b"}, "batching": {"maxNumSeqs": number}}


def a_service(number: int = 1, **metadata: Any) -> LLMService:
    made = an_llmservice(a_spec(number))
    return LLMService.from_object(made | {"metadata": made["metadata"] | metadata})


class Asked:
    """A function of a spec or a service, and how often it was asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, whose: Any, *rest: object) -> object:
        self.times += 1
        return object()


def test_the_same_text_is_the_same_spec() -> None:
    assert parse_spec(a_spec(1)) is parse_spec(a_spec(1))
    assert parse_spec(a_spec(1)) is not parse_spec(a_spec(2))
    assert parse_spec(a_spec(1)) == LLMServiceSpec.model_validate(a_spec(1), by_alias=True)


def test_what_is_wrong_is_reported_each_time() -> None:
    for _ in range(2):
        with pytest.raises(InvalidSpec):
            parse_spec({"model": {"uri": "hf://a/b"}, "nonsense": 1})


YAML_ONLY = [
    ("a number that is none", {"accelerator": {"gpuMemoryUtilization": float("nan")}}, "spec.accelerator.gpu"),
    ("a number beyond 64 bits", {"batching": {"maxNumSeqs": 2**70}}, "spec.batching.maxNumSeqs"),
    ("a date", {"model": {"uri": datetime.date(2026, 1, 2)}}, "spec.model.uri"),
    ("a number as a key", {"batching": {1: 2}}, "spec.batching"),
]


@pytest.mark.parametrize(("said", "field"), [row[1:] for row in YAML_ONLY], ids=[row[0] for row in YAML_ONLY])
def test_what_yaml_has_beyond_json_is_refused_as_it_is(said: dict[str, Any], field: str) -> None:
    """And not read as what JSON would make of it: no number at all, a text."""
    with pytest.raises(InvalidSpec) as refused:
        parse_spec(a_spec(1) | said)
    assert any(problem.field.startswith(field) for problem in refused.value.problems)


SETTINGS, OTHERS = {"image": "a"}, {"image": "a"}
ROWS: list[tuple[str, Callable[[], LLMService], tuple[object, ...], bool]] = [
    ("the same service", a_service, (SETTINGS, "x"), True),
    ("with another status", lambda: replace(a_service(), status={"a": 1}), (SETTINGS, "x"), True),
    ("read anew", lambda: a_service(resourceVersion="99"), (SETTINGS, "x"), True),
    ("another spec", lambda: a_service(2), (SETTINGS, "x"), False),
    ("another name", lambda: a_service(name="other"), (SETTINGS, "x"), False),
    ("another namespace", lambda: a_service(namespace="other"), (SETTINGS, "x"), False),
    ("another of its name", lambda: a_service(uid="other"), (SETTINGS, "x"), False),
    ("another text", a_service, (SETTINGS, "y"), False),
    ("another object, even an equal one", a_service, (OTHERS, "x"), False),
    ("fewer words", a_service, (SETTINGS,), False),
]


@pytest.mark.parametrize(("other", "rest", "is_same"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_of_a_service(other: Callable[[], LLMService], rest: tuple[object, ...], is_same: bool) -> None:
    function = Asked()
    ask = cached_by_service(function)
    first = ask(a_service(), SETTINGS, "x")
    assert (ask(other(), *rest) is first) is is_same
    assert function.times == (1 if is_same else 2)


def test_an_error_is_not_remembered() -> None:
    times = []

    @cached_by_spec
    def fails(spec: LLMServiceSpec) -> str:
        times.append(1)
        if len(times) == 1:
            raise ValueError
        return "well"

    spec = parse_spec(a_spec(1))
    with pytest.raises(ValueError, match=r"^$"):
        fails(spec)
    assert fails(spec) == "well"


def test_what_is_remembered_is_bounded_and_goes_with_the_spec() -> None:
    spec = LLMServiceSpec.model_validate(a_spec(4), by_alias=True)
    number, one, other = id(spec), cached_by_spec(Asked()), cached_by_spec(Asked())
    assert one(spec) is one(spec)
    assert one(spec) is not other(spec), "another function"
    for each in range(2 * MAX_RESULTS):
        one(spec, each)
    assert len(memory._results[number][1]) <= MAX_RESULTS
    del spec
    gc.collect()
    assert number not in memory._results


def test_the_spec_itself_is_no_argument() -> None:
    """Its cache would hold it, and it would never end."""
    service = a_service()
    with pytest.raises(AssertionError, match="keep it for ever"):
        cached_by_service(Asked())(service, service.spec)
