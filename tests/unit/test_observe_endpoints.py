"""Which pods the Service sends requests to, and how long the watches may differ before the status speaks of it."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.api.service import Key
from llmservice_operator.control.context import Memory
from llmservice_operator.control.watch.cache import Cache
from llmservice_operator.control.watch.kinds import PROJECTIONS
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.rollout.progress import PATIENCE

from tests.unit.decide_world import World, a_pod
from tests.unit.status_states import edited, served, service

Json = dict[str, Any]
OURS = {"llmservice.dev/service": "chat", "kubernetes.io/service-name": "chat"}
PORTS = [{"name": "http", "port": 8000, "protocol": "TCP"}]


def endpoint(uid: str, *, kind: str = "Pod", **conditions: Any) -> Json:
    return {"addresses": ["10.0.0.1"], "conditions": conditions, "targetRef": {"kind": kind, "uid": uid}}


def a_slice(name: str, *endpoints: Json, labels: Json = OURS, ports: Any = PORTS) -> Json:
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1", "labels": labels},
        "endpoints": list(endpoints) or None,
        "ports": ports,
    }


def seen(*slices: Json, hidden: frozenset[str] = frozenset()) -> frozenset[str] | None:
    """What a decision learns of them."""
    cache = Cache(PROJECTIONS)
    for each in slices:
        cache.update("EndpointSlice", each)
    return Observed.of("chat", cache.of_service(Key("ns", "chat")), hidden).endpoints


COPIED = {"llmservice.dev/service": "chat", "kubernetes.io/service-name": "theirs"}
SLICES = [
    pytest.param([a_slice("a", endpoint("p", ready=True))], {"p"}, id="ready"),
    pytest.param([a_slice("a", endpoint("p"))], {"p"}, id="nothing said of it: ready, says the API"),
    pytest.param([a_slice("a", endpoint("p", ready=False, serving=True, terminating=True))], set(), id="terminating"),
    pytest.param([a_slice("a", endpoint("p"), ports=None)], set(), id="no pod has the port"),
    pytest.param([a_slice("a", endpoint("p", kind="Node"))], set(), id="no pod"),
    pytest.param([a_slice("a", {"addresses": ["10.0.0.1"]})], set(), id="an address by hand"),
    pytest.param([a_slice("a")], set(), id="empty"),
    pytest.param([], set(), id="no slice"),
    pytest.param([a_slice("a", endpoint("p")), a_slice("b", endpoint("p"), endpoint("q"))], {"p", "q"}, id="two"),
    pytest.param([a_slice("a", endpoint("p"), labels=COPIED)], set(), id="another Service's, with our label"),
]


@pytest.mark.parametrize(("slices", "ready"), SLICES)
def test_what_slices_list(slices: list[Json], ready: set[str]) -> None:
    assert seen(*slices) == frozenset(ready)


def test_without_the_right_to_look_nothing_is_said() -> None:
    assert seen(hidden=frozenset({"EndpointSlice"})) is None


def test_what_moves_by_itself_in_a_slice_changes_nothing() -> None:
    cache = Cache(PROJECTIONS)
    first, later = a_slice("a", endpoint("p")), a_slice("a", endpoint("p"))
    later["metadata"] |= {
        "resourceVersion": "2",
        "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "t"},
    }
    later["endpoints"][0]["nodeName"] = "node-b"
    assert cache.update("EndpointSlice", first) == (Key("ns", "chat"),)
    assert cache.update("EndpointSlice", later) == ()
    assert cache.update("EndpointSlice", a_slice("a") | {"metadata": later["metadata"] | {"resourceVersion": "3"}})


def starting() -> World:
    """Its pod has just become ready."""
    world = service()
    world.pods = {"x-0": a_pod("x-0", world.revision())}
    world.roll_out(replicas=1, updated=1, ready=0, available=0)
    world.settle()
    world.pods = {"x-0": a_pod("x-0", world.revision(), ready=True)}
    return world


@pytest.mark.parametrize("late", ["slices", "counters"])
def test_a_watch_that_lags_a_moment_makes_no_status_of_its_own(late: str) -> None:
    world = starting()
    writes = world.status_writes
    if late == "slices":
        world.unlisted = {"x-0"}
        world.roll_out(replicas=1, updated=1, ready=1, available=1)
    world.unsettled_for = 0.4
    decision = world.step()
    assert decision.is_steady
    assert decision.is_unsettled
    assert decision.requeue_after == pytest.approx(PATIENCE - 0.4)
    world.unlisted = set()
    world.roll_out()
    world.settle()
    assert world.conditions()["Ready"]["status"] == "True"
    assert world.status_writes == writes + 1


def test_what_lasts_is_reported() -> None:
    world = starting()
    world.unlisted = {"x-0"}
    world.roll_out(replicas=1, updated=1, ready=1, available=1)
    world.unsettled_for = PATIENCE
    world.settle()
    conditions = world.conditions()
    assert (conditions["Ready"]["reason"], conditions["Available"]["reason"]) == ("NoEndpoints", "NoEndpoints")


def test_endpoints_that_are_lost_are_reported_after_a_moment() -> None:
    world = served()
    world.unlisted, world.unsettled_for = {"x-0"}, 0.0
    assert world.step().is_unsettled
    assert world.conditions()["Available"]["status"] == "True", "it may be back before anybody noticed"
    world.unsettled_for = PATIENCE
    world.settle()
    assert world.conditions()["Available"]["status"] == "False"


@pytest.mark.parametrize("what", ["an edit", "a dead pod", "a new generation"])
def test_nothing_else_waits(what: str) -> None:
    world = served()
    world.unlisted, world.unsettled_for = {"x-0"}, 0.0
    if what == "an edit":
        edited(world)
    elif what == "a dead pod":
        world.pods = {"x-0": a_pod("x-0", world.revision())}
    else:
        world.edit(drain={"timeoutSeconds": 7})
    world.settle()
    assert world.conditions()["Ready"]["status"] == "False"
    assert world.obj["status"]["observedGeneration"] == world.obj["metadata"]["generation"]


def test_the_time_is_taken_from_when_they_first_differ() -> None:
    memory = Memory("u")
    assert memory.unsettled_for(5.0) == 0.0
    memory.note(True, 5.0)
    memory.note(True, 7.0)
    assert memory.unsettled_for(7.5) == 2.5
    memory.note(False, 8.0)
    assert memory.unsettled_for(9.0) == 0.0
