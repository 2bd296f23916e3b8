"""Whatever happens in whatever order: the last replica goes only with proof, and activators are in nobody's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as some
from llmservice_operator.behaviours.holding import LOST, WAITING
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.observe.activators import SPREAD_SECONDS
from llmservice_operator.observe.observed import Refusal

from tests.unit.decide_world import World
from tests.unit.operator.decide_zero_world import (
    GOOD,
    LISTENING,
    NO_KEY,
    ONE,
    SILENT,
    SIX,
    SLICE,
    TWO,
    a_world,
    follow,
    held_in_rollouts,
    is_taken,
    is_theirs,
    made,
    scale,
    taken,
)

STEPS = some.one_of(
    some.tuples(some.just("scale"), some.sampled_from([0, 1, 2])),
    some.tuples(some.just("pods"), some.booleans()),
    some.tuples(some.just("activators"), some.sampled_from([None, (), (ONE,), (ONE, TWO), (TWO, SIX)])),
    some.tuples(some.just("reports"), some.sampled_from([GOOD, GOOD, LISTENING, SILENT, NO_KEY])),
    some.tuples(some.just("requests"), some.sampled_from([0, 0, 1, None])),
    some.tuples(some.just("time"), some.sampled_from([0.0, 5.0, 15.0, 65.0])),
    some.tuples(some.just("edit"), some.sampled_from([4, 8])),
    some.tuples(some.just("slice"), some.sampled_from(["deleted", "refused", "taken"])),
)


def act(world: World, what: str, value: Any) -> None:
    if what == "scale":
        is_scaled = "autoscaling" in world.obj["spec"]["scaling"]
        scale(world, value if is_scaled else max(1, value))  # a user's own zero holds nothing
    elif what == "pods":
        follow(world, ready=value)
    elif what == "activators":
        world.activators = value
    elif what == "reports":
        world.holding = dict.fromkeys((ONE.address, TWO.address, SIX.address), value)
    elif what == "requests":
        world.in_flight = {} if value is None else dict.fromkeys(world.pods, value)
    elif what == "edit":
        world.edit(batching={"maxNumSeqs": value})
    elif what == "time":
        world.asked_for = value
    elif value == "refused":
        world.refused = {} if world.refused else {SLICE: Refusal(500, "a webhook is away")}
    elif value == "taken" and SLICE not in world.children:
        taken(world)
    elif value == "deleted":
        world.children.pop(SLICE, None)


def is_proven(world: World, *, is_quiet: bool = True) -> bool:
    """By the tables of the modules, told in another way; `is_quiet`: no request is in flight."""
    asked = [each.address for each in world.activators or () if each != SIX or world.activators == (SIX,)]
    reports = [world.holding.get(address) == GOOD for address in asked]
    counts = [world.in_flight.get(pod.name) == 0 for pod in facts(world) if pod.ready]
    slices = {name for kind, name in world.children if kind == "EndpointSlice"}
    is_spread = world.asked_for >= SPREAD_SECONDS
    return (
        bool(asked)
        and all(reports)
        and (all(counts) or not is_quiet)
        and bool(slices)
        and is_spread
        and not is_taken(world)
    )


def is_covered(world: World) -> bool:
    """Whether the template may be changed by a Recreate."""
    is_told = world.status["rollout"].get("gap", "").startswith(LOST)
    return not world.endpoints() or is_told or is_proven(world, is_quiet=False)


def facts(world: World) -> list[PodFacts]:
    return [PodFacts.from_object(pod) for pod in world.pods.values()]


def recreated_world() -> World:
    """Without autoscaling; every rollout leaves a gap."""
    return held_in_rollouts(2, rollout={"strategy": "Recreate"})


@settings(max_examples=80, deadline=None)
@given(some.sampled_from([a_world, recreated_world]), some.lists(STEPS, max_size=14))
@example(recreated_world, [("reports", LISTENING), ("edit", 4)]).via("a rollout that waits, with slices")
@example(recreated_world, [("reports", SILENT), ("edit", 4), ("scale", 1)]).via("a scale while a rollout waits")
def test_no_order_of_events_loses_the_last_replica_or_keeps_the_activators_in_the_path(
    make: Callable[[], World], steps: list[Any]
) -> None:
    world = make()
    for what, value in steps:
        act(world, what, value)
        for _ in range(6):
            before, proven = made(world), is_proven(world)
            template, covered = world.revision(), is_covered(world)
            decision = world.step()
            if world.strategy() == "Recreate" and world.obj["spec"]["scaling"]["replicas"]:
                assert world.revision() == template or covered, "the old pods ended without proof or a word"
            assert made(world) >= min(before, 1) or proven, "the last replica went without proof"
            if decision.is_steady:
                break
        else:
            raise AssertionError(f"never steady: {world.decide()}")
        check_settled(world)


def check_settled(world: World) -> None:
    """What holds between two events, whatever came before."""
    asked = world.obj["spec"]["scaling"]["replicas"]
    ours = [each for each in world.of_kind("EndpointSlice") if not is_theirs(each)]
    new = {pod.uid for pod in facts(world) if pod.revision == world.revision()}
    waits = (world.status.get("rollout") or {}).get("gap") == WAITING
    is_in_gap = waits or (world.strategy() == "Recreate" and not new & world.endpoints())
    if asked and world.endpoints() and world.activators is not None and not is_in_gap:
        assert not ours, "a replica that is to stay is listed, and so are the activators"
    if world.activators and asked and not world.endpoints() and not (world.refused or is_taken(world)):
        assert ours, "no replica is listed, and no activator"
    if world.activators and not asked and not made(world):
        assert ours, "neither pods nor activators"
    if asked:
        assert made(world) == asked or waits, "nothing holds the Deployment up"
    elif world.activators and world.endpoints() and made(world):
        asks = [world.holding.get(each.address, SILENT) for each in world.activators if not each.is_ipv6]
        assert not ours or all(each.is_listening and not each.problem for each in asks), "an activator cannot hold"
