"""A planner that fails on a model keeps no service from starting, and is reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from llmservice_operator.behaviours.fit import planning
from llmservice_planner import memory, remedies
from llmservice_planner.model import config_json

from tests.unit.decide_world import H100, T4, a_world


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Answers are remembered: neither those of other tests here, nor these there."""
    caches = (planning.answer, planning.stated, planning.architecture, planning._try_remedies)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


ERRORS = [cls("x") for cls in (OverflowError, RecursionError, ValueError, TypeError, IndexError, AttributeError)]
PLACES: list[tuple[Any, str, Exception]] = [(memory, "plan", error) for error in ERRORS]
PLACES.append((config_json, "read", KeyError("rope_scaling")))


def failing(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, error: BaseException) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(module, name, fails)


@pytest.mark.parametrize(("module", "name", "error"), PLACES, ids=lambda it: getattr(it, "__name__", None) or str(it))
def test_it_is_started_without_a_plan(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, module: Any, name: str, error: Exception
) -> None:
    failing(monkeypatch, module, name, error)
    world = a_world(H100)
    world.settle()
    world.decide()
    assert world.condition("Fits") == ("Unknown", "FactsMissing")
    assert "Deployment" in world.kinds()
    for words in ("planner failed on this model", type(error).__name__, "spec.model.architecture"):
        assert words in world.message("Fits")
    logged = [record.exc_info for record in caplog.records if "planner failed" in record.message]
    assert len(logged) == 1, "once a question"
    assert logged[0] is not None


def test_a_verdict_stays_where_only_the_remedies_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, remedies, "with_remedies", LookupError("nothing"))
    world = a_world(T4)
    world.settle()
    assert world.condition("Fits") == ("False", "DoesNotFit")
    assert "remedies" not in world.plan
    assert "planner failed" in world.message("Fits")
    assert "was tried" not in world.message("Fits")


def test_other_errors_are_not_the_planners(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, memory, "plan", MemoryError())
    with pytest.raises(MemoryError):
        a_world(H100).settle()
