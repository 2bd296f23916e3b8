"""Replicas over several nodes in the status: their pods, what these do, and why vLLM last ended on all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_api.reasons import Reason
from llmservice_api.status import MOST_GROUPS, GroupStatus
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.observe.failures.pod_failure import of_pod
from llmservice_operator.observe.observed import Report, adapters_of, asks, groups_of
from llmservice_runtime.contract import (
    AdapterState,
    Cause,
    Failure,
    FailureReason,
    GroupState,
    MemberState,
    Phase,
    State,
)

from tests.unit.operator.test_workload_leaderworkerset import pod

HUNG_UP = Failure(FailureReason.GPU_OUT_OF_MEMORY, "No room.", "Lower it.", evidence=("CUDA out of memory",))
CAUSE = Cause(1, "chat-0-1", "node-b", HUNG_UP)
MEMBERS = (MemberState(0, "Waiting", "chat-0", "node-a"), MemberState(1, "Failed", "chat-0-1", "node-b"))
SAID = "Rank 1 (pod chat-0-1 on node node-b): GPUOutOfMemory: No room."


def facts(rank: int, *, ready: bool = False) -> PodFacts:
    found = PodFacts.from_object(pod(0, rank))
    return replace(found, ready=ready, running=True, started=True, address="10.0.0.1", revision="r")


def told(**changed: Any) -> dict[str, Report]:
    """The leader's report."""
    group = GroupState(2, 3, **{"members": MEMBERS, "cause": CAUSE, "restarts": 2, **changed})
    return {"chat-0": Report("u-0-0", 0, State(Phase.LOADING, group=group))}


def test_the_status_has_each_member_and_the_cause() -> None:
    (found,) = groups_of([facts(1), facts(0)], told(), {})
    assert found == {
        "name": "chat-0",
        "ready": False,
        "restarts": 2,
        "cause": SAID,
        "members": [
            {"rank": 0, "pod": "chat-0", "node": "node-a", "step": "Waiting"},
            {"rank": 1, "pod": "chat-0-1", "node": "node-b", "step": "Failed"},
        ],
    }
    GroupStatus.model_validate(found)


def test_the_cause_says_how_many_requests_were_in_flight() -> None:
    (found,) = groups_of([facts(0)], told(cause=replace(CAUSE, lost_requests=3)), {})
    assert found["cause"] == f"{SAID} Requests in flight then: 3."


def test_what_was_told_stays_until_the_leader_is_heard_again() -> None:
    """A new operator has asked nobody yet."""
    before = {"groups": groups_of([facts(0)], told(), {})}
    assert groups_of([facts(0)], {}, before) == before["groups"]
    assert groups_of([], {}, before) == []
    assert groups_of([replace(facts(0), started=False)], {}, before) == [], "another pod of its name"


@pytest.mark.parametrize("reports", [told(), {}], ids=["asked before it was ready", "not asked yet"])
def test_a_ready_leader_has_no_cause_and_its_members_run(reports: dict[str, Report]) -> None:
    before = {"groups": groups_of([facts(0)], told(), {})}
    (found,) = groups_of([facts(0, ready=True)], reports, before)
    assert (found["ready"], "cause" in found) == (True, False)
    assert [each["step"] for each in found["members"]] == ["Running", "Running"]


def test_a_worker_measures_nothing_and_has_no_adapters() -> None:
    leads = State(Phase.SERVING, started=True, adapters_hash="h", adapters=(AdapterState("a", loaded=True),))
    reports = {"chat-0": Report("u-0-0", 0, leads), "chat-0-1": Report("u-0-1", 0, State(Phase.SERVING, started=True))}
    (found,) = adapters_of(["a"], "h", [facts(0), facts(1)], reports, "r", {})
    assert found["loaded"]
    asked = asks([replace(facts(0), started=True), facts(1)], reports, "r", {}, "h")
    assert [each.pod for each in asked] == []


def test_groups_are_counted_and_not_pods() -> None:
    def leader(number: int) -> PodFacts:
        return replace(PodFacts.from_object(pod(number, 0)), started=True)

    pods = [leader(number) for number in range(MOST_GROUPS + 1)]
    known = {"groups": [{"name": each.name} for each in pods]}
    workers = [replace(facts(0), name=f"aaa-{number}", rank=1) for number in range(40)]
    assert len(groups_of([*workers, *pods], {}, known)) == MOST_GROUPS


@pytest.mark.parametrize(
    ("changed", "reason", "message"),
    [
        pytest.param({}, FailureReason.GPU_OUT_OF_MEMORY, SAID, id="it will be tried again"),
        pytest.param(
            {"is_exhausted": True, "restarts": 5}, Reason.GROUP_RESTART_BUDGET_EXHAUSTED,
            f"Pods of chat-0's group started vLLM 5 times within an hour. {SAID}", id="it is given up",
        ),
    ],
)  # fmt: skip
def test_the_failure_is_that_of_the_rank_on_which_it_happened(
    changed: dict[str, Any], reason: FailureReason | Reason, message: str
) -> None:
    found = of_pod(facts(0), told(**changed))
    assert found is not None
    assert (found.reason, found.message, found.pod) == (Reason(reason), message, "chat-0-1")
    assert found.remedy.startswith("Lower it.")
    assert found.evidence == HUNG_UP.evidence


def test_a_ready_group_has_no_failure_and_a_first_start_has_none_yet() -> None:
    assert of_pod(facts(0, ready=True), told()) is None
    assert of_pod(facts(0), told(cause=None)) is None


def test_a_leader_is_asked_until_it_says_that_its_group_is_ready_again() -> None:
    state = State(Phase.SERVING, started=True, group=GroupState(2, 3))
    started = replace(facts(0, ready=True), started=True)
    previous = {"rollout": {"revision": "r"}, "measured": {}}
    for is_ready, asked in ((False, 1), (True, 0)):
        reports = {"chat-0": Report("u-0-0", 0, replace(state, ready=is_ready))}
        assert len(asks([started], reports, "r", previous, None)) == asked
