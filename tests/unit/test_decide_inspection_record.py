"""What a look found is checked before it goes into the status: the words are those of a pod in a user's namespace."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_runtime.inspection.inspected import Inspection

from tests.unit.decide_world import QWEN_7B
from tests.unit.test_decide_inspection import TENSORS, ends, fits, kinds, looking

Json = dict[str, Any]

IMPOSSIBLE: list[tuple[str, Json, Json, str]] = [
    ("a negative one", QWEN_7B, TENSORS | {"head": -1}, "head is no whole number"),
    ("a fraction", QWEN_7B, TENSORS | {"head": 1.5}, "head is no whole number"),
    ("a truth", QWEN_7B, TENSORS | {"head": True}, "head is no whole number"),
    ("a text for a number", QWEN_7B, TENSORS | {"head": "1"}, "head is no whole number"),
    ("a long type", QWEN_7B, TENSORS | {"dtype": "x" * 65}, "at most 64 characters"),
    ("a part that there is not", QWEN_7B, TENSORS | {"tail": 1}, "have no 'tail'"),
    ("a type that is none", QWEN_7B, TENSORS | {"dtype": 16}, "at most 64 characters"),
]


REFUSED: dict[str, tuple[Json, Json]] = {
    "a number beyond 64 bits": (QWEN_7B, TENSORS | {"experts": 2**70}),
    "a type in no alphabet": (QWEN_7B, TENSORS | {"dtype": "\ud800"}),
    "a long config": (QWEN_7B | {"model_type": "x" * 9000}, TENSORS),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_look_writes_is_no_conclusion(case: str) -> None:
    world = looking()
    config, tensors = REFUSED[case]
    ends(world, json.dumps(Inspection("main", config, tensors).to_document()))
    world.settle()
    assert set(world.obj["status"]["model"]) == {"inspection", "failure"}
    assert "came to no conclusion" in world.obj["status"]["model"]["failure"]
    assert fits(world) == ("Unknown", "FactsMissing")
    assert "Deployment" in kinds(world)


@pytest.mark.parametrize(
    ("config", "tensors", "words"), [row[1:] for row in IMPOSSIBLE], ids=[row[0] for row in IMPOSSIBLE]
)
def test_what_the_api_server_would_refuse_never_comes_into_the_status(config: Json, tensors: Json, words: str) -> None:
    world = looking()
    ends(world, json.dumps(Inspection("x" * 200, config, tensors).to_document()))
    world.settle()
    model = world.obj["status"]["model"]
    assert set(model) == {"inspection", "revision", "failure"}
    assert words in model["failure"]
    assert len(model["revision"]) == 64
    assert fits(world) == ("Unknown", "FactsMissing")
    assert "spec.model.architecture" in world.conditions()["Fits"]["message"]
    assert "Deployment" in kinds(world)


def test_numbers_at_the_limit_are_kept() -> None:
    world = looking()
    ends(world, Inspection("0123abc", QWEN_7B, TENSORS | {"other": 2**62}))
    world.settle()
    assert world.obj["status"]["model"]["tensors"]["other"] == 2**62
