"""A hang is reported as soon as the pod is not ready, minutes before its supervisor ends it; a past end is not."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.observe.failures.failure import FailureContext
from llmservice_operator.observe.failures.pod_failure import StatusFailure
from llmservice_operator.observe.observed import asks
from llmservice_runtime.contract import Failure, FailureReason, Phase, State

from tests.unit.operator import failing_pods as pods
from tests.unit.operator.failing_pods import REVISION, facts, failure, must_fail, reports

Json = dict[str, Any]

SERVING = State(Phase.SERVING, started=True, ready=True)
HUNG = State(Phase.SERVING, started=True, hung=True, progress="requests wait but the engine makes no progress")
SLOW = State(Phase.SERVING, started=True)
STARTED, UNREADY = "2026-01-02T03:00:05Z", "2026-01-02T03:03:00Z"
DIED = Failure(FailureReason.ENGINE_DIED, "The engine died.", "Look at the log.", exit_code=1)
ENDED = {"exitCode": 1, "reason": "Error", "message": DIED.to_json(), "finishedAt": "2026-01-02T03:00:00Z"}


def was_ready(since: str = STARTED, unready: str = UNREADY, **more: Any) -> Json:
    status = pods.server({"running": {"startedAt": since}}, **{"started": True} | more)
    status["conditions"][1]["lastTransitionTime"] = unready
    return status


def reported(status: Json, state: State | None, restarts: int = 0) -> StatusFailure | None:
    heard = reports(state, restarts) if state is not None else {}
    return failure(pods.pod(status=status), context=FailureContext(heard))


STARTS_AGAIN = was_ready(UNREADY, STARTED, restarts=1, last=ENDED)
CASES: dict[str, tuple[Json, State | None, int, str | None]] = {
    "it hangs": (was_ready(), HUNG, 0, "EngineHung"),
    "it hangs, and died once before": (was_ready(restarts=1, last=ENDED), HUNG, 1, "EngineHung"),
    "not ready for another cause": (was_ready(), SLOW, 0, None),
    "moves again, which the kubelet has not noticed": (was_ready(), SERVING, 0, None),
    "an end that it recovered from": (was_ready(restarts=1, last=ENDED), SLOW, 1, None),
    "an earlier run hung": (was_ready(restarts=1, last=ENDED), HUNG, 0, None),
    "an end that it has not recovered from": (STARTS_AGAIN, None, 0, "EngineDied"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_reported(case: str) -> None:
    status, state, restarts, reason = CASES[case]
    found = reported(status, state, restarts)
    assert (str(found.reason) if found is not None else None) == reason


@pytest.mark.parametrize("restarts", [0, 9])
def test_a_hang_may_pass_and_lasts_since_the_pod_is_not_ready(restarts: int) -> None:
    found = reported(was_ready(restarts=restarts, last=ENDED if restarts else None), HUNG, restarts)
    assert found is not None
    assert (found.pod, found.since, found.is_final) == ("x-0", UNREADY, False)
    assert "restarted if it stays so" in found.message
    assert found.remedy
    assert found.evidence


def test_the_report_of_the_end_replaces_the_one_before_it() -> None:
    before = reported(was_ready(), HUNG)
    hung = Failure(FailureReason.ENGINE_HUNG, "No counter moved for 120 s.", "Look for Xid.", ("the last line",))
    end = ENDED | {"message": hung.to_json(), "finishedAt": UNREADY}
    ended = pods.pod(status=was_ready("2026-01-02T03:05:00Z", started=False, restarts=1, last=end))
    found = must_fail(ended, before=before, now="2026-01-02T03:05:02Z")
    assert (found.message, found.remedy, found.evidence) == (hung.message, hung.remedy, hung.evidence)
    assert found.since == UNREADY, "it is the same failure"
    assert must_fail(ended, before=found, now="2026-01-02T03:06:02Z") == found


def test_a_pod_that_hung_is_asked_until_it_reports_otherwise() -> None:
    """It may be ready again before it was asked again, and its last report would hold for ever."""
    ready = was_ready(ready=True)
    ready["conditions"][1] |= {"status": "True"}
    status = {"rollout": {"revision": REVISION}, "measured": {"startSeconds": 1.0}}
    for state, asked in ((HUNG, 1), (SERVING, 0)):
        assert len(asks(facts(pods.pod(status=ready)), reports(state), REVISION, status, None)) == asked


def test_only_a_hung_server_reports_the_field() -> None:
    """Earlier releases do not know it."""
    assert ['"hung"' in state.to_json() for state in (HUNG, SERVING)] == [True, False]
    assert [State.from_json(state.to_json()) for state in (HUNG, SERVING)] == [HUNG, SERVING]
