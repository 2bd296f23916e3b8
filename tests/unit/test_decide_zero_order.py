"""Whatever happens in whatever order: the last replica goes only with proof, and activators are in nobody's way."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some
from llmservice_operator.decide.zero import SPREAD_SECONDS
from llmservice_operator.observe.observed import Refusal
from llmservice_operator.observe.projections.pods import PodFacts

from tests.unit.decide_world import World
from tests.unit.decide_zero_world import (
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
    some.tuples(some.just("slice"), some.sampled_from(["deleted", "refused", "taken"])),
)


def act(world: World, what: str, value: Any) -> None:
    if what == "scale":
        scale(world, value)
    elif what == "pods":
        follow(world, ready=value)
    elif what == "activators":
        world.activators = value
    elif what == "reports":
        world.holding = dict.fromkeys((ONE.address, TWO.address, SIX.address), value)
    elif what == "requests":
        world.in_flight = {} if value is None else dict.fromkeys(world.pods, value)
    elif what == "time":
        world.asked_for = value
    elif value == "refused":
        world.refused = {} if world.refused else {SLICE: Refusal(500, "a webhook is away")}
    elif value == "taken" and SLICE not in world.children:
        taken(world)
    elif value == "deleted":
        world.children.pop(SLICE, None)


def is_proven(world: World) -> bool:
    """By the table of the module, told in another way."""
    asked = [each.address for each in world.activators or () if each != SIX or world.activators == (SIX,)]
    reports = [world.holding.get(address) == GOOD for address in asked]
    pods = [PodFacts.from_object(pod) for pod in world.pods.values()]
    counts = [world.in_flight.get(pod.name) == 0 for pod in pods if pod.ready]
    slices = {name for kind, name in world.children if kind == "EndpointSlice"}
    is_spread = world.asked_for >= SPREAD_SECONDS
    return bool(asked) and all(reports) and all(counts) and bool(slices) and is_spread and not is_taken(world)


@settings(max_examples=80, deadline=None)
@given(some.lists(STEPS, max_size=14))
def test_no_order_of_events_loses_the_last_replica_or_keeps_the_activators_in_the_path(steps: list[Any]) -> None:
    world = a_world()
    for what, value in steps:
        act(world, what, value)
        for _ in range(6):
            before, proven = made(world), is_proven(world)
            decision = world.step()
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
    if asked and world.endpoints() and world.activators is not None:
        assert not ours, "a replica that is to stay is listed, and so are the activators"
    if world.activators and asked and not world.endpoints() and not (world.refused or is_taken(world)):
        assert ours, "no replica is listed, and no activator"
    if world.activators and not asked and not made(world):
        assert ours, "neither pods nor activators"
    if asked:
        assert made(world) == asked
    elif world.activators and world.endpoints() and made(world):
        asks = [world.holding.get(each.address, SILENT) for each in world.activators if not each.is_ipv6]
        assert not ours or all(each.is_listening and not each.problem for each in asks), "an activator cannot hold"
