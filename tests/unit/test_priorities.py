"""Which services come first where thousands wait: by what their status says of them."""

from typing import Any

import pytest
from llmservice_operator.control.queue import priorities
from llmservice_operator.control.queue.work_queue import Priority
from llmservice_operator.control.watch.kinds import ParentFacts

from tests.unit.reconcile_world import parent


def of(generation: int, status: dict[str, Any], **metadata: Any) -> ParentFacts:
    return ParentFacts.from_object({**parent(generation=generation, **metadata), "status": status})


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(of(1, {}), Priority.NEW, id="no status yet"),
        pytest.param(of(1, {"observedGeneration": -1}), Priority.NEW, id="the CRD's default"),
        pytest.param(of(2, {"observedGeneration": -1}), Priority.NEW, id="edited before anybody looked"),
        pytest.param(of(3, {"observedGeneration": 2}), Priority.EDITED, id="edited"),
        pytest.param(of(3, {"observedGeneration": 3}), Priority.REST, id="as it was"),
        pytest.param(of(3, {"observedGeneration": 2}, deletionTimestamp="now"), Priority.REST, id="being deleted"),
        pytest.param(None, Priority.REST, id="gone"),
    ],
)
def test_of_itself(facts: ParentFacts | None, expected: Priority) -> None:
    assert priorities.of_itself(facts) is expected


def told(**conditions: str) -> dict[str, Any]:
    whole = {"reason": "Told", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    listed = [{"type": kind, "status": status} | whole for kind, status in conditions.items()]
    return {"observedGeneration": 1, "conditions": listed}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(of(1, {}), Priority.REST, id="no status yet"),
        pytest.param(of(1, told(Ready="False", Available="False")), Priority.REST, id="on its way"),
        pytest.param(of(1, told(Ready="True", Available="True")), Priority.SERVES, id="serves"),
        pytest.param(of(1, told(Ready="False", Available="True")), Priority.SERVES, id="serves during a rollout"),
        pytest.param(of(1, told(Available="True"), deletionTimestamp="now"), Priority.REST, id="being deleted"),
        pytest.param(None, Priority.REST, id="gone"),
    ],
)
def test_of_children(facts: ParentFacts | None, expected: Priority) -> None:
    assert priorities.of_children(facts) is expected
