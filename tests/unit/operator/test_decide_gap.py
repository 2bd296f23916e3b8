"""Requests are held while a rollout leaves no replica: slices before the last pod goes, until a new one is listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from llmservice_api.holding import HoldingReport, PortClaim
from llmservice_operator.behaviours.holding import (
    HELD,
    LOST,
    MAX_WAIT_SECONDS,
    WAITING,
)
from llmservice_operator.observe.activators import SPREAD_SECONDS
from llmservice_operator.observe.observed import Refusal

from tests.unit.decide_world import World, a_pod
from tests.unit.operator.decide_zero_world import (
    GOOD,
    LISTENING,
    NO_KEY,
    ONE,
    SILENT,
    SLICE,
    TWO,
    a_world,
    follow,
    held_in_rollouts,
    is_held,
    taken,
)
from tests.unit.operator.test_decide_rollouts import a_room

RECREATE = {"rollout": {"strategy": "Recreate"}}
REPLACE = {"rollout": {"strategy": "Replace"}}
EDIT = {"batching": {"maxNumSeqs": 8}}


def about_to_change(replicas: int = 1, sections: dict[str, Any] = RECREATE, **more: Any) -> tuple[World, str]:
    """Edited, and the revision that runs."""
    world = held_in_rollouts(replicas, **sections, **more)
    before = world.revision()
    world.edit(**EDIT)
    return world, before


@pytest.mark.parametrize(("replicas", "sections"), [(1, RECREATE), (3, RECREATE), (1, REPLACE)])
def test_the_slices_come_before_the_template_and_go_once_a_new_pod_is_listed(
    replicas: int, sections: dict[str, Any]
) -> None:
    world, before = about_to_change(replicas, sections)
    decision = world.step()
    assert (world.revision(), is_held(world), world.rollout["gap"]) == (before, False, WAITING)
    assert decision.requeue_after == 0.0, "activators forward beside replicas once the status has a gap"
    decision = world.step()
    assert (world.revision(), is_held(world)) == (before, True), "the slices before the template"
    assert world.rollout["gap"] == WAITING
    assert decision.requeue_after == 1.0
    world.step()
    assert (world.revision() != before, is_held(world)) == (True, True)
    world.settle()
    assert is_held(world), "the old pods are listed still"
    assert world.rollout["gap"] == HELD
    for pod in world.pods.values():
        pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:00Z"
    assert not world.endpoints()
    world.settle()
    assert is_held(world), "no pod is listed"
    follow(world, ready=False)
    world.settle()
    assert is_held(world), "the new pod is not ready"
    assert world.rollout["gap"] == HELD
    follow(world)
    world.unlisted = set(world.pods)
    world.settle()
    assert is_held(world), "the Service does not send requests to it yet"
    world.unlisted = set()
    world.settle()
    assert not is_held(world)
    assert "gap" not in world.rollout
    assert world.condition("Ready") == ("True", "RolledOut")


def test_pods_that_go_may_be_listed_longer_than_they_are_there() -> None:
    world, _ = about_to_change()
    world.settle()
    listed = world.endpoints()
    world.pods = {}
    world.endpoints = lambda: listed  # type: ignore[method-assign]
    world.settle()
    assert is_held(world)
    world.pods = {"new": a_pod("new", world.revision(), ready=True)}
    world.settle()
    assert is_held(world), "ready, and not listed yet"


def test_one_that_may_be_at_zero_is_held_in_rollouts_without_a_word() -> None:
    world = a_world()
    world.edit(**RECREATE)
    world.settle()
    before = world.revision()
    world.edit(**EDIT)
    world.step()
    world.step()
    assert (world.revision(), is_held(world)) == (before, True)
    world.settle()
    assert (world.revision() != before, is_held(world)) == (True, True)


def test_the_gap_of_auto_is_reported_and_then_held() -> None:
    world, before = about_to_change(sections={"rollout": {"strategy": "Auto"}}, fitPolicy="Ignore")
    world.room = a_room(0)
    first = world.step()
    assert "GapExpected" in [event.reason for event in first.events]
    assert (world.revision(), is_held(world)) == (before, False)
    assert "requests are held, if the activators can hold them" in world.rollout["reason"]
    world.step()
    world.step()
    assert (world.revision(), is_held(world), world.strategy()) == (before, True, "Surge")
    reason = world.rollout["reason"]
    world.settle()
    assert (world.revision() != before, is_held(world), world.strategy()) == (True, True, "Replace")
    assert (world.rollout["gap"], world.rollout["reason"]) == (HELD, reason)


WITHOUT_A_GAP: dict[str, Callable[[], World]] = {
    "surge": lambda: about_to_change(1, {"rollout": {"strategy": "Surge"}})[0],
    "one of two is replaced": lambda: about_to_change(2, REPLACE)[0],
    "not asked for": lambda: no_holding(),
    "paused": lambda: about_to_change(1, RECREATE, paused=True)[0],
}


def no_holding() -> World:
    world = a_world()
    world.edit(scaling={"replicas": 1, "holding": {"rollouts": False}}, **RECREATE)
    world.settle()
    world.edit(**EDIT)
    return world


@pytest.mark.parametrize("case", WITHOUT_A_GAP)
def test_nothing_is_held_where_a_replica_stays(case: str) -> None:
    world = WITHOUT_A_GAP[case]()
    before = world.revision()
    world.step()
    assert (world.revision() != before, is_held(world)) == (case != "paused", False)
    assert "gap" not in world.rollout


def reporting(one: HoldingReport, two: HoldingReport = GOOD, seconds: float = 5.0) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.holding, world.asked_for = {ONE.address: one, TWO.address: two}, seconds

    return change


def refused(world: World) -> None:
    world.refused = {SLICE: Refusal(403, "denied by a policy")}


def unknown(world: World) -> None:
    world.activators, world.unknown_for = None, MAX_WAIT_SECONDS - 1


def unknown_for_long(world: World) -> None:
    world.activators, world.unknown_for = None, MAX_WAIT_SECONDS


WAITS: dict[str, tuple[Callable[[World], None], bool]] = {
    "one does not listen yet": (reporting(SILENT), False),
    "one has not reached it yet": (reporting(GOOD, LISTENING), True),
    "the slices are new": (reporting(GOOD, GOOD, SPREAD_SECONDS / 2), True),
    "the activators are not known": (unknown, False),
}


@pytest.mark.parametrize("case", WAITS)
def test_the_rollout_waits_for_proof(case: str) -> None:
    change, held = WAITS[case]
    world, before = about_to_change()
    change(world)
    for _ in range(4):
        decision = world.step()
    assert (world.revision(), is_held(world)) == (before, held)
    assert world.rollout["gap"] == WAITING
    assert decision.requeue_after == 1.0
    assert world.condition("Available")[0] == "True"


def test_the_slices_are_tried_for_a_while_only_where_the_activators_are_not_reached() -> None:
    """The old replicas serve beside them: each request that comes to the slices meanwhile may be lost."""
    world, _ = about_to_change()
    tries = {}
    for seconds in (0.0, 9.0, 11.0, 59.0):
        reporting(GOOD, LISTENING, seconds)(world)
        world.step()
        world.settle()
        tries[seconds] = is_held(world)
    assert tries == {0.0: True, 9.0: True, 11.0: False, 59.0: False}


def without(name: str, value: Any) -> Callable[[World], None]:
    return lambda world: setattr(world, name, value)


def no_port(world: World) -> None:
    del world.obj["status"]["holding"]
    world.claim = PortClaim(None, "no right on Leases")


def no_list(world: World) -> None:
    world.hidden, world.is_blind = frozenset({"EndpointSlice"}), True


LOSES: dict[str, tuple[Callable[[World], None], bool, str]] = {
    "one never listens": (reporting(SILENT, GOOD, MAX_WAIT_SECONDS), False, "10.1.0.1 does not listen on port 20000"),
    "no key": (reporting(NO_KEY, GOOD, MAX_WAIT_SECONDS), False, "Secret k cannot be read."),
    "one never reaches it": (reporting(GOOD, LISTENING, MAX_WAIT_SECONDS), True, "10.1.0.2 is not reached through"),
    "no activator": (without("activators", ()), False, "No activator is ready."),
    "no port": (no_port, False, "No port could be allotted."),
    "no right on slices": (no_list, False, "may not list endpointslices"),
    "the slice is somebody's": (taken, True, "x-activator-ipv4 exists already"),
    "the slice is refused": (refused, False, "denied by a policy"),
    "the activators are never known": (unknown_for_long, False, "EndpointSlices of their Service cannot be listed"),
}


@pytest.mark.parametrize("case", LOSES)
def test_the_rollout_goes_on_and_the_status_says_before_that_requests_are_lost(case: str) -> None:
    change, held, why = LOSES[case]
    world, before = about_to_change()
    change(world)
    reported: list[str] = []
    for _ in range(9):
        if world.revision() != before:
            break
        said = world.rollout.get("gap", "")
        reported += [event.reason for event in world.step().events]
    assert world.revision() != before
    assert said.startswith(LOST)
    assert why in said
    assert reported.count("HoldingUnavailable") == 1
    assert is_held(world) == held
    reporting(GOOD)(world)
    world.settle()
    assert world.rollout["gap"] == said, "what was told stands"


def test_a_change_that_is_taken_back_while_it_waits_leaves_no_slices() -> None:
    world, before = about_to_change()
    reporting(GOOD, LISTENING)(world)
    world.step()
    world.step()
    assert is_held(world)
    world.edit(batching={})
    world.settle()
    assert (world.revision(), is_held(world)) == (before, False)
    assert "gap" not in world.rollout


def test_activators_that_come_during_the_gap_are_in_the_slices_and_without_any_there_are_none() -> None:
    world, _ = about_to_change()
    world.settle()
    world.activators = (TWO,)
    world.settle()
    assert [each["addresses"] for each in world.children[SLICE]["endpoints"]] == [["10.1.0.2"]]
    world.activators = None
    world.settle()
    assert is_held(world), "not known: as it is"
    world.activators = ()
    world.settle()
    assert not is_held(world), "the old pods serve still"


def test_a_steady_service_and_one_in_the_gap_ask_nobody() -> None:
    world, _ = about_to_change()
    assert world.inputs().holding is not None
    world.settle()
    assert world.inputs().holding is None
    follow(world)
    world.settle()
    assert world.inputs().holding is None
    assert world.decide().requeue_after is None


def test_a_strategy_alone_ends_no_pod_and_waits_for_nothing() -> None:
    world = held_in_rollouts()
    world.edit(**RECREATE)
    world.step()
    assert (world.strategy(), is_held(world)) == ("Recreate", False)


def test_a_new_pod_that_ends_already_ends_no_gap() -> None:
    """The cluster lists it a moment longer, and the old one still."""
    world, before = about_to_change(2)
    world.settle()
    old, new = (a_pod(name, label, ready=True) for name, label in (("old", before), ("new", world.revision())))
    world.pods = {"old": old, "new": new}
    listed = world.endpoints()
    world.endpoints = lambda: listed  # type: ignore[method-assign]
    new["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:00Z"
    world.settle()
    assert is_held(world)
    del new["metadata"]["deletionTimestamp"]
    world.settle()
    assert not is_held(world)


def test_a_pod_of_the_old_revision_beside_a_new_one_keeps_no_slices() -> None:
    world, before = about_to_change()
    world.settle()
    follow(world)
    world.pods["old"] = a_pod("old", before, ready=True)
    world.settle()
    assert not is_held(world)
