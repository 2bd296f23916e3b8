"""Updates that were asked for: whose turn it is, who waits, and what a failed one means for the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeloop.informer import Cache
from kubeloop.resources import Key
from llmservice_operator.behaviours.rollout import why_waiting
from llmservice_operator.decision import Update, UpdatePermission
from llmservice_operator.observe.observed import Refusal
from llmservice_operator.service.context import Updates
from llmservice_operator.service.watch import PROJECTIONS

from tests.unit.decide_world import World
from tests.unit.operator.test_decide_rollback import fail
from tests.unit.operator.test_decide_rollouts import serving

A, B, C = (Key("team-a", name) for name in "abc")
WAITS, RUNNING, FAILED = Update.WAITS, Update.RUNNING, Update.FAILED
EMPTY = Cache(PROJECTIONS)


def ask(world: World) -> None:
    """A newer operator, and the request to have what it renders."""
    world.settings = replace(world.settings, operator_image="llmservice-operator:2")
    world.obj["metadata"]["annotations"] = {"llmservice.dev/update-requested": "now"}


def turn(updates: Updates, key: Key, cache: Cache) -> UpdatePermission:
    """The turn that a service gets, claimed where it is granted."""
    found = updates.check(key, cache)
    assert updates.claim(key) is found.is_granted
    return found


def test_a_turn_that_another_took_meanwhile_is_not_granted_twice() -> None:
    updates = Updates()
    assert updates.check(A, EMPTY).is_granted
    assert updates.check(B, EMPTY).is_granted
    assert (updates.claim(B), updates.claim(A), updates.claim(B)) == (True, False, True)


def test_one_after_another() -> None:
    updates = Updates()
    assert turn(updates, A, EMPTY) == UpdatePermission(is_granted=True)
    assert not turn(updates, B, EMPTY).is_granted
    assert updates.report(A, RUNNING) == ()
    for key in (B, C):
        assert updates.report(key, WAITS) == ()
    assert turn(updates, A, EMPTY).is_granted, "who has it keeps it"
    assert updates.report(A, None) == (B,)
    assert [turn(updates, key, EMPTY).is_granted for key in (B, C)] == [True, False]
    updates.report(C, None)
    assert updates.report(B, None) == (), "what is over is not waited for"
    several = Updates(limit=2)
    assert [turn(several, key, EMPTY).is_granted for key in (A, B, C)] == [True, True, False]


def test_a_failed_update_stops_all_others_and_names_itself() -> None:
    updates = Updates(limit=2)
    assert turn(updates, A, EMPTY).is_granted
    updates.report(B, WAITS)
    assert updates.report(A, FAILED) == (B,), "they are to say so"
    assert turn(updates, B, EMPTY) == UpdatePermission(is_granted=False, limit=2, failed=("a",))
    assert turn(updates, Key("team-b", "b"), EMPTY) == UpdatePermission(
        is_granted=False, limit=2, failed_in_other_namespaces=1
    )
    assert updates.report(A, None) == (B,)
    assert turn(updates, B, EMPTY).is_granted


@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.sampled_from(["ask", *Update, None])), max_size=60))
def test_never_more_begin_than_the_limit_and_none_while_one_failed(steps: list[tuple[Key, Any]]) -> None:
    updates = Updates()
    begun: set[Key] = set()
    failed: set[Key] = set()
    for key, step in steps:
        if step == "ask":
            if turn(updates, key, EMPTY).is_granted and key not in begun:
                assert not begun
                assert not failed - {key}
                begun.add(key)
        elif step in (None, WAITS) or key in begun:
            updates.report(key, step)
            if step in (None, WAITS):
                begun.discard(key)
                failed.discard(key)
            if step is FAILED:
                failed.add(key)


def test_without_a_turn_what_serves_stays_and_the_status_says_why() -> None:
    world = serving(1)
    before = world.revision()
    world.update_permission = UpdatePermission(is_granted=False)
    ask(world)
    decision = world.step()
    assert (decision.update, world.revision()) == (WAITS, before)
    shown = world.rollout
    assert shown["updatePending"] is True
    assert "1 at a time" in shown["updateWaiting"]
    assert [event.reason for event in decision.events] == ["UpdateWaiting"]
    assert world.condition("Ready")[0] == "True"
    assert world.step().is_steady
    world.update_permission = UpdatePermission(is_granted=False, failed=("other",), failed_in_other_namespaces=2)
    world.step()
    assert "The update of other and of 2 services of other namespaces failed" in world.rollout["updateWaiting"]
    world.update_permission = UpdatePermission(is_granted=True)
    assert world.step().update is RUNNING
    assert world.revision() != before
    assert "updateWaiting" not in world.rollout
    world.serve()
    assert world.step().update is None


def test_an_edit_needs_no_turn_and_an_interrupted_update_needs_its_turn_again() -> None:
    """The record was made and the Deployment was not changed: the operator was started again in between."""
    world = serving(1)
    deployment = world.deployment
    ask(world)
    world.step()
    world.children["Deployment", "x"] = deployment
    world.update_permission = UpdatePermission(is_granted=False)
    assert world.decide().update is WAITS
    before = world.revision()
    world.edit(batching={"maxNumSeqs": 3})
    assert world.step().update is None
    assert world.revision() != before


def a_failed_update(**sections: Any) -> World:
    world = serving(2, **sections)
    ask(world)
    world.settle()
    fail(world)
    world.settle()
    return world


@pytest.mark.parametrize("sections", [{}, {"rollout": {"autoRollback": True}}], ids=["stays", "rolled back"])
def test_a_failed_update_holds_its_turn_until_it_is_seen_to(sections: dict[str, Any]) -> None:
    world = a_failed_update(**sections)
    if sections:
        world.serve()
        assert world.condition("Ready")[1] == "RolledBack"
    assert world.step().update is FAILED
    del world.obj["metadata"]["annotations"]
    world.change(batching={"maxNumSeqs": 3})
    assert world.step().update is None


def cached(world: World) -> Cache:
    """What a starting operator's watches tell."""
    cache = Cache(PROJECTIONS)
    cache.update("LLMService", world.obj)
    for (kind, _), child in world.children.items():
        if kind in PROJECTIONS:
            cache.update(kind, child)
    return cache


def test_after_a_start_it_is_known_who_has_a_turn() -> None:
    world = serving(1)
    assert turn(Updates(), A, cached(world)).is_granted
    ask(world)
    world.settle()
    assert not turn(Updates(), A, cached(world)).is_granted
    world.serve()
    assert turn(Updates(), A, cached(world)).is_granted
    assert turn(Updates(), A, cached(a_failed_update())).failed == ("x",)


def test_what_was_gained_is_learned_as_after_a_start() -> None:
    """In another's reign, or in a namespace that could not be watched, an update may have begun."""
    found, updates = Key("team-a", "x"), Updates()
    failed = cached(a_failed_update())
    assert turn(updates, A, Cache(PROJECTIONS)).is_granted
    updates.report(A, None)
    updates.take_over([found])
    assert turn(updates, A, failed).failed == ("x",)
    updates.report(found, None)
    assert turn(updates, A, failed).is_granted
    updates.report(A, None)
    updates.take_over([found])
    updates.report(found, None)
    assert turn(updates, B, failed).is_granted, "what was decided since counts more than what is stored"
    started = Updates()
    started.report(found, None)
    assert turn(started, A, failed).is_granted, "a paused service is reported once after a start and never again"


def test_a_service_without_replicas_keeps_nobody_waiting() -> None:
    world = serving(1)
    ask(world)
    assert world.step().update is RUNNING
    world.edit(scaling={"replicas": 0})
    assert world.step().update is None
    world.settle()
    world.roll_out()
    world.settle()
    assert world.decide().update is None
    assert turn(Updates(), A, cached(world)).is_granted
    world.edit(scaling={"replicas": 1})
    assert world.step().update is RUNNING


def test_an_update_that_is_refused_is_named_to_those_that_wait() -> None:
    """Nothing would end it: no pod is made, and no deadline runs."""
    world = serving(1)
    ask(world)
    world.refused = {("Deployment", "x"): Refusal(422, "policy says no")}
    assert world.decide().update is FAILED
    world.refused = {}
    assert world.step().update is RUNNING


def test_a_long_list_of_failed_updates_is_cut_short() -> None:
    text = why_waiting(UpdatePermission(is_granted=False, failed=tuple(f"chat-{n}" for n in range(100))))
    assert "chat-7 and 92 more failed" in text
