"""The chaos run can be repeated, and strikes with everything that it has."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.chaos.actions import Apply, Delete, EndPod, ForeignDelete, ForeignEdit, RefusedEdit, Storm
from tests.chaos.faults import Asked, Fault, Kind, Weather, expired_event, status
from tests.chaos.plan import PROBED, outcome, plan

SEEDS = range(60)


def test_a_seed_repeats_its_plan() -> None:
    assert plan(7, 600) == plan(7, 600)
    assert plan(7, 600) != plan(8, 600)


@pytest.mark.parametrize("seed", SEEDS)
def test_three_minutes_have_every_blow_and_end_calm(seed: int) -> None:
    steps = plan(seed, 180)
    struck = Counter(type(step.action).__name__ for step in steps)
    assert len(struck) == 11, struck
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert steps[-1].action == Storm(())


@pytest.mark.parametrize("seed", SEEDS)
def test_only_what_is_there_is_struck(seed: int) -> None:
    present: set[str] = set()
    for step in plan(seed, 600):
        match step.action:
            case Apply(name):
                present.add(name)
            case Delete(name):
                assert name in present
                assert name not in PROBED
                present.remove(name)
            case ForeignEdit(name) | ForeignDelete(name) | EndPod(name) | RefusedEdit(name):
                assert name in present, step
    wanted = outcome(plan(seed, 600))
    assert {name for name, desired in wanted.items() if desired is not None} == present


@pytest.mark.parametrize("seed", SEEDS)
def test_what_requests_run_on_is_never_asked_to_fail(seed: int) -> None:
    steps = plan(seed, 600)
    for step in steps:
        if isinstance(step.action, Apply) and step.action.name in PROBED:
            desired = step.action.desired
            assert desired.replicas >= 2
            assert (desired.fails, desired.unknown_flag, desired.paused) == ("", False, False)
        if isinstance(step.action, EndPod) and step.action.name in PROBED:
            assert step.action.how in ("evict", "kill")


@pytest.mark.parametrize("seed", SEEDS)
def test_orphans_are_always_come_back_for(seed: int) -> None:
    steps = plan(seed, 600)
    for index, step in enumerate(steps):
        if isinstance(step.action, Delete) and step.action.cascade == "Orphan":
            later = [other.action for other in steps[index + 1 :]]
            assert any(isinstance(action, Apply) and action.name == step.action.name for action in later)


@pytest.mark.parametrize(
    ("asked", "kind", "is_possible"),
    [
        pytest.param(Asked("GET", {"watch": "true"}), Kind.EXPIRED, True, id="410 of a watch"),
        pytest.param(Asked("GET", {}), Kind.EXPIRED, False, id="no 410 of a first page"),
        pytest.param(Asked("GET", {"continue": "x"}), Kind.EXPIRED, True, id="410 of a later page"),
        pytest.param(Asked("PATCH", {}), Kind.CONFLICT, True, id="409 of a write"),
        pytest.param(Asked("GET", {}), Kind.CONFLICT, False, id="no 409 of a read"),
        pytest.param(Asked("PATCH", {}), Kind.LOST_ANSWER, True, id="a write's answer"),
        pytest.param(Asked("GET", {"watch": "true"}), Kind.DELAYED, False, id="a watch is silent instead"),
    ],
)
def test_which_fault_befalls_which_request(asked: Asked, kind: Kind, is_possible: bool) -> None:
    struck = Weather({kind: 1.0}).strike(asked, Random(0))
    assert (struck is not None and struck.kind is kind) is is_possible


def test_shares_are_of_all_requests_that_can_meet_the_fault() -> None:
    weather, chance = Weather({Kind.CONFLICT: 0.1, Kind.THROTTLED: 0.3}), Random(1)
    struck = Counter(
        fault.kind for _ in range(4000) if (fault := weather.strike(Asked("PATCH", {}), chance)) is not None
    )
    assert struck[Kind.CONFLICT] == pytest.approx(400, rel=0.15)
    assert struck[Kind.THROTTLED] == pytest.approx(1200, rel=0.15)


def test_a_refusal_is_in_the_api_servers_words() -> None:
    code, headers, body = status(Fault(Kind.THROTTLED))
    assert (code, headers, body["reason"]) == (429, {"Retry-After": "1"}, "TooManyRequests")
    assert b'"code": 410' in expired_event()
