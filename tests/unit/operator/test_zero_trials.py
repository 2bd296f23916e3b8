"""Activators that are not reached through the ClusterIP are tried with the service's requests, ever less often."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from llmservice_api.holding import Activator, HoldingReport, PortClaim
from llmservice_operator.behaviours.holding import LONGEST_TRIAL_PAUSE, SPREAD_LIMIT_SECONDS, trial_slices

from tests.unit.operator.test_reconcile_zero import LISTENING, ONE, SLICE, ZeroWorld, serving
from tests.unit.reconcile_world import KEY

BEGINNINGS = [0, 60, 180, 420, 900, 1860, 3660, 5460]
"""Seconds: pauses of 1, 2, 4, 8, 16, 30, 30 minutes."""


def test_when_slices_are_tried() -> None:
    tried = [second for second in range(5470) if trial_slices(second)[0]]
    assert tried == [begin + n for begin in BEGINNINGS for n in range(int(SPREAD_LIMIT_SECONDS))]


@pytest.mark.parametrize("second", [0, 3, 10, 59, 60, 70, 100, 4000, 10**6])
def test_in_how_many_seconds_that_changes(second: int) -> None:
    is_tried, change_in = trial_slices(second)
    assert 0 < change_in <= LONGEST_TRIAL_PAUSE
    assert trial_slices(second + change_in)[0] != is_tried
    assert trial_slices(second + change_in - 0.5)[0] == is_tried


async def unreached() -> tuple[ZeroWorld, float]:
    """To go to zero, and when that began."""
    world = await serving()
    world.reports[ONE.address] = LISTENING
    world.scale(0)
    return world, world.now


async def trials(world: ZeroWorld, start: float, seconds: float) -> list[float]:
    """Seconds from the start at which slices were made, while so many passed."""
    found, was_made, end = [], False, world.now + seconds
    while world.now < end:
        then = await world.settle()
        is_made = world.stored("EndpointSlice", SLICE) is not None
        if is_made and not was_made:
            found.append(world.now - start)
        was_made = is_made
        assert then.after is not None
        world.now += then.after
    return found


async def test_each_pause_is_twice_as_long_as_the_one_before() -> None:
    world, start = await unreached()
    found = await trials(world, start, 1000.0)
    assert [round(each) for each in found] == pytest.approx(BEGINNINGS[:5], abs=1)
    assert world.deployed() == 1


def another_activator(world: ZeroWorld) -> None:
    world.activators = (ONE, Activator("10.1.0.3"))
    world.reports["10.1.0.3"] = HoldingReport(is_listening=True, is_reachable=True)


def another_port(world: ZeroWorld) -> None:
    world.ctx.memories[KEY].claimed = (world.now, PortClaim(20_000))


def another_generation(world: ZeroWorld) -> None:
    world.edit({"endpoint": {"port": 9000}})


CHANGES: dict[str, Callable[[ZeroWorld], None]] = {
    "activators": another_activator,
    "port": another_port,
    "generation": another_generation,
}


@pytest.mark.parametrize("case", CHANGES)
async def test_a_change_is_tried_at_once(case: str) -> None:
    world, start = await unreached()
    await trials(world, start, 250.0)
    CHANGES[case](world)
    found = await trials(world, world.now, 100.0)
    assert [round(each) for each in found] == pytest.approx([0, 60], abs=1)


async def test_once_it_is_reached_the_last_replica_goes_in_the_next_trial() -> None:
    world, start = await unreached()
    await trials(world, start, 250.0)
    world.reports[ONE.address] = HoldingReport(is_listening=True, is_reachable=True)
    await world.until(0, seconds=100)
    assert world.now - start < 440
