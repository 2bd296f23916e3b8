"""What is free on the nodes is read seldom, for the resource that is asked for, and not kept for nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from llmservice_operator.control.gather import NOT_READ
from llmservice_operator.decide.decision import Decision
from llmservice_operator.decide.inputs import Inputs, Part
from llmservice_operator.decide.requirements import NodeRoom, Requirements
from llmservice_operator.kube.errors import KubeError, ServerError, TooMany, Unreachable
from llmservice_operator.planner.room import Room

from tests.unit.reconcile_world import KEY, World, parent


class Asks:
    """Requires what is free, or does not, and keeps what it is given."""

    def __init__(self) -> None:
        self.resource: str | None = "nvidia.com/gpu"
        self.wants = True
        self.is_only_shown = False
        self.given: Part[Room] | None = None
        self.times: list[datetime] = []

    def requirements(self, inputs: Inputs) -> Requirements:
        self.times.append(inputs.now)
        if self.wants and inputs.room is None:
            return Requirements(room=NodeRoom(self.resource, max_age_seconds=60.0, is_only_shown=self.is_only_shown))
        return Requirements()

    def decide(self, inputs: Inputs) -> Decision:
        self.given = inputs.room
        return Decision()

    @property
    def room(self) -> Room:
        assert self.given is not None
        return self.given.value


def a_world() -> tuple[World, Asks]:
    world, asks = World(parent()), Asks()
    world.ctx.requirements, world.ctx.decide = asks.requirements, asks.decide
    return world, asks


async def test_what_was_told_stands_for_a_minute_but_for_another_resource() -> None:
    world, asks = a_world()
    reads = ["list Node", "list Pod"]
    await world.look()
    assert world.api.calls == reads
    world.now += 59
    await world.look()
    assert world.api.calls == []
    asks.resource = "nvidia.com/mig-3g.40gb"
    await world.look()
    assert world.api.calls == reads
    world.now += 60
    await world.look()
    assert world.api.calls == reads


async def test_it_is_forgotten_once_nobody_asks() -> None:
    world, asks = a_world()
    await world.look()
    assert world.ctx.memories[KEY].room is not None
    asks.wants = False
    await world.look()
    assert world.ctx.memories[KEY].room is None


@pytest.mark.parametrize("error", [Unreachable("timed out"), ServerError("busy", code=503), TooMany("busy", code=429)])
async def test_a_status_is_told_though_the_nodes_cannot_be_listed(error: KubeError) -> None:
    world, asks = a_world()
    asks.is_only_shown = True
    world.api.fails["list Node"] = [error]
    await world.look()
    assert asks.room == NOT_READ
    await world.look()
    assert asks.room == Room(), "the next look asks again"
    world.now += 61
    world.api.fails["list Pod"] = [error]
    await world.look()
    assert asks.room == Room(), "what was told before stands"


async def test_nothing_is_decided_by_what_was_seen_long_ago() -> None:
    world, asks = a_world()
    await world.look()
    assert asks.room == Room()
    world.now += 61
    world.api.fails["list Node"] = [Unreachable("timed out")]
    await world.look()
    assert asks.room == NOT_READ


async def test_what_is_gathered_is_of_one_time() -> None:
    """A list that takes long would else be the deadline that it is asked for."""
    world, asks = a_world()
    times = iter(range(10))
    world.ctx.now = lambda: datetime.fromtimestamp(next(times), UTC)
    await world.look()
    assert len(asks.times) == 2
    assert len(set(asks.times)) == 1


async def test_how_old_it_is_is_said() -> None:
    world, asks = a_world()
    ages = []
    for _ in range(3):
        await world.look()
        assert asks.given is not None
        ages.append(asks.given.age_seconds)
        world.now += 25
    assert ages == [0, 25, 50]


async def test_events_that_cannot_be_listed_are_none() -> None:
    world = World(parent())
    given: list[Inputs] = []

    def decide(inputs: Inputs) -> Decision:
        given.append(inputs)
        return Decision()

    world.ctx.decide = decide
    world.ctx.requirements = lambda inputs: Requirements(pod_events=() if inputs.pod_events else ("x-0",))
    world.api.fails["list Event"] = [ServerError("busy", code=503)]
    await world.look()
    (inputs,) = given
    assert inputs.pod_events is not None
    assert not inputs.pod_events.value.by_pod
