"""Events that say why replicas changed: one for a change, with the reason of the answer that led to it."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from kubeloop.errors import AlreadyExists, Forbidden, KubeError
from kubeloop.resources import Key
from llmservice_activator import events
from llmservice_activator.answers import ScalingAnswer
from llmservice_activator.demand import ReplicaBounds, desired
from llmservice_activator.events import ScalingEvents
from llmservice_activator.services import Service

from tests.support.patience import PATIENCE
from tests.unit.activator.test_scaler_demand import load
from tests.unit.activator.test_scaler_schedule import autoscaling

CHAT = Key("ns", "chat")
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def service(replicas: int, generation: int = 1, key: Key = CHAT, uid: str = "u") -> Service:
    return Service(key, uid, generation, "77", replicas, replicas, 10, autoscaling())


def answer(replicas: int, in_flight: int, at: float = 100.0, key: Key = CHAT, uid: str = "u") -> ScalingAnswer:
    known = load(replicas, in_flight)
    return ScalingAnswer(service(replicas, key=key, uid=uid), known, desired(known, ReplicaBounds(1, 8, 8)), at)


class World:
    def __init__(self, *answers: ScalingAnswer) -> None:
        self.answers = {each.service.key: each for each in answers}
        self.written: list[dict[str, Any]] = []
        self.fails: list[KubeError] = []
        self.dropped, self.time, self.calls = 0, 101.0, 0

    def events(self, identity: str = "one") -> ScalingEvents:
        return ScalingEvents(
            self.create,
            self.answers.get,
            identity=identity,
            dropped=self.drop,
            now=lambda: NOW,
            clock=lambda: self.time,
        )

    async def create(self, event: dict[str, Any]) -> None:
        self.calls += 1
        if self.fails:
            raise self.fails.pop(0)
        if event["metadata"]["name"] in {each["metadata"]["name"] for each in self.written}:
            raise AlreadyExists("there is one", code=409)
        self.written.append(event)

    def drop(self) -> None:
        self.dropped += 1

    async def write(self, *all_: ScalingEvents, calls: int) -> None:
        """Until the API server was asked so often."""
        tasks = [asyncio.ensure_future(each.run()) for each in all_]
        async with asyncio.timeout(PATIENCE):
            while self.calls < calls:  # noqa: ASYNC110 - a queue that is emptied sends no event
                await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_reason_is_that_of_the_answer() -> None:
    world = World(answer(1, 37))
    made = world.events()
    made.changed(service(1), service(4, generation=2))
    await world.write(made, calls=1)
    (event,) = world.written
    assert event["message"] == "Replicas 1 → 4: 37 requests in flight, 10 for each."
    assert (event["type"], event["reason"]) == ("Normal", "Scaled")
    assert event["involvedObject"]["uid"] == "u"
    assert event["metadata"]["namespace"] == "ns"
    assert event["firstTimestamp"] == "2026-11-23T12:00:00Z"


async def test_two_scalers_make_one_event_of_a_change() -> None:
    world = World(answer(1, 37))
    both = world.events("one"), world.events("two")
    for each in both:
        each.changed(service(1), service(4, generation=2))
    await world.write(*both, calls=2)
    assert len(world.written) == 1
    assert world.dropped == 0
    # The next change is another one.
    world.time, world.answers[CHAT] = 120.0, answer(4, 0, at=119.0)
    both[0].changed(service(4, 2), service(3, generation=3))
    await world.write(*both, calls=3)
    assert [each["message"] for each in world.written][1].startswith("Replicas 4 → 3: 0 requests in flight")


@pytest.mark.parametrize(
    ("known", "before", "after"),
    [
        (None, 1, 4),
        (answer(1, 37, at=100.0 - events.RECENT_SECONDS), 1, 4),  # too long ago
        (answer(1, 37, uid="earlier"), 1, 4),  # of an earlier service of this name
        (answer(4, 37), 4, 1),  # a user set fewer
        (answer(4, 0), 4, 8),  # a user set more
        (answer(4, 40), 4, 5),  # nothing was to change
    ],
)
async def test_what_no_answer_led_to_has_no_event(known: ScalingAnswer | None, before: int, after: int) -> None:
    world = World(*([known] if known else []))
    made = world.events()
    made.changed(service(before), service(after, generation=2))
    other = answer(1, 37, key=Key("ns", "other"))
    world.answers[other.service.key] = other
    made.changed(other.service, dataclasses.replace(other.service, replicas=4, generation=2))
    await world.write(made, calls=1)
    assert [each["involvedObject"]["name"] for each in world.written] == ["other"]


async def test_events_of_one_service_and_those_that_wait_are_bounded() -> None:
    many = [answer(1, 37, key=Key("ns", f"s{i}")) for i in range(events.MAX_QUEUED + 10)]
    world = World(answer(1, 37), *many)
    made = world.events()
    for generation in range(2, 12):
        made.changed(service(1), service(4, generation))
    assert world.dropped == 9
    for each in many:
        made.changed(each.service, dataclasses.replace(each.service, replicas=4, generation=2))
    assert world.dropped == 9 + 11
    await world.write(made, calls=events.MAX_QUEUED)
    assert len(world.written) == events.MAX_QUEUED


async def test_a_refused_event_is_counted_and_the_next_is_written() -> None:
    other = answer(1, 37, key=Key("ns", "other"))
    world = World(answer(1, 37), other)
    world.fails.append(Forbidden("no", code=403))
    made = world.events()
    made.changed(service(1), service(4, generation=2))
    made.changed(other.service, dataclasses.replace(other.service, replicas=4, generation=2))
    await world.write(made, calls=2)
    assert world.dropped == 1
    assert len(world.written) == 1
