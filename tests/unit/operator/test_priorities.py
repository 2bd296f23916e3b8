"""Which services come first where thousands wait: by what their status says of them."""

from typing import Any

import pytest
from kubeloop.queue import Priority
from llmservice_operator.service.watch import ParentFacts, priority_after_child, priority_of_service

from tests.unit.reconcile_world import parent

NEW, EDITED, SERVES, REST = Priority.NEW, Priority.EDITED, Priority.SERVES, Priority.REST


def conditions(**statuses: str) -> list[dict[str, str]]:
    since = {"reason": "Told", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return [{"type": type_, "status": status} | since for type_, status in statuses.items()]


@pytest.mark.parametrize(
    ("generation", "observed", "shown", "deleting", "itself", "children"),
    [
        pytest.param(1, None, {}, False, NEW, REST, id="no status yet"),
        pytest.param(2, -1, {}, False, NEW, REST, id="the CRD's default, edited before anybody looked"),
        pytest.param(3, 2, {"Ready": "False", "Available": "False"}, False, EDITED, REST, id="edited, on its way"),
        pytest.param(3, 3, {"Ready": "False", "Available": "True"}, False, REST, SERVES, id="serves"),
        pytest.param(3, 2, {"Available": "True"}, True, REST, REST, id="being deleted"),
    ],
)
def test_the_priority_of_a_service(
    generation: int, observed: int | None, shown: Any, deleting: bool, itself: Priority, children: Priority
) -> None:
    status = {} if observed is None else {"observedGeneration": observed, "conditions": conditions(**shown)}
    metadata: dict[str, Any] = {"deletionTimestamp": "now"} if deleting else {}
    facts = ParentFacts.from_object({**parent(generation=generation, **metadata), "status": status})
    assert (priority_of_service(facts), priority_after_child(facts)) == (itself, children)
    assert priority_of_service(None) is priority_after_child(None) is REST, "gone"
