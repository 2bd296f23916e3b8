"""The port in a status may be another service's, once Leases were deleted: it is compared with its Lease."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kubeloop.errors import Unreachable
from llmservice_operator.behaviours.holding import SELDOM_AFTER
from llmservice_operator.observe.activators import AT_ZERO_SECONDS
from llmservice_operator.readers.holding_ports import candidates
from llmservice_operator.service.gather import VERIFY_SECONDS

from tests.unit.api_server import llmservice
from tests.unit.kubeloop.test_holding_ports import a_lease
from tests.unit.operator.decide_zero_world import NO_KEY
from tests.unit.operator.test_reconcile_zero import PORT, SLICE, ZeroWorld, at_zero, serving

NAME = f"llmservice-port-{PORT}"
OTHER_PORT = list(candidates("u-1"))[1]


def deleted(world: ZeroWorld) -> None:
    world.api.remove("Lease", NAME, "system")


def taken(world: ZeroWorld) -> None:
    deleted(world)
    world.api.put(llmservice("other", 2))
    world.api.put(a_lease(PORT, "ns/other/uid-other"))


LEASES: dict[str, tuple[Callable[[ZeroWorld], None], int]] = {
    "of the service": (lambda world: None, PORT),
    "deleted": (deleted, PORT),
    "another's by now": (taken, OTHER_PORT),
}


def check(world: ZeroWorld, port: int) -> None:
    lease = world.api.find("Lease", f"llmservice-port-{port}", "system")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == "ns/chat/u-1"
    assert world.status["holding"]["port"] == port
    found = world.stored("EndpointSlice", SLICE)
    assert found is not None
    assert found["ports"][0]["port"] == port


@pytest.mark.parametrize("case", LEASES)
async def test_after_a_start_it_is_compared_on_the_way_to_zero(case: str) -> None:
    change, port = LEASES[case]
    world = await serving()
    change(world)
    world.restart()
    world.scale(0)
    await world.until(0)
    check(world, port)
    assert {asked for _, _, asked in world.asked} == {port}, "the activators are asked about no other"


@pytest.mark.parametrize("case", LEASES)
@pytest.mark.parametrize("is_refused", [False, True])
async def test_at_rest_it_is_compared_each_hour_and_soon_where_an_activator_cannot_hold(
    case: str, *, is_refused: bool
) -> None:
    change, port = LEASES[case]
    world = await at_zero()
    change(world)
    start, seconds = world.now, VERIFY_SECONDS + AT_ZERO_SECONDS
    if is_refused:
        world.reports["10.1.0.1"], seconds = NO_KEY, AT_ZERO_SECONDS + SELDOM_AFTER
    while world.now <= start + seconds:
        then = await world.settle()
        assert then.after is not None
        world.now += then.after
    check(world, port)


async def test_after_a_start_services_at_rest_take_turns() -> None:
    world = await at_zero()
    world.restart()
    await world.settle()
    assert world.calls("Lease") == []
    world.now += AT_ZERO_SECONDS
    await world.settle()
    assert world.calls("Lease") == ["get Lease"]


async def test_while_leases_cannot_be_read_the_stored_port_is_used() -> None:
    world = await serving()
    world.restart()
    world.api.fails["get Lease"] = [Unreachable("no answer")] * 99
    world.scale(0)
    await world.until(0)
    check(world, PORT)
    world.pods(0)
    world.api.fails.clear()
    world.now += SELDOM_AFTER
    await world.settle()
    assert world.calls("Lease") == ["get Lease"]
    world.now += SELDOM_AFTER
    await world.settle()
    assert world.calls("Lease") == []


async def test_one_that_is_another_services_by_now_gets_no_request_when_a_pod_is_lost() -> None:
    """The service has served since, and nothing was asked about it."""
    world = await serving()
    taken(world)
    world.restart()
    await world.settle()
    world.now += 3 * VERIFY_SECONDS
    await world.settle()
    world.pods(0)
    await world.settle()
    check(world, OTHER_PORT)
