"""What is free on the nodes is read seldom, for the resource that is asked for, and not kept for nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.settings import Settings
from llmservice_operator.control.reconcile import NOT_SEEN
from llmservice_operator.decide.decision import Decision, EventsOf, RoomFor
from llmservice_operator.kube.errors import KubeError, ServerError, TooMany, Unreachable
from llmservice_operator.observe.observed import Observed
from llmservice_operator.planner.room import Room

from tests.unit.reconcile_world import KEY, World, parent


class Asks:
    """A decision that wants to know what is free, or does not."""

    def __init__(self) -> None:
        self.resource: str | None = "nvidia.com/gpu"
        self.wants = True
        self.is_only_told = False
        self.given: Room | None = None
        self.times: list[datetime] = []

    def __call__(self, service: LLMService, observed: Observed, settings: Settings, now: datetime) -> Decision:
        self.times.append(now)
        if self.wants and observed.room is None:
            return Decision(lack=RoomFor(self.resource, may_be_old=60.0, is_only_told=self.is_only_told))
        self.given = observed.room
        return Decision()


def a_world() -> tuple[World, Asks]:
    world, asks = World(parent()), Asks()
    world.ctx.decide = asks
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
    asks.is_only_told = True
    world.api.fails["list Node"] = [error]
    await world.look()
    assert asks.given == NOT_SEEN
    await world.look()
    assert asks.given == Room(), "the next look asks again"
    world.now += 61
    world.api.fails["list Pod"] = [error]
    await world.look()
    assert asks.given == Room(), "what was told before stands"


async def test_nothing_is_decided_by_what_was_seen_long_ago() -> None:
    world, asks = a_world()
    await world.look()
    assert asks.given == Room()
    world.now += 61
    world.api.fails["list Node"] = [Unreachable("timed out")]
    await world.look()
    assert asks.given == NOT_SEEN


async def test_all_rounds_of_a_decision_are_at_one_time() -> None:
    """A list that takes long would else be the deadline that it is asked for."""
    world, asks = a_world()
    times = iter(range(10))
    world.ctx.now = lambda: datetime.fromtimestamp(next(times), UTC)
    await world.look()
    assert len(asks.times) == 2
    assert len(set(asks.times)) == 1


async def test_events_that_cannot_be_listed_are_none() -> None:
    world = World(parent())
    given: list[Observed] = []

    def decide(service: LLMService, observed: Observed, settings: Settings, now: datetime) -> Decision:
        if observed.pod_events is None:
            return Decision(lack=EventsOf(("x-0",)))
        given.append(observed)
        return Decision()

    world.ctx.decide = decide
    world.api.fails["list Event"] = [ServerError("busy", code=503)]
    await world.look()
    (seen,) = given
    assert seen.pod_events is not None
    assert not seen.pod_events.by_pod
