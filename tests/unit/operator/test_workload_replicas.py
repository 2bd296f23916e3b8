"""A replica may be several pods: what decides counts replicas, as the kind of the workload groups them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from llmservice_operator.behaviours.holding import is_listed
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.workload import kinds
from llmservice_operator.workload.deployment import DEPLOYMENT
from llmservice_operator.workload.port import Replica

from tests.unit.decide_world import World, a_pod, serving


def pairs(pods: Iterable[PodFacts]) -> Iterator[Replica]:
    """As a kind that runs each replica on two nodes, of which the first one answers."""
    there = [replace(pod, has_api=number % 2 == 0) for number, pod in enumerate(pods)]
    return (Replica(tuple(there[n : n + 2])) for n in range(0, len(there), 2))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A service that serves with one replica of two pods, of which the first one gets the requests."""
    paired = replace(DEPLOYMENT, replicas=pairs)
    monkeypatch.setattr(kinds, "DEPLOYMENT", paired)
    monkeypatch.setattr(kinds, "WORKLOADS", (paired,))
    found = serving()
    found.pods["x-1"] = a_pod("x-1", found.revision(), ready=True)
    found.unlisted = {"x-1"}
    found.step()
    return found


def ready_of(world: World) -> tuple[str, str]:
    world.unsettled_for = 60.0
    world.step()
    condition = next(c for c in world.status["conditions"] if c["type"] == "Ready")
    return condition["status"], world.status["ready"]


def test_two_pods_of_one_replica_are_one(world: World) -> None:
    assert [len(each.pods) for each in world.observed().replicas] == [2]
    assert ready_of(world) == ("True", "1/1")


@pytest.mark.parametrize("name", ["x-0", "x-1"])
def test_a_replica_is_ready_with_its_last_pod(world: World, name: str) -> None:
    world.pods[name] = a_pod(name, world.revision(), ready=False)
    assert ready_of(world) == ("False", "0/1")


def test_a_replica_whose_second_pod_goes_is_going(world: World) -> None:
    assert is_listed(world.observed())
    world.pods["x-1"]["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert not is_listed(world.observed())
