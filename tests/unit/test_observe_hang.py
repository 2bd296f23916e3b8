"""A pod that hangs is told of as soon as it is not ready, minutes before its supervisor ends it; and no old end is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from llmservice_operator.observe.failures.failure import FailureContext, failure_of
from llmservice_operator.observe.failures.status_failure import StatusFailure
from llmservice_operator.observe.reports import Report, asks
from llmservice_runtime.contract import Failure, FailureReason, Phase, State

from tests.unit import failing_pods as pods
from tests.unit.failing_pods import REVISION, facts

Json = dict[str, Any]

SERVING = State(Phase.SERVING, started=True, ready=True)
HUNG = State(Phase.SERVING, started=True, hung=True, progress="requests wait but the engine makes no progress")
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


def told(status: Mapping[str, Any], state: State | None, restarts: int = 0) -> StatusFailure | None:
    heard = {"x-0": Report("uid-x-0", restarts, state)} if state is not None else {}
    return failure_of(
        None, facts(pods.pod(status=status)), REVISION, None, "2026-01-02T03:03:02Z", FailureContext(heard)
    )


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
def test_what_is_reported(status: Json, state: State | None, restarts: int, reason: str | None) -> None:
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


def test_what_it_was_ended_with_takes_the_place_of_what_was_said_before() -> None:
    early = told(was_ready(), HUNG)
    assert early is not None
    hung = Failure(FailureReason.ENGINE_HUNG, "No counter moved for 120 s.", "Look for Xid.", ("the last line",))
    end = ENDED | {"message": hung.to_json(), "finishedAt": UNREADY}
    status = pods.server({"running": {"startedAt": "2026-01-02T03:05:00Z"}}, restarts=1, last=end)
    status["conditions"][1]["lastTransitionTime"] = UNREADY
    found = failure_of(None, facts(pods.pod(status=status)), REVISION, early.to_object(), "2026-01-02T03:05:02Z")
    assert found is not None
    assert (found.message, found.remedy, found.evidence) == (
        "No counter moved for 120 s.",
        "Look for Xid.",
        hung.evidence,
    )
    assert found.since == early.since, "it is the same failure"
    again = failure_of(None, facts(pods.pod(status=status)), REVISION, found.to_object(), "2026-01-02T03:06:02Z")
    assert again == found


def test_earlier_restarts_do_not_make_it_final() -> None:
    found = told(was_ready(restarts=9, last=ENDED), HUNG, 9)
    assert found is not None
    assert not found.is_final


def test_a_pod_that_hung_is_asked_until_it_says_otherwise() -> None:
    """It may be ready again before it was asked again, and what it said would be believed for ever."""
    ready = pods.server({"running": {"startedAt": STARTED}}, started=True, ready=True)
    ready["conditions"][1] |= {"status": "True"}
    seen = facts(pods.pod(status=ready))
    told_measured = {"rollout": {"revision": REVISION}, "measured": {"startSeconds": 1.0}}

    def asked(state: State) -> int:
        return len(asks(seen, {"x-0": Report("uid-x-0", 0, state)}, REVISION, told_measured, None))

    assert (asked(HUNG), asked(SERVING)) == (1, 0)


def test_a_state_of_another_release_says_nothing_of_hangs() -> None:
    assert '"hung":true' in HUNG.to_json()
    assert State.from_json(HUNG.to_json()) == HUNG
    assert '"hung"' not in SERVING.to_json()
    assert State.from_json(SERVING.to_json()) == SERVING
