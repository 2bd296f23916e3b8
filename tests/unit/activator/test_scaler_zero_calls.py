"""What KEDA is told of a service that may be at zero: by the pods' counters, and by what all activators hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from llmservice_activator import server
from llmservice_activator.answers import CACHE_SECONDS

from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.unit.activator.test_scaler_peers import ONE, TWO, slice_of
from tests.unit.api_server import ApiServer
from tests.unit.scaler_world import Keda, World, certificates, pod, request, running, service
from tests.unit.scaler_zero_world import CHAT, ask, at_zero, follow_scale

__all__ = ["certificates"]

ACTIVE = server.MESSAGES["IsActiveResponse"]


async def is_active(keda: Keda) -> bool:
    found: bool = ACTIVE.FromString(await keda.call("IsActive", request("IsActive"))).result
    return found


class Clock:
    """The monotonic clock of answers, which a test moves."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time

    def move(self, seconds: float) -> None:
        self.time += seconds


def with_clock(world: World) -> Clock:
    clock = Clock()
    world.scaler._answers._clock = clock
    world.scaler.peers._clock = clock
    return clock


async def test_a_service_at_zero_is_idle_until_a_request_is_held(certificates: Path) -> None:
    port = free_port()
    async with running(ApiServer(at_zero(port=port)), certificates) as world, world.keda() as keda:
        clock = with_clock(world)
        assert not await is_active(keda)
        assert await keda.replicas() == 0
        stream = keda.stream()
        told = asyncio.ensure_future(stream.read())
        await world.until(lambda: world.scaler.holding.is_listening("uid-chat", port))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(told), 0.1)
        asked = asyncio.create_task(ask(port))
        assert ACTIVE.FromString(await asyncio.wait_for(told, PATIENCE)).result, "without being asked"
        await world.until(lambda: world.scaler.holding.held(CHAT).requests == 1)
        clock.move(CACHE_SECONDS)
        assert await is_active(keda)
        assert await keda.replicas() == 1
        asked.cancel()
        await world.until(lambda: not world.scaler.holding.held(CHAT).requests)


async def test_the_last_replica_goes_after_idle_seconds_without_a_request(certificates: Path) -> None:
    api = ApiServer(at_zero(replicas=1, idle=60), pod("a"))
    async with running(api, certificates) as world, world.keda() as keda:
        clock = with_clock(world)
        world.in_flight["10.0.0.1"], world.begun["10.0.0.1"] = 0, 7
        assert await is_active(keda)
        clock.move(59)
        world.begun["10.0.0.1"] = 8
        assert await is_active(keda), "a short request, which no look at what is in flight sees"
        clock.move(59)
        assert (await is_active(keda), await keda.replicas()) == (True, 1)
        clock.move(1)
        assert (await is_active(keda), await keda.replicas()) == (False, 0)
        # A pod that does not say it, or does not answer, keeps it.
        clock.move(1)
        world.begun["10.0.0.1"] = None
        assert await is_active(keda)
        clock.move(1)
        world.in_flight["10.0.0.1"] = None
        assert (await is_active(keda), await keda.replicas()) == (True, 1)


@pytest.mark.parametrize(
    ("replicas", "peer", "expected"),
    [
        (0, {CHAT: 40}, (True, 3)),
        (0, {}, (False, 0)),
        (0, None, (False, 0)),  # nobody is woken for an activator that does not answer
        (1, {CHAT: 40}, (True, 3)),
        (1, None, (True, 1)),
    ],
)
async def test_what_another_activator_holds_counts(
    replicas: int, peer: Any, expected: tuple[bool, int], certificates: Path
) -> None:
    api = ApiServer(
        at_zero(replicas=replicas, idle=60), pod("a") if replicas else at_zero("other"), slice_of("a", ONE, TWO)
    )
    async with (
        running(api, certificates, service="activator", namespace="system", address="10.0.0.1") as world,
        world.keda() as keda,
    ):
        clock = with_clock(world)
        await world.until(lambda: world.scaler.peers.activators == 2)
        assert any("endpointslices" in path for _, path, *_ in api.requests)
        world.in_flight["10.0.0.1"] = 0
        world.peers["10.0.0.2"] = {}
        await keda.replicas()
        clock.move(100)
        if peer is None:
            del world.peers["10.0.0.2"]
        else:
            world.peers["10.0.0.2"] = peer
        assert (await is_active(keda), await keda.replicas()) == expected
        # One that is gone says nothing any more.
        await world.send("MODIFIED", slice_of("a", ONE))
        await world.until(lambda: world.scaler.peers.activators == 1)


async def test_a_service_that_keeps_a_replica_is_active_without_a_look_at_pods_or_peers(certificates: Path) -> None:
    api = ApiServer(service(), pod("a"), slice_of("a", ONE, TWO))
    async with (
        running(api, certificates, service="activator", namespace="system") as world,
        world.keda() as keda,
    ):
        await world.until(lambda: world.scaler.peers.activators == 2)
        world.in_flight["10.0.0.1"] = 5
        assert await is_active(keda)
        assert world.reads == []
        assert await keda.replicas() == 1, "an activator that does not answer holds nothing of it"


async def test_the_event_says_that_a_request_woke_it(certificates: Path) -> None:
    port = free_port()
    api = ApiServer(at_zero(port=port))
    events: list[dict[str, Any]] = []
    api.then["event Scaled"] = events.append
    async with running(api, certificates) as world:
        follow_scale(world)
        await world.until(lambda: world.scaler.holding.is_listening("uid-chat", port))
        asked = asyncio.create_task(ask(port))
        await world.until(lambda: len(events) == 1)
        assert events[0]["message"] == "Replicas 0 → 1: a request came while no replica served; it is held."
        assert (events[0]["reason"], events[0]["involvedObject"]["name"]) == ("Scaled", "chat")
        asked.cancel()
        await world.until(lambda: not world.scaler.holding.held(CHAT).requests)
