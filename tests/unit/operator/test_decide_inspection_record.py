"""What a look found is checked before it goes into the status: the words are those of a pod in a user's namespace."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_runtime.inspection.inspected import Inspection

from tests.unit.decide_world import QWEN_7B
from tests.unit.operator.test_decide_inspection import TENSORS, ends, looking

Json = dict[str, Any]

FIELDS = {"inspection", "revision", "failure"}
NUMBER = "head is no whole number"
# What the pod says of config and tensors; the fields of status.model; what they say.
IMPOSSIBLE: dict[str, tuple[Json, Json, set[str], str]] = {
    "a negative number": (QWEN_7B, {"head": -1}, FIELDS, NUMBER),
    "a fraction": (QWEN_7B, {"head": 1.5}, FIELDS, NUMBER),
    "a truth": (QWEN_7B, {"head": True}, FIELDS, NUMBER),
    "a text for a number": (QWEN_7B, {"head": "1"}, FIELDS, NUMBER),
    "a long type": (QWEN_7B, {"dtype": "x" * 65}, FIELDS, "at most 64 characters"),
    "a part that there is not": (QWEN_7B, {"tail": 1}, FIELDS, "have no 'tail'"),
    "a type that is none": (QWEN_7B, {"dtype": 16}, FIELDS, "at most 64 characters"),
    "a number beyond 64 bits": (QWEN_7B, {"experts": 2**70}, FIELDS - {"revision"}, "came to no conclusion"),
    "a type in no alphabet": (QWEN_7B, {"dtype": "\ud800"}, FIELDS - {"revision"}, "came to no conclusion"),
    "a long config": (QWEN_7B | {"model_type": "x" * 9000}, {}, FIELDS - {"revision"}, "came to no conclusion"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_the_api_server_would_refuse_never_comes_into_the_status(case: str) -> None:
    world = looking()
    config, tensors, fields, words = IMPOSSIBLE[case]
    ends(world, json.dumps(Inspection("x" * 200, config, TENSORS | tensors).to_document()))
    world.settle()
    model = world.status["model"]
    assert set(model) == fields
    assert words in model["failure"]
    assert len(model.get("revision", "x" * 64)) == 64
    assert world.condition("Fits") == ("Unknown", "FactsMissing")
    assert "spec.model.architecture" in world.message("Fits")
    assert "Deployment" in world.kinds()


def test_numbers_at_the_limit_are_kept() -> None:
    world = looking()
    ends(world, Inspection("0123abc", QWEN_7B, TENSORS | {"other": 2**62}))
    world.settle()
    assert world.status["model"]["tensors"]["other"] == 2**62
