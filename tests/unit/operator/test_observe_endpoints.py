"""Which pods the Service sends requests to, and how long the watches may differ before the status reports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kubeloop.informer import Cache
from kubeloop.resources import Key
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.progress import SETTLE_SECONDS
from llmservice_operator.service.context import ServiceMemory
from llmservice_operator.service.watch import PROJECTIONS

from tests.unit.decide_world import World, a_pod
from tests.unit.status_states import served, service, with_pods

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


def listed(*slices: Json, hidden: frozenset[str] = frozenset()) -> frozenset[str] | None:
    cache = Cache(PROJECTIONS)
    for each in slices:
        cache.update("EndpointSlice", each)
    return Observed.of("chat", cache.of_service(Key("ns", "chat")), hidden).endpoints


ACTIVATORS = OURS | {"endpointslice.kubernetes.io/managed-by": "llmservice.dev"}
COPIED = {"llmservice.dev/service": "chat", "kubernetes.io/service-name": "theirs"}
SLICES = {
    "ready": ([a_slice("a", endpoint("p", ready=True))], {"p"}),
    "no condition, which means ready": ([a_slice("a", endpoint("p"))], {"p"}),
    "terminating": ([a_slice("a", endpoint("p", ready=False, serving=True, terminating=True))], set()),
    "no pod has the port": ([a_slice("a", endpoint("p"), ports=None)], set()),
    "not a pod": ([a_slice("a", endpoint("p", kind="Node"))], set()),
    "an address by hand": ([a_slice("a", {"addresses": ["10.0.0.1"]})], set()),
    "empty": ([a_slice("a")], set()),
    "no slice": ([], set()),
    "two": ([a_slice("a", endpoint("p")), a_slice("b", endpoint("p"), endpoint("q"))], {"p", "q"}),
    "our own, whatever it lists": ([a_slice("a", endpoint("p"), labels=ACTIVATORS)], set()),
    "one of the name of ours": ([a_slice("chat-activator-ipv4", endpoint("p"))], set()),
    "our own beside the cluster's": ([a_slice("a", endpoint("p")), a_slice("chat-activator-ipv6")], {"p"}),
    "another Service's, with our label": ([a_slice("a", endpoint("p"), labels=COPIED)], set()),
}


@pytest.mark.parametrize("case", SLICES)
def test_the_pods_that_slices_list(case: str) -> None:
    slices, ready = SLICES[case]
    assert listed(*slices) == frozenset(ready)


def test_our_own_slices_are_children() -> None:
    cache = Cache(PROJECTIONS)
    ours = a_slice("chat-activator-ipv4", endpoint("p"), labels=ACTIVATORS)
    assert cache.update("EndpointSlice", ours) == (Key("ns", "chat"),)
    cache.update("EndpointSlice", a_slice("chat-abcde", endpoint("p")))
    found = Observed.of("chat", cache.of_service(Key("ns", "chat")))
    assert [child.name for child in found.children()] == ["chat-activator-ipv4"]
    live = found.child("EndpointSlice", "chat-activator-ipv4")
    assert live is not None
    assert (live.live()["endpoints"], live.live()["ports"]) == (ours["endpoints"], PORTS)
    later = {**ours, "endpoints": [], "metadata": ours["metadata"] | {"resourceVersion": "2"}}
    assert cache.update("EndpointSlice", later) == (Key("ns", "chat"),), "what others do to it is undone"


def test_without_the_right_to_list_slices_the_endpoints_are_unknown() -> None:
    assert listed(hidden=frozenset({"EndpointSlice"})) is None


def test_fields_of_a_slice_that_change_by_themselves_are_ignored() -> None:
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
    """Its pod has just become ready, 0.4 s ago; the other watches have not brought it yet."""
    world = service()
    with_pods(world, a_pod("x-0", world.revision()))
    world.pods = {"x-0": a_pod("x-0", world.revision(), ready=True)}
    world.unsettled_for = 0.4
    return world


@pytest.mark.parametrize("late", ["slices", "counters"])
def test_a_watch_that_lags_briefly_changes_no_status(late: str) -> None:
    world = starting()
    writes = world.status_writes
    if late == "slices":
        world.unlisted = {"x-0"}
        world.roll_out(replicas=1, updated=1, ready=1, available=1)
    decision = world.step()
    assert decision.is_steady
    assert decision.is_unsettled
    assert decision.requeue_after == pytest.approx(SETTLE_SECONDS - 0.4)
    world.unlisted = set()
    world.roll_out()
    world.settle()
    assert world.conditions()["Ready"]["status"] == "True"
    assert world.status_writes == writes + 1


@pytest.mark.parametrize("make", [starting, served])
def test_missing_endpoints_are_reported_once_they_last(make: Callable[[], World]) -> None:
    world = make()
    before = world.conditions()["Available"]["status"]
    world.unlisted, world.unsettled_for = {"x-0"}, 0.0
    world.roll_out(replicas=1, updated=1, ready=1, available=1)
    assert world.step().is_unsettled
    assert world.conditions()["Available"]["status"] == before
    world.unsettled_for = SETTLE_SECONDS
    world.settle()
    conditions = world.conditions()
    assert (conditions["Ready"]["reason"], conditions["Available"]["reason"]) == ("NoEndpoints", "NoEndpoints")
    assert conditions["Available"]["status"] == "False"


@pytest.mark.parametrize("what", ["an edit", "a dead pod", "a new generation"])
def test_any_other_change_is_reported_at_once(what: str) -> None:
    world = served()
    world.unlisted, world.unsettled_for = {"x-0"}, 0.0
    if what == "a dead pod":
        world.pods = {"x-0": a_pod("x-0", world.revision())}
    else:
        world.edit(**({"batching": {"maxNumSeqs": 8}} if what == "an edit" else {"drain": {"timeoutSeconds": 7}}))
    world.settle()
    assert world.conditions()["Ready"]["status"] == "False"
    assert world.obj["status"]["observedGeneration"] == world.obj["metadata"]["generation"]


def test_the_time_counts_from_when_they_first_differ() -> None:
    memory = ServiceMemory("u")
    assert memory.unsettled_for(5.0) == 0.0
    memory.record_settled(True, 5.0)
    memory.record_settled(True, 7.0)
    assert memory.unsettled_for(7.5) == 2.5
    memory.record_settled(False, 8.0)
    assert memory.unsettled_for(9.0) == 0.0
