"""Until when requests come in here: minReplicas raised, autoscaling removed, replicas that serve alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llmservice_activator import targets
from llmservice_activator.services import Unknown
from llmservice_api.constants import LLMSERVICE

from tests.support.patience import PATIENCE, until
from tests.unit.activator.test_scaler_targets import PORT, World
from tests.unit.scaler_world import pod
from tests.unit.scaler_zero_world import CHAT, at_zero

RAISED = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}


async def test_a_service_whose_minimum_was_raised_at_zero_is_held_until_nothing_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And for a while longer: nodes learn later than others that a replica serves."""
    monkeypatch.setattr(targets, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(targets, "ENDING_SECONDS", 0.2)
    world = World()
    async with world.running(at_zero(scaling=RAISED, status={"holding": {"port": PORT, "idle": True}})):
        assert (world.told[CHAT].port, world.told[CHAT].refusal) == (PORT, None)
        world.waiting = 6
        began = asyncio.get_running_loop().time()
        world.see(pod("a"), at_zero(scaling=RAISED, replicas=1, version=12))
        await world.settled()
        assert len(world.told[CHAT].pods) == 1, "which answers what is held"
        await asyncio.sleep(0.3)
        assert CHAT in world.told
        world.waiting = 0
        await until(lambda: CHAT not in world.told)
        assert asyncio.get_running_loop().time() - began >= 0.2


AVAILABLE = {"conditions": [{"type": "Available", "status": "True"}]}
UNAVAILABLE = {"conditions": [{"type": "Available", "status": "False"}]}
READY, UNREADY = pod("a"), pod("a", ready=False)
ROUTES: dict[str, tuple[dict[str, Any], int, dict[str, Any], int, bool]] = {
    "a replica serves": (AVAILABLE, 1, READY, 0, False),
    "nothing is said of it yet": ({}, 1, READY, 0, True),
    "the operator has not seen it serve": (UNAVAILABLE, 1, READY, 0, True),
    "the last replica is to go": (AVAILABLE, 0, READY, 0, True),
    "it is lost, which the operator does not know yet": (AVAILABLE, 1, UNREADY, 0, True),
    "a rollout is about to end it": (AVAILABLE | {"rollout": {"gap": "x"}}, 1, READY, 0, True),
    "something is held": (AVAILABLE, 1, READY, 1, True),
}


@pytest.mark.parametrize("scaling", [{}, {"holding": {"rollouts": True}}], ids=["scaled", "held in rollouts"])
@pytest.mark.parametrize("case", ROUTES)
async def test_requests_are_forwarded_only_while_the_service_leads_here(
    case: str, scaling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a while longer, which nodes need. NetworkPolicies of the pods would be worth nothing otherwise."""
    monkeypatch.setattr(targets, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(targets, "ENDING_SECONDS", 0.3)
    status, replicas, found, waiting, is_routed = ROUTES[case]
    world = World()
    world.waiting = waiting
    made = at_zero(port=PORT, status=status, replicas=replicas, scaling=scaling)
    if scaling:
        del made["spec"]["scaling"]["autoscaling"]
    async with world.running(made, found):
        assert world.told[CHAT].is_routed
        if is_routed:
            await asyncio.sleep(0.5)
            assert world.told[CHAT].is_routed
        else:
            await until(lambda: not world.told[CHAT].is_routed)
        world.waiting = 0
        world.see(UNREADY)
        await world.settled()
        assert world.told[CHAT].is_routed, "at once: the operator's slices lead here soon"


@pytest.mark.parametrize("is_scaled", [True, False], ids=["replicas serve", "autoscaling was removed"])
async def test_requests_are_answered_until_none_came_for_a_while_and_not_for_ever(
    is_scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may follow the slices later than others; whoever knows the port must not keep it open."""
    monkeypatch.setattr(targets, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(targets, "ENDING_SECONDS", 0.3)
    monkeypatch.setattr(targets, "LONGEST_ENDING_SECONDS", 1.5)
    world, loop = World(), asyncio.get_running_loop()

    def is_answered() -> bool:
        return CHAT in world.told and world.told[CHAT].is_routed

    async def seconds(comes_for: float) -> float:
        async with world.running(at_zero(port=PORT, status=AVAILABLE), READY):
            began = loop.time()
            world.see(at_zero(port=PORT, status=AVAILABLE, replicas=1, version=11) if is_scaled else unscaled(1, 11))
            world.came = began + comes_for
            await world.settled()
            await until(lambda: not is_answered())
            return loop.time() - began

    assert await seconds(0.6) >= 0.9
    world = World()
    assert PATIENCE > await seconds(PATIENCE) >= 1.5


@pytest.mark.parametrize("is_scaled", [True, False], ids=["replicas serve", "autoscaling was removed"])
async def test_who_never_stops_asking_is_refused_in_the_end_and_what_is_held_is_answered(
    is_scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(targets, "ENDING_SECONDS", 0.1)
    monkeypatch.setattr(targets, "LONGEST_ENDING_SECONDS", 2.0)
    world = World()
    async with world.running(at_zero(port=PORT, status=AVAILABLE), READY), asyncio.timeout(PATIENCE):
        world.waiting = 1
        world.see(at_zero(port=PORT, status=AVAILABLE, replicas=1, version=11) if is_scaled else unscaled(1, 11))
        await world.settled()
        assert world.told[CHAT].is_routed
        while world.told[CHAT].is_routed:  # noqa: ASYNC110 - it is told after a time
            await asyncio.sleep(0.01)
        assert len(world.told[CHAT].pods) == 1, "which answers what is held"
        world.waiting = 0
        while not is_scaled and CHAT in world.told:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def unscaled(replicas: int, version: int, port: int = 0) -> dict[str, Any]:
    """Its autoscaling was removed at zero; the operator keeps the port until a replica serves."""
    made = at_zero(port=port, replicas=replicas, version=version)
    del made["spec"]["scaling"]["autoscaling"]
    return made


async def test_what_is_held_while_autoscaling_is_removed_goes_to_the_replica_that_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(targets, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(targets, "ENDING_SECONDS", 0.2)
    world = World()
    async with world.running(at_zero(port=PORT)):
        world.see(unscaled(0, 11, PORT))
        await world.settled()
        refusal = world.told[CHAT].refusal
        assert (world.told[CHAT].port, refusal and refusal.reason) == (PORT, "ScaledToZero")
        world.see(at_zero(port=PORT, version=12), unscaled(1, 13, PORT), pod("a", ready=False))
        world.waiting = 6
        await world.settled()
        assert (world.told[CHAT].refusal, world.told[CHAT].pods) == (None, ())
        began = asyncio.get_running_loop().time()
        world.see(pod("a", version=6), unscaled(1, 14))
        await world.settled()
        assert len(world.told[CHAT].pods) == 1, "which answers what is held"
        world.see(unscaled(1, 15))
        await asyncio.sleep(0.3)
        assert world.told[CHAT].is_routed
        world.waiting = 0
        await until(lambda: CHAT not in world.told)
        assert asyncio.get_running_loop().time() - began >= 0.2
        with pytest.raises(Unknown, match=r"no spec\.scaling\.autoscaling"):
            world.services.get(CHAT)
        world.services.deleted(LLMSERVICE, unscaled(1, 16))
        assert world.services.find(CHAT) is None


@pytest.mark.parametrize(
    "after", [at_zero(scaling=RAISED, version=12), at_zero(scaling=RAISED, replicas=1, version=12, uid="another")]
)
async def test_one_that_is_not_to_have_a_replica_ends_at_once(after: dict[str, Any]) -> None:
    world = World()
    async with world.running(at_zero(scaling=RAISED, status={"holding": {"port": PORT, "idle": True}})):
        world.waiting = 6
        world.see(after)
        await world.settled()
        assert CHAT not in world.told


async def test_a_service_that_was_shut_lets_nobody_in_at_its_end() -> None:
    """What says who may send requests could not be read; nobody may by the removal of its autoscaling either."""
    world = World()
    wrong = at_zero(port=PORT, scaling={"holding": {"from": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}})
    async with world.running(wrong, pod("a")):
        refusal = world.told[CHAT].refusal
        assert (refusal and refusal.reason, world.told[CHAT].pods) == ("InvalidSpec", ())
        world.see(unscaled(1, 12))
        await world.settled()
        assert CHAT not in world.told
