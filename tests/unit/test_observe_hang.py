"""A pod that hangs is told of as soon as it is not ready, minutes before its supervisor ends it; and no old end is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from llmservice_operator.observe.failure import Beside, trouble_of
from llmservice_operator.observe.reports import Report
from llmservice_operator.observe.trouble import Trouble
from llmservice_runtime.contract import Failure, FailureReason, Phase, State

from tests.unit import failing_pods as pods
from tests.unit.failing_pods import REVISION, facts

Json = dict[str, Any]

SERVING = State(Phase.SERVING, started=True, ready=True)
HUNG = State(Phase.SERVING, started=True, hung=True, progress="requests wait but the engine does not move")
SLOW = State(Phase.SERVING, started=True)
STARTED, UNREADY = "2026-01-02T03:00:05Z", "2026-01-02T03:03:00Z"
DIED = Failure(FailureReason.ENGINE_DIED, "The engine died.", "Look at the log.", exit_code=1)
ENDED = {"exitCode": 1, "reason": "Error", "message": DIED.to_json(), "finishedAt": "2026-01-02T03:00:00Z"}


def was_ready(*, restarts: int = 0, last: Json | None = None) -> Json:
    status = pods.server({"running": {"startedAt": STARTED}}, started=True, restarts=restarts, last=last)
    status["conditions"][1]["lastTransitionTime"] = UNREADY
    return status


def starts_again() -> Json:
    status = pods.server({"running": {"startedAt": UNREADY}}, restarts=1, last=ENDED)
    status["conditions"][1]["lastTransitionTime"] = STARTED
    return status


def told(status: Mapping[str, Any], state: State | None, restarts: int = 0) -> Trouble | None:
    heard = {"x-0": Report("uid-x-0", restarts, state)} if state is not None else {}
    return trouble_of(None, facts(pods.pod(status=status)), REVISION, None, "2026-01-02T03:03:02Z", Beside(heard))


@pytest.mark.parametrize(
    ("status", "state", "restarts", "reason"),
    [
        pytest.param(was_ready(), HUNG, 0, "EngineHung", id="it hangs"),
        pytest.param(was_ready(restarts=1, last=ENDED), HUNG, 1, "EngineHung", id="it hangs, and died once before"),
        pytest.param(was_ready(), SLOW, 0, None, id="not ready for another cause"),
        pytest.param(was_ready(), SERVING, 0, None, id="moves again, and the kubelet has not seen it"),
        pytest.param(was_ready(restarts=1, last=ENDED), SLOW, 1, None, id="an end that it got over"),
        pytest.param(was_ready(restarts=1, last=ENDED), HUNG, 0, None, id="an earlier run hung"),
        pytest.param(starts_again(), None, 0, "EngineDied", id="an end that it has not got over"),
    ],
)
def test_what_is_told(status: Json, state: State | None, restarts: int, reason: str | None) -> None:
    found = told(status, state, restarts)
    assert (str(found.reason) if found is not None else None) == reason


def test_it_may_pass_and_has_been_so_since_the_pod_is_not_ready() -> None:
    found = told(was_ready(), HUNG)
    assert found is not None
    assert not found.is_final
    assert (found.pod, found.since) == ("x-0", UNREADY)
    assert "restarted if it stays so" in found.message
    assert found.remedy
    assert found.evidence


def test_a_state_of_another_release_says_nothing_of_hangs() -> None:
    assert '"hung":true' in HUNG.to_json()
    assert State.from_json(HUNG.to_json()) == HUNG
    assert '"hung"' not in SERVING.to_json()
    assert State.from_json(SERVING.to_json()) == SERVING
