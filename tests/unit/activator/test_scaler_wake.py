"""Replicas 0 to 1 for requests that are held: once, for this very service, and with patience where it fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kubeloop.errors import Forbidden, KubeError, NotFound, ServerError
from llmservice_activator.services import Services
from llmservice_activator.wake import ATTEMPTS, LONGEST_PAUSE, ReplicaStarter
from llmservice_api.constants import LLMSERVICE

from tests.unit.api_server import ApiServer, Connection
from tests.unit.scaler_zero_world import CHAT, NOON, at_zero


class World:
    """A wake of the simulated API server's services, as a watch brought them."""

    def __init__(self, stored: dict[str, Any] | None = None, seen: dict[str, Any] | None = None) -> None:
        stored = stored or at_zero()
        self.api = ApiServer(stored)
        self.services = Services(now=lambda: NOON)
        self.services.updated(LLMSERVICE, seen or stored)
        self.results: list[str] = []
        self.time = 100.0
        self.wake = ReplicaStarter(Connection(self.api), self.services, self.results.append, lambda: self.time)

    async def woken(self, times: int = 1) -> list[str]:
        for _ in range(times):
            self.wake(CHAT)
        for _ in range(50):
            await asyncio.sleep(0)
        return self.results

    @property
    def obj(self) -> dict[str, Any]:
        obj = self.api.find("LLMService", "chat")
        assert obj is not None
        return obj

    @property
    def replicas(self) -> int:
        found: int = self.obj["spec"]["scaling"]["replicas"]
        return found

    def written(self, _: object) -> None:
        """Somebody else writes it."""
        self.api.put(self.obj, annotations={"n": str(len(self.api.calls))})


async def test_it_is_done_once_however_many_are_held() -> None:
    world = World()
    assert await world.woken(times=100) == ["woken"]
    assert world.replicas == 1
    assert world.api.calls == ["get LLMService", "patch LLMService"]
    service = world.services.get(CHAT)
    assert world.wake.has_started(service)
    assert not world.wake.has_started(service), "one Event for one wake"


@pytest.mark.parametrize(
    ("stored", "seen"),
    [
        (at_zero(replicas=1), at_zero(replicas=0)),  # the other activator, or KEDA
        (at_zero(uid="second"), at_zero()),  # made anew, which the watch has yet to bring
    ],
)
async def test_what_is_not_at_zero_any_more_is_left_alone(stored: dict[str, Any], seen: dict[str, Any]) -> None:
    world = World(stored, seen)
    assert await world.woken() == ["already"]
    assert world.api.calls == ["get LLMService"]
    assert not world.wake.has_started(world.services.get(CHAT))


@pytest.mark.parametrize("replicas", [1, 3])
async def test_with_replicas_nothing_is_asked(replicas: int) -> None:
    world = World(at_zero(replicas=replicas))
    assert await world.woken() == []
    assert world.api.calls == []


async def test_a_zero_that_is_not_autoscalings_is_left_alone() -> None:
    held = at_zero(scaling={"holding": {"rollouts": True}})
    del held["spec"]["scaling"]["autoscaling"]
    world = World(held)
    assert world.services.find(CHAT) is not None
    assert await world.woken() == []
    assert (world.api.calls, world.replicas) == ([], 0)


async def test_somebody_who_writes_at_the_same_time_delays_nothing() -> None:
    world = World()
    world.api.then["get LLMService"] = lambda scale: world.written(scale) if len(world.api.calls) < 5 else None
    assert await world.woken() == ["woken"]
    assert world.replicas == 1
    assert world.api.calls == ["get LLMService", "patch LLMService"] * 3


async def test_a_change_from_zero_by_somebody_else_is_not_overwritten() -> None:
    world = World()
    world.api.then["get LLMService"] = lambda _: world.api.put(at_zero(replicas=4), resourceVersion="77")
    assert await world.woken() == ["already"]
    assert world.replicas == 4


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("get LLMService", Forbidden("no", code=403)),
        ("get LLMService", NotFound("none", code=404)),
        ("patch LLMService", ServerError("away", code=500)),
    ],
)
async def test_a_failure_is_counted_and_tried_again_after_growing_pauses(call: str, error: KubeError) -> None:
    world = World()
    world.api.fails[call] = [error] * 8
    pauses = []
    for _ in range(8):
        began, before = world.time, len(world.results)
        while len(await world.woken()) == before:
            world.time += 0.5
        pauses.append(world.time - began)
    assert world.results == ["failed"] * 8
    assert pauses == [0, 1, 2, 4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE]
    assert not world.wake.has_started(world.services.get(CHAT))
    world.time += LONGEST_PAUSE
    assert (await world.woken())[-1] == "woken"


async def test_one_that_is_always_written_by_others_is_given_up_for_a_while() -> None:
    world = World()
    world.api.then["get LLMService"] = world.written
    assert await world.woken() == ["failed"]
    assert world.api.calls.count("patch LLMService") == ATTEMPTS


async def test_stop_ends_what_is_in_work() -> None:
    world = World()
    world.wake(CHAT)
    await world.wake.stop()
    assert world.results == []
    assert world.replicas == 0
