"""EndpointSlices that lead past a router: how long they stay, and what is said where they cannot be written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from llmservice_operator.observe.observed import Refusal, Unanswered

from tests.unit.decide_world import SETTINGS, World, a_pod
from tests.unit.operator.test_decide_routing import OF_REPLICAS, leads_to, past, routed, with_ready_router

BOTH = ["10.0.0.1", "10.0.0.2"]


def broken() -> World:
    """Routed, with no pod of the router ready."""
    world = with_ready_router(routed())
    world.routers = 0
    world.settle()
    assert past(world) == BOTH
    return world


def _removed(world: World) -> None:
    world.edit(routing={})


def _turned_off(world: World) -> None:
    world.settings = SETTINGS


ENDS: dict[str, Callable[[World], None]] = {"spec.routing is removed": _removed, "the chart's is": _turned_off}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_requests_go_past_a_broken_router_until_the_services_own_endpoints_have_a_replica(
    end: Callable[[World], None],
) -> None:
    world = broken()
    end(world)
    world.step()
    assert leads_to(world) == OF_REPLICAS
    world.unlisted |= {"x-0", "x-1"}  # its own EndpointSlices are not written yet
    world.settle()
    assert past(world) == BOTH
    world.pods["x-0"] = a_pod("x-0", world.revision(), ready=False, address="10.0.0.1")
    world.settle()
    assert past(world) == ["10.0.0.2"]
    world.unlisted.clear()
    decision = world.step()
    assert past(world) == []
    assert "the Service leads to the replicas" in [each.reason for each in decision.prune]


def test_nothing_is_led_into_a_service_of_that_name_that_is_another_ones() -> None:
    world = broken()
    taken = world.children["Service", "x"]
    taken["metadata"]["ownerReferences"][0] |= {"name": "another", "uid": "another"}
    taken["spec"]["selector"] = {"app": "another"}
    world.unlisted |= {"x-0", "x-1"}
    world.settle()
    assert past(world) == []


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (lambda world: setattr(world, "routers", 1), "requests go to the router"),
        (lambda world: world.pods.clear(), "it leads to no replica"),
    ],
    ids=["a pod of the router is ready", "no replica is"],
)
def test_it_is_said_why_nothing_leads_past_the_router_any_more(happens: Callable[[World], Any], reason: str) -> None:
    world = broken()
    happens(world)
    assert [(each.name, each.reason) for each in world.step().prune] == [("x-replicas-ipv4", reason)]


SLICE = ("EndpointSlice", "x-replicas-ipv4")


def _refused(world: World) -> None:
    world.refused[SLICE] = Refusal(403, "exceeded quota: count/endpointslices.discovery.k8s.io")


def _another_ones(world: World) -> None:
    broken_one = broken()
    world.children[SLICE] = broken_one.children[SLICE]
    world.children[SLICE]["metadata"]["ownerReferences"][0] |= {"name": "another", "uid": "another"}
    world.children[SLICE]["endpoints"] = []


BLOCKS: dict[str, tuple[Callable[[World], None], str]] = {
    "refused": (_refused, "EndpointSlice x-replicas-ipv4 cannot be applied: exceeded quota: count/endpointslices"),
    "another one's": (_another_ones, "EndpointSlice x-replicas-ipv4 exists already and is not this service's."),
}


@pytest.mark.parametrize(("block", "said"), BLOCKS.values(), ids=BLOCKS)
def test_it_is_said_that_nothing_leads_past_a_broken_router(block: Callable[[World], None], said: str) -> None:
    world = with_ready_router(routed())
    block(world)
    world.settle()
    assert world.condition("RoutingReady") == ("True", "Routing"), "it is not asked for yet"
    world.routers = 0
    world.settle()
    for condition in ("RoutingReady", "Available", "Ready"):
        assert world.condition(condition) == ("False", "NoEndpoints")
        assert said in world.message(condition), condition
        assert "Remove the cause" in world.message(condition), condition
        assert "Requests go to the replicas past it" not in world.message(condition), condition
    assert world.status["failure"]["remedy"].startswith("Remove the cause")
    assert world.status["readyReplicas"] == 0
    world.routers = 1
    world.settle()
    assert world.condition("Ready") == ("True", "RolledOut")
    assert world.condition("RoutingReady") == ("True", "Routing")


def test_a_slice_whose_write_gets_no_answer_is_said() -> None:
    world = with_ready_router(routed())
    world.routers = 0
    missed = replace(world.observed(), unanswered={SLICE: Unanswered("a webhook timed out", 30.0)})
    status: Any = world.decide(missed).status
    said = {each["type"]: each["message"] for each in status["conditions"]}
    assert "EndpointSlice x-replicas-ipv4 cannot be written: a webhook timed out." in said["Available"]


def test_a_slice_that_is_as_desired_is_not_said_to_be_refused() -> None:
    world = broken()
    _refused(world)
    world.settle()
    assert world.condition("RoutingReady") == ("False", "RouterNotReady")
    assert world.condition("Available") == ("True", "ReplicasReady")


def test_replicas_that_a_refused_slice_has_still_get_requests() -> None:
    world = broken()
    _refused(world)
    world.pods["x-1"] = a_pod("x-1", world.revision(), ready=True, address="10.0.0.9")
    world.settle()
    assert world.condition("RoutingReady") == ("False", "NoEndpoints")
    assert world.condition("Available") == ("True", "ReplicasReady")
    assert world.status["readyReplicas"] == 1
