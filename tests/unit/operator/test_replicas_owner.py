"""Who states spec.scaling.replicas, from records that anybody may write; the cache keeps the answer alone."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as some
from llmservice_api.service import LAST_APPLIED_ANNOTATION, LLMService, stated_by
from llmservice_operator.facts.children import ScaledObjectFacts
from llmservice_operator.service.watch import ParentFacts

from tests.unit.decide_world import an_llmservice, spec

AUTOSCALED = {"scaling": {"replicas": 2, "autoscaling": {"maxReplicas": 4}}}
OWNER = {"manager": "flux", "operation": "Apply", "fieldsV1": {"f:spec": {"f:scaling": {"f:replicas": {}}}}}
JSONS = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8),
    lambda inner: (
        some.lists(inner, max_size=4)
        | some.dictionaries(some.sampled_from(["f:spec", "f:scaling", "f:replicas", "manager", "spec", "type"]), inner)
    ),
    max_leaves=12,
)


def test_the_cache_keeps_who_it_is_and_a_change_is_news() -> None:
    plain = ParentFacts.from_object(an_llmservice(spec(**AUTOSCALED)))
    stated = ParentFacts.from_object(an_llmservice(spec(**AUTOSCALED), managedFields=[OWNER]))
    assert plain != stated
    assert "managedFields" not in stated.obj["metadata"]
    assert LLMService.from_object(stated.obj).replicas_stated_by == "flux"
    assert LLMService.from_object(plain.obj).replicas_stated_by is None
    assert LLMService.from_object(stated.with_status({}).obj).replicas_stated_by == "flux"


def test_without_autoscaling_nobody_is_named() -> None:
    stated = an_llmservice(spec(scaling={"replicas": 2}), managedFields=[OWNER])
    assert LLMService.from_object(stated).replicas_stated_by is None
    assert ParentFacts.from_object(stated) == ParentFacts.from_object(an_llmservice(spec(scaling={"replicas": 2})))


def test_a_name_is_bounded_and_clean() -> None:
    assert stated_by({"managedFields": [OWNER | {"manager": "\x1b" + "a" * 999}]}) == " " + "a" * 63


@given(entries=JSONS, operation=some.sampled_from(["Apply", "Update"]), annotation=some.text(max_size=40) | JSONS)
def test_anything_in_the_records_is_a_bounded_name_or_none(entries: Any, operation: str, annotation: Any) -> None:
    text = annotation if isinstance(annotation, str) else json.dumps({"spec": {"scaling": annotation}})
    for managed in (entries, [entries], [{"operation": operation, "fieldsV1": entries, "manager": entries}]):
        found = stated_by({"managedFields": managed, "annotations": {LAST_APPLIED_ANNOTATION: text}})
        assert found is None or len(found) <= 64


@given(JSONS)
def test_any_status_of_a_scaled_object_is_projected_within_bounds(value: Any) -> None:
    metadata = {"name": "x", "namespace": "a", "uid": "u"}
    for status in (value, {"conditions": value}, {"conditions": [value, {"type": "Ready", "message": value}]}):
        facts = ScaledObjectFacts.from_object({"metadata": metadata, "spec": {}, "status": status})
        for condition in facts.conditions.values():
            assert len(condition.status) <= 64
            assert len(condition.reason) <= 64
            assert len(condition.message) <= 1024
