"""A planner that fails on a model keeps no service from starting, and is told about."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from llmservice_operator.decide.fit import planning
from llmservice_operator.planner import memory, remedies
from llmservice_operator.planner.model import config_json

from tests.unit.fit_world import H100, T4, a_world, fits, kinds, plan


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Answers are remembered: neither those of other tests here, nor these there."""
    caches = (planning.answer, planning.stated, planning.architecture, planning._remedied)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


ERRORS = [
    ZeroDivisionError("division by zero"),
    OverflowError("too large"),
    ValueError("no number"),
    TypeError("not a number"),
    KeyError("rope_scaling"),
    IndexError("out of range"),
    AttributeError("no such thing"),
    RecursionError("too deep"),
]
PLACES = [("the plan", memory, "plan"), ("the configuration", config_json, "read")]


@pytest.mark.parametrize(("module", "name"), [row[1:] for row in PLACES], ids=[row[0] for row in PLACES])
@pytest.mark.parametrize("error", ERRORS, ids=[type(error).__name__ for error in ERRORS])
def test_it_is_started_without_a_plan(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, module: Any, name: str
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(module, name, fails)
    world = a_world(H100)
    with caplog.at_level(logging.ERROR):
        world.settle()
    assert fits(world) == ("Unknown", "FactsMissing")
    assert "Deployment" in kinds(world)
    message = world.conditions()["Fits"]["message"]
    assert "planner failed on this model" in message
    assert type(error).__name__ in message
    assert "spec.model.architecture" in message
    told = [record for record in caplog.records if "planner failed" in record.message]
    assert told[0].exc_info is not None
    before = len(told)
    with caplog.at_level(logging.ERROR):
        world.decide()
    assert len([record for record in caplog.records if "planner failed" in record.message]) == before, "once a question"


def test_a_verdict_stands_where_only_the_remedies_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise LookupError("nothing")

    monkeypatch.setattr(remedies, "with_remedies", fails)
    world = a_world(T4)
    world.settle()
    assert fits(world) == ("False", "DoesNotFit")
    assert "remedies" not in plan(world)
    message = world.conditions()["Fits"]["message"]
    assert "planner failed" in message
    assert "was tried" not in message


def test_other_errors_are_not_the_planners(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(memory, "plan", fails)
    with pytest.raises(MemoryError):
        a_world(H100).settle()
