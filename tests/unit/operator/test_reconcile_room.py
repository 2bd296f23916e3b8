"""What is free on the nodes is read seldom, for the resource that is asked for, and not kept for nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from kubeloop.errors import KubeError, ServerError, TooManyRequests, Unreachable
from llmservice_operator.decision import (
    Decision,
    Inputs,
    Part,
    Requirements,
    RoomQuery,
)
from llmservice_operator.service.gather import NOT_READ
from llmservice_planner.room import Room

from tests.unit.reconcile_world import KEY, World, parent


class NeedsRoom:
    """Decisions that need what is free on the nodes, or do not, and keep what they are given."""

    def __init__(self) -> None:
        self.resource: str | None = "nvidia.com/gpu"
        self.is_needed = True
        self.is_only_shown = False
        self.given: Part[Room] | None = None
        self.times: list[datetime] = []
        self.world = World(parent())
        self.world.ctx.decide = self.decide

    def decide(self, inputs: Inputs) -> Decision | Requirements:
        self.times.append(inputs.now)
        if self.is_needed:
            asked = RoomQuery(self.resource, max_age_seconds=60.0, is_only_shown=self.is_only_shown)
            if isinstance(found := inputs.free_room(asked), Requirements):
                return found
        self.given = inputs.room
        return Decision()

    async def reconcile(self, after: float = 0.0) -> list[str]:
        """The requests of a pass after so many seconds."""
        self.world.now += after
        await self.world.reconcile()
        return self.world.calls()

    @property
    def room(self) -> Room:
        assert self.given is not None
        return self.given.value


async def test_what_was_read_is_used_for_a_minute_but_not_for_another_resource() -> None:
    made, reads = NeedsRoom(), ["list Node", "list Pod"]
    assert await made.reconcile() == reads
    assert await made.reconcile(after=59) == []
    assert made.given is not None
    assert made.given.age_seconds == 59
    made.resource = "nvidia.com/mig-3g.40gb"
    assert await made.reconcile() == reads
    assert await made.reconcile(after=60) == reads
    assert made.world.ctx.memories[KEY].room is not None
    made.is_needed = False
    await made.reconcile()
    assert made.world.ctx.memories[KEY].room is None


@pytest.mark.parametrize(
    "error", [Unreachable("timed out"), ServerError("busy", code=503), TooManyRequests("busy", code=429)]
)
async def test_nodes_that_cannot_be_listed_are_shown_as_they_were_and_decided_by_as_unknown(error: KubeError) -> None:
    made = NeedsRoom()
    made.is_only_shown = True
    made.world.api.fails["list Node"] = [error]
    await made.reconcile()
    assert made.room == NOT_READ
    await made.reconcile()
    assert made.room == Room(), "the next pass asks again"
    made.world.api.fails["list Pod"] = [error]
    await made.reconcile(after=61)
    assert made.room == Room(), "what was read before"
    made.is_only_shown = False
    made.world.api.fails["list Node"] = [error]
    await made.reconcile(after=61)
    assert made.room == NOT_READ, "nothing is decided by what was seen long ago"


async def test_what_is_gathered_is_of_one_time() -> None:
    """A list that takes long would else be the deadline that it is asked for."""
    made, times = NeedsRoom(), iter(range(10))
    made.world.ctx.now = lambda: datetime.fromtimestamp(next(times), UTC)
    await made.reconcile()
    assert (len(made.times), len(set(made.times))) == (2, 1)


async def test_events_that_cannot_be_listed_are_none() -> None:
    world = World(parent())
    given: list[Inputs] = []

    def decide(inputs: Inputs) -> Decision | Requirements:
        if inputs.pod_events is None:
            return Requirements(pod_events=("x-0",))
        given.append(inputs)
        return Decision()

    world.ctx.decide = decide
    world.api.fails["list Event"] = [ServerError("busy", code=503)]
    await world.reconcile()
    (inputs,) = given
    assert inputs.pod_events is not None
    assert not inputs.pod_events.value.by_pod
