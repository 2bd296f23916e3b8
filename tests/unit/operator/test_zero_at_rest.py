"""A service that rests at zero: the activators are asked again whether they can hold, seldom and after each change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from llmservice_api.holding import Activator, HoldingReport
from llmservice_operator.observe.activators import (
    AT_ZERO_SECONDS,
    CONFIRM_SECONDS,
    SPREAD_SECONDS,
    ActivatorQuestions,
    QuestionSubject,
)

from tests.unit.operator.decide_zero_world import (
    GOOD,
    LISTENING,
    NO_KEY,
    ONE,
    SILENT,
    a_world,
    at_zero,
    follow,
    is_held,
    made,
    scale,
)
from tests.unit.operator.test_reconcile_zero import PORT, SLICE, ZeroWorld
from tests.unit.operator.test_reconcile_zero import at_zero as at_zero_on_an_api_server

UNABLE = {
    "the key's Role is gone": (NO_KEY, "Secret k cannot be read. Grant get on it."),
    "the port is closed": (SILENT, "10.1.0.1 does not listen on port 20000"),
}


@pytest.mark.parametrize("case", UNABLE)
def test_what_is_reported_twice_brings_a_replica_and_the_condition_says_why(case: str) -> None:
    report, problem = UNABLE[case]
    world = at_zero()
    world.holding[ONE.address] = report
    world.asked_for, world.unable_for = 3600.0, CONFIRM_SECONDS - 1
    world.settle()
    assert (made(world), is_held(world)) == (0, True), "once is no reason"
    assert world.condition("Autoscaled") == ("True", "Autoscaling")
    world.unable_for = CONFIRM_SECONDS
    events = [event.reason for event in world.step().events]
    world.settle()
    assert (made(world), is_held(world)) == (1, True)
    assert world.condition("Autoscaled") == ("False", "HoldingUnavailable")
    assert problem in world.message("Autoscaled")
    assert world.condition("Ready")[0] == "False"
    assert events.count("HoldingUnavailable") == 1
    follow(world)
    world.settle()
    assert world.condition("Ready") == ("True", "RolledOut")
    world.holding[ONE.address], world.unable_for, world.asked_for = GOOD, 0.0, 5.0
    world.settle()
    assert made(world) == 0
    assert world.condition("Autoscaled") == ("True", "Autoscaling")


def test_one_that_a_user_stopped_is_asked_about_once_it_may_be_at_zero() -> None:
    world = a_world()
    world.edit(scaling={"replicas": 0})
    world.settle()
    follow(world)
    world.settle()
    assert world.inputs().holding is None
    world.edit(scaling={"replicas": 0, "autoscaling": {"minReplicas": 0, "maxReplicas": 4}})
    world.holding[ONE.address], world.unable_for = NO_KEY, CONFIRM_SECONDS
    world.settle()
    assert made(world) == 1
    assert world.condition("Autoscaled") == ("False", "HoldingUnavailable")
    scale(world, 1)
    world.settle()
    assert world.condition("Autoscaled")[1] != "HoldingUnavailable"


async def rest(world: ZeroWorld, seconds: float) -> None:
    """Passes as they are asked for, for so long, without a write."""
    end = world.now + seconds
    while world.now < end:
        then = await world.settle()
        assert set(world.calls()) <= {"get Lease"}
        world.leases_read += len(world.calls())
        assert then.after is not None
        world.now = min(end, world.now + then.after)
    world.api.calls.clear()


async def settled() -> ZeroWorld:
    world = await at_zero_on_an_api_server()
    await rest(world, AT_ZERO_SECONDS)
    world.asked.clear()
    return world


async def test_each_five_minutes_it_is_asked_and_each_hour_its_lease_is_read_and_nothing_is_written() -> None:
    world = await settled()
    await rest(world, 3600.0)
    assert Counter(address for address, _, _ in world.asked) == {"10.1.0.1": 12, "10.1.0.2": 12}
    assert world.leases_read == 1


def edited(world: ZeroWorld) -> None:
    world.edit({"endpoint": {"port": 9000}})


def replaced(world: ZeroWorld) -> None:
    world.activators = (Activator("10.1.0.1"), Activator("10.1.0.3"))
    world.reports["10.1.0.3"] = HoldingReport(is_listening=True, is_reachable=True)


def changed(world: ZeroWorld) -> None:
    live = world.stored("EndpointSlice", SLICE)
    assert live is not None
    world.see(world.api.put(live | {"endpoints": []}, uid=live["metadata"]["uid"]))


CHANGES: dict[str, Callable[[ZeroWorld], None]] = {
    "of the generation": edited,
    "of the activators": replaced,
    "of the slices": changed,
}


@pytest.mark.parametrize("case", CHANGES)
async def test_after_a_change_it_is_asked_once(case: str) -> None:
    world = await settled()
    CHANGES[case](world)
    await world.settle()
    world.pods(0)
    then = await world.settle()
    assert world.asked == [], "the change gets its time"
    assert then.after is not None
    assert then.after <= SPREAD_SECONDS
    world.api.calls.clear()
    await rest(world, SPREAD_SECONDS + 1)
    assert len(world.asked) == 2


async def test_a_role_that_is_revoked_brings_a_replica() -> None:
    world = await settled()
    world.reports["10.1.0.2"] = NO_KEY
    start = world.now
    await world.until(1)
    assert CONFIRM_SECONDS <= world.now - start <= AT_ZERO_SECONDS + CONFIRM_SECONDS
    assert len(world.asked) == 4
    assert world.condition("Autoscaled")["reason"] == "HoldingUnavailable"
    assert "Secret k cannot be read" in world.condition("Autoscaled")["message"]
    world.reports["10.1.0.2"] = GOOD
    await world.until(0)


@pytest.mark.parametrize("then", ["it can again", "it is away"])
async def test_what_passes_within_a_minute_brings_no_replica(then: str) -> None:
    world = await settled()
    del world.reports["10.1.0.2"]
    while not world.asked:
        await world.settle()
        world.now += 1
    if then == "it can again":
        world.reports["10.1.0.2"] = GOOD
        await rest(world, 2 * AT_ZERO_SECONDS)
    else:
        world.activators = (Activator("10.1.0.1"),)
        world.now += CONFIRM_SECONDS - 1
        await world.settle()
        world.api.calls.clear()
        await rest(world, 2 * AT_ZERO_SECONDS)
    assert world.deployed() == 0
    assert world.condition("Autoscaled")["reason"] != "HoldingUnavailable"


@pytest.mark.parametrize("is_written", [False, True])
def test_an_operator_that_starts_asks_in_turn_and_soon_about_what_was_edited(*, is_written: bool) -> None:
    waits = [ActivatorQuestions.first(of(n, is_written=is_written), 0.0).due_at for n in range(100)]
    assert (max(waits) <= SPREAD_SECONDS) != is_written
    assert max(waits) <= AT_ZERO_SECONDS


def test_a_report_of_before_a_change_and_one_of_after_it_are_not_the_same_problem() -> None:
    asked = ActivatorQuestions.first(of(1), 0.0).answered({"10.1.0.1": NO_KEY}, 1.0)
    of_now = replace(of(1), generation=2)
    assert asked.answered({"10.1.0.1": NO_KEY}, 62.0).known(62.0).unable_for == 61.0
    assert asked.follow(of_now, 60.0).answered({"10.1.0.1": NO_KEY}, 62.0).known(62.0).unable_for == 0.0


def of(n: int, *, is_written: bool = True) -> QuestionSubject:
    return QuestionSubject(f"uid-{n}", 1, PORT, ("10.1.0.1",), is_at_zero=True, is_written=is_written)


def test_a_thousand_services_share_the_time_evenly() -> None:
    """After a change that concerned all of them."""
    due: Counter[int] = Counter()
    for n in range(1000):
        asked = ActivatorQuestions.first(of(n), 0.0).answered({"10.1.0.1": GOOD}, 1.0)
        assert 1.0 < asked.due_at <= 1.0 + AT_ZERO_SECONDS
        due[int(asked.due_at % AT_ZERO_SECONDS // 30)] += 1
    assert set(due) == set(range(10))
    assert max(due.values()) < 150


async def test_activators_that_cannot_be_asked_or_are_not_reached_start_nothing() -> None:
    """They hold requests all the same; a policy may be between them and the operator alone."""
    world = await settled()
    world.reports.clear()
    await rest(world, 3600.0)
    world.reports.update(dict.fromkeys(("10.1.0.1", "10.1.0.2"), LISTENING))  # a name that DNS does not resolve
    await rest(world, 3600.0)
    assert world.deployed() == 0
    assert world.condition("Autoscaled")["reason"] != "HoldingUnavailable"
    assert world.asked


async def test_one_that_cannot_hold_brings_a_replica_though_another_comes_and_goes() -> None:
    world = await settled()
    world.reports["10.1.0.1"] = NO_KEY
    both, start = world.activators, world.now
    for number in range(12):
        world.activators = both[: 1 + number % 2]
        end = world.now + CONFIRM_SECONDS * 3 / 4
        while world.now < end and not world.deployed():
            then = await world.settle()
            world.now = min(end, world.now + (then.after or end))
    assert world.deployed() == 1
    assert world.now - start <= 5 * CONFIRM_SECONDS
