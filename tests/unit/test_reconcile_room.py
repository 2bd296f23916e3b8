"""What is free on the nodes is read seldom, for the resource that is asked for, and not kept for nothing."""

from __future__ import annotations

from datetime import datetime

from llmservice_operator.api.service import LLMService
from llmservice_operator.build.settings import Settings
from llmservice_operator.control.decision import Decision, RoomFor
from llmservice_operator.observe.observed import Observed

from tests.unit.reconcile_world import KEY, World, parent


class Asks:
    """A decision that wants to know what is free, or does not."""

    def __init__(self) -> None:
        self.resource: str | None = "nvidia.com/gpu"
        self.wants = True

    def __call__(self, service: LLMService, observed: Observed, settings: Settings, now: datetime) -> Decision:
        if self.wants and observed.room is None:
            return Decision(lack=RoomFor(self.resource, may_be_old=60.0))
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
