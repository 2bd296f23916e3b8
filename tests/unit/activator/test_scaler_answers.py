"""From what a scaler knows and reads to its answer: what is not known scales nothing down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubeloop.resources import POD, Key
from llmservice_activator.answers import CACHE_SECONDS, USE_REPORT_SECONDS, LoadReader, ScalingAnswers
from llmservice_activator.metrics import Metrics
from llmservice_activator.services import Services, Unknown
from llmservice_api.constants import API_SERVER_LABEL, LLMSERVICE
from llmservice_api.holding import LastUse
from llmservice_operator.readers.pod_port import Requests, Unreadable

from tests.unit.activator.test_scaler_services import of_a_group
from tests.unit.scaler_world import pod, service

CHAT = Key("ns", "chat")
MORNING = {"start": "0 8 * * *", "end": "0 9 * * *", "minReplicas": 4}


class World:
    """Services, pods and what these answer; time stands still."""

    def __init__(self, *objects: dict[str, Any], answers: dict[str, int] | None = None) -> None:
        self.time, self.wall = 100.0, datetime(2026, 11, 23, 12, tzinfo=UTC)
        self.requests = answers or {}
        self.last: dict[str, LastUse] = {}
        self.before: Callable[[], Any] = lambda: None
        self.reads = 0
        self.metrics = Metrics()
        self.services = Services(now=lambda: self.wall)
        for obj in objects:
            self.services.updated(POD if obj["kind"] == "Pod" else LLMSERVICE, obj)
        reader = LoadReader(self.read)
        self.answers = ScalingAnswers(
            self.services, reader, observe=self.metrics.observe, now=lambda: self.wall, clock=lambda: self.time
        )

    async def read(self, address: str) -> Requests:
        self.reads += 1
        self.before()
        await asyncio.sleep(0)
        if address not in self.requests:
            raise Unreadable("no answer")
        return Requests(self.requests[address], None, self.last.get(address))

    async def replicas(self) -> int:
        return (await self.answers.get(CHAT)).desired.replicas

    def series(self, name: str) -> list[str]:
        text = self.metrics.exposition().decode()
        return [line for line in text.splitlines() if line.startswith(f"llmservice_scaler_{name}{{")]


async def test_the_last_use_is_the_latest_of_all_pods_and_stays_when_they_go() -> None:
    world = World(service(autoscaling=ON_DEMAND), A, B, answers={"10.0.0.1": 0, "10.0.0.2": 0})
    now = world.wall.timestamp()
    chat, embed = "/v1/chat/completions", "/v1/embeddings"
    ahead = {"10.0.0.1": LastUse(now + 9e9, "POST", chat)}
    steps: list[tuple[dict[str, LastUse], LastUse | None]] = [
        ({}, None),  # pods of an earlier version, or not used yet
        ({"10.0.0.1": LastUse(now - 90, "POST", chat)}, LastUse(now - 90, "POST", chat)),
        ({"10.0.0.1": LastUse(now - 90, "POST", chat), "10.0.0.2": LastUse(now - 9, "POST", embed)},
         LastUse(now - 9, "POST", embed)),
        ({"10.0.0.1": LastUse(now - 90, "POST", chat)}, LastUse(now - 9, "POST", embed)),
        ({}, LastUse(now - 9, "POST", embed)),
        (ahead, LastUse(now + 5 * CACHE_SECONDS, "POST", chat)),  # its clock is ahead
        (ahead, LastUse(now + 5 * CACHE_SECONDS, "POST", chat)),
    ]  # fmt: skip
    for last, expected in steps:
        world.last = last
        await world.replicas()
        assert world.answers.last_uses({}).get(CHAT) == expected
        world.time += CACHE_SECONDS
        world.wall += timedelta(seconds=CACHE_SECONDS)


async def test_the_last_use_is_of_a_service_that_may_be_at_zero_and_of_pods_that_were_asked_lately() -> None:
    world = World(service(autoscaling=ON_DEMAND), A, answers={"10.0.0.1": 0})
    now = world.wall.timestamp()
    at_pod, held = LastUse(now - 5, "POST", "/v1/embeddings"), {CHAT: LastUse(now - 90, "POST", "/score")}
    world.last = {"10.0.0.1": at_pod}
    await world.replicas()
    assert world.answers.last_uses(held) == {CHAT: at_pod}
    world.time += USE_REPORT_SECONDS
    assert world.answers.last_uses(held) == held
    world.time += CACHE_SECONDS
    world.last = {}
    world.services.updated(LLMSERVICE, service(autoscaling=ON_DEMAND, version=11, uid="another"))
    await world.replicas()
    assert world.answers.last_uses({}) == {}, "what was there before under the name"
    world.services.updated(LLMSERVICE, service(version=12, uid="another"))
    assert world.answers.last_uses(held) == {}, "it always has a replica"
    world.answers.forget(CHAT)
    assert world.answers.last_uses({}) == {}


ON_DEMAND = {"minReplicas": 0, "maxReplicas": 8}
A, B = pod("a", address="10.0.0.1"), pod("b", address="10.0.0.2")
STARTING = pod("b", address="10.0.0.2", ready=False)
DAILY = {"maxReplicas": 8, "schedule": [MORNING]}


@pytest.mark.parametrize(
    ("objects", "requests", "replicas"),
    [
        ([service(replicas=2), A, B], {"10.0.0.1": 3, "10.0.0.2": 3}, 1),
        ([service(replicas=2), A, B], {"10.0.0.1": 3}, 2),
        ([service(replicas=2), A, B], {"10.0.0.1": 40}, 3),
        ([service(replicas=2), A, STARTING], {"10.0.0.1": 3, "10.0.0.2": 0}, 2),
        ([service(replicas=2), A, STARTING], {"10.0.0.1": 20}, 2),
        ([service(replicas=2)], {}, 2),
        ([service(replicas=2, concurrency=None), A, B], {"10.0.0.1": 90, "10.0.0.2": 90}, 2),
        ([service(replicas=2, autoscaling=DAILY), A, B], {"10.0.0.1": 3, "10.0.0.2": 3}, 1),
        # Pods of hosts' networks share an address: it is counted once.
        ([service(replicas=2), A, pod("b", address="10.0.0.1")], {"10.0.0.1": 17}, 2),
    ],
)
async def test_answers(objects: list[dict[str, Any]], requests: dict[str, int], replicas: int) -> None:
    assert await World(*objects, answers=requests).replicas() == replicas


async def test_the_bounds_are_those_of_the_time() -> None:
    world = World(service(autoscaling=DAILY), A, answers={"10.0.0.1": 0})
    assert await world.replicas() == 1
    world.wall, world.time = datetime(2026, 11, 24, 8, 30, tzinfo=UTC), 200.0
    assert await world.replicas() == 4


async def test_a_replica_whose_pods_all_answer_counts_once_and_all_its_requests() -> None:
    pods = [
        of_a_group(name, rank, address=address, **{API_SERVER_LABEL: "true"})
        for rank, (name, address) in enumerate((("a", "10.0.0.1"), ("b", "10.0.0.2")))
    ]
    world = World(service(replicas=2), *pods, answers={"10.0.0.1": 20, "10.0.0.2": 28})
    assert await world.replicas() == 2, "three are needed, and one of two is not ready yet"


async def test_an_answer_is_kept_for_a_second_and_for_the_same_object_only() -> None:
    world = World(service(), A, answers={"10.0.0.1": 3})
    assert await world.replicas() == 1
    world.requests["10.0.0.1"] = 17
    assert await world.replicas() == 1
    world.time += CACHE_SECONDS
    assert await world.replicas() == 2
    world.services.updated(LLMSERVICE, service(version=11, concurrency=1))
    assert await world.replicas() == 8
    assert world.reads == 3


async def test_a_caller_that_goes_away_takes_the_answer_from_no_other() -> None:
    world = World(service(), A, answers={"10.0.0.1": 17})
    first = asyncio.ensure_future(world.answers.get(CHAT))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(world.answers.get(CHAT))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).desired.replicas == 2
    assert first.cancelled()
    assert world.reads == 1


async def test_a_service_that_goes_while_its_pods_are_read_has_no_answer() -> None:
    world = World(service(), A, answers={"10.0.0.1": 17})
    world.before = lambda: world.services.deleted(LLMSERVICE, service())
    with pytest.raises(Unknown, match="there is no LLMService ns/chat"):
        await world.replicas()
    assert world.series("desired_replicas") == []


async def test_an_unexpected_error_is_every_caller_s_and_not_kept() -> None:
    world = World(service(), A, answers={"10.0.0.1": 17})

    def fail() -> None:
        raise ZeroDivisionError

    world.before = fail
    results = await asyncio.gather(world.replicas(), world.replicas(), return_exceptions=True)
    assert [type(each) for each in results] == [ZeroDivisionError] * 2
    world.before = lambda: None
    assert await world.replicas() == 2


async def test_the_metrics_say_what_was_found() -> None:
    world = World(service(replicas=2), A, B, answers={"10.0.0.1": 40})
    await world.replicas()
    labels = '{namespace="ns",service="chat"}'
    assert world.series("desired_replicas") == [f"llmservice_scaler_desired_replicas{labels} 3.0"]
    assert world.series("demand_replicas") == [f"llmservice_scaler_demand_replicas{labels} 3.0"]
    assert world.series("requests_in_flight") == [f"llmservice_scaler_requests_in_flight{labels} 40.0"]
    assert world.series("unreadable_pods") == [f"llmservice_scaler_unreadable_pods{labels} 1.0"]
    world.services.updated(LLMSERVICE, service(version=11, replicas=2, concurrency=None))
    await world.replicas()
    assert world.series("demand_replicas") == []


async def test_the_metrics_of_an_answer_end_two_minutes_after_it() -> None:
    """KEDA asks another activator since, whose figures are those of now."""
    world = World(service(replicas=2), A, answers={"10.0.0.1": 40})
    await world.replicas()
    world.metrics.expire(world.time + 119)
    assert world.series("desired_replicas")
    world.time += 60
    await world.replicas()
    world.metrics.expire(world.time + 119)
    assert world.series("desired_replicas"), "of the later answer"
    world.metrics.expire(world.time + 121)
    names = ("desired_replicas", "demand_replicas", "requests_in_flight", "unreadable_pods")
    assert [world.series(name) for name in names] == [[], [], [], []]
    await world.replicas()
    world.time += 2
    await world.replicas()
    assert world.series("desired_replicas")
