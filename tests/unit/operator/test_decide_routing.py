"""Where the Service of a service leads whose prompts are routed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_operator.observe.observed import Refusal

from tests.unit.decide_world import H100, SETTINGS, World, a_pod, settled

Json = dict[str, Any]

ROUTED: Json = {"mode": "router"}
OF_ROUTER, OF_REPLICAS = {"llmservice.dev/router": "x"}, {"llmservice.dev/service": "x"}


def routed(replicas: int = 2, **sections: Any) -> World:
    """With replicas that serve and a router that is not ready yet."""
    world = settled(H100, scaling={"replicas": replicas}, **sections)
    world.settings = replace(SETTINGS, router_image="router:1")
    world.settle()
    world.roll_out()
    for n, pod in enumerate(world.pods.values()):
        pod["status"]["podIP"] = f"10.0.0.{n + 1}"
    world.change(routing=ROUTED)
    return world


def with_ready_router(world: World, pods: int = 2) -> World:
    world.routers = pods
    router = world.children["Deployment", "x-router"]
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), pods)
    router["status"] = counts | {"observedGeneration": router["metadata"]["generation"]}
    world.settle()
    return world


def leads_to(world: World) -> Any:
    return world.children["Service", "x"]["spec"]["selector"]


def past(world: World) -> list[str]:
    """Addresses in the slices that lead past the router."""
    found = [world.children[each] for each in world.children if "-replicas-" in each[1]]
    return [address for each in found for endpoint in each["endpoints"] for address in endpoint["addresses"]]


def of_routing(world: World) -> set[tuple[str, str]]:
    return {each for each in world.children if each[1] in ("x-direct", "x-router")}


ALL = {("Service", "x-direct"), ("Deployment", "x-router"), ("PodDisruptionBudget", "x-router")}


def test_the_service_leads_to_the_router_once_a_pod_of_it_is_ready() -> None:
    world = routed()
    assert of_routing(world) == ALL
    assert leads_to(world) == OF_REPLICAS
    assert world.condition("RoutingReady") == ("Unknown", "Progressing")
    with_ready_router(world, 1)
    assert leads_to(world) == OF_ROUTER
    assert world.condition("RoutingReady") == ("True", "Routing")
    assert world.condition("Ready") == ("True", "RolledOut")
    direct = world.children["Service", "x-direct"]["spec"]
    assert (direct["clusterIP"], direct["selector"]) == ("None", OF_REPLICAS)


def test_no_pod_of_the_router_is_a_replica() -> None:
    world = routed()
    router = world.children["Deployment", "x-router"]["spec"]
    labels = router["template"]["metadata"]["labels"]
    assert router["selector"]["matchLabels"] == OF_ROUTER
    assert "llmservice.dev/service" not in labels
    assert OF_ROUTER.items() <= labels.items()


def test_while_no_router_is_ready_requests_go_past_it() -> None:
    world = with_ready_router(routed())
    assert past(world) == []
    world.routers = 0
    world.settle()
    assert leads_to(world) == OF_ROUTER, "it changes with the spec only"
    assert past(world) == ["10.0.0.1", "10.0.0.2"]
    assert world.condition("RoutingReady") == ("False", "RouterNotReady")
    assert world.condition("Ready") == ("True", "RolledOut")
    world.pods["x-0"] = a_pod("x-0", world.revision(), ready=False, address="10.0.0.1")
    world.settle()
    assert past(world) == ["10.0.0.2"]
    world.routers = 1
    world.settle()
    assert past(world) == []
    assert world.condition("RoutingReady") == ("True", "Routing")


def test_without_routing_the_service_leads_to_replicas_before_the_router_goes() -> None:
    world = with_ready_router(routed())
    world.routers = 0
    world.settle()
    world.edit(routing={})
    world.step()
    assert leads_to(world) == OF_REPLICAS
    assert of_routing(world) == ALL
    assert past(world), "until the Service's own endpoints are the replicas"
    assert world.children["Deployment", "x-router"]["spec"]["replicas"] == 2
    world.settle()
    assert past(world) == []
    assert of_routing(world) == ALL - {("PodDisruptionBudget", "x-router")}
    assert world.children["Deployment", "x-router"]["spec"]["replicas"] == 0
    assert "RoutingReady" not in world.conditions()
    with_ready_router(world, 0)
    world.change(routing=ROUTED)
    assert world.children["Deployment", "x-router"]["spec"]["replicas"] == 2
    assert leads_to(world) == OF_REPLICAS


def test_an_edit_of_what_needs_a_restart_is_routed_on() -> None:
    world = with_ready_router(routed())
    world.change(batching={"maxNumSeqs": 17})
    assert leads_to(world) == OF_ROUTER
    assert past(world) == []


def test_a_held_edit_is_routed_on() -> None:
    world = with_ready_router(routed())
    world.change(batching={"maxModelLen": 30_000_000})
    assert world.condition("Ready")[0] == "False"
    assert leads_to(world) == OF_ROUTER
    world.routers = 0
    world.settle()
    assert len(past(world)) == 2
    world.routers = 1
    world.settle()
    assert past(world) == []


def test_a_spec_that_cannot_be_read_is_routed_on_and_past_the_router() -> None:
    world = with_ready_router(routed())
    world.edit(model={"uri": "nowhere://"})
    world.routers = 0
    world.settle()
    assert leads_to(world) == OF_ROUTER
    assert len(past(world)) == 2


STORED: dict[str, tuple[Json, tuple[str, str]]] = {
    "as it was": ({}, ("True", "Routing")),
    "of another version": ({"reason": "AReasonOfAnotherVersion"}, ("", "")),
    "with another status": ({"status": "Perhaps"}, ("", "")),
}


@pytest.mark.parametrize(("stored", "kept"), STORED.values(), ids=STORED)
def test_what_is_said_of_routing_stays_while_the_spec_cannot_be_read(stored: Json, kept: tuple[str, str]) -> None:
    world = with_ready_router(routed())
    world.conditions()["RoutingReady"].update(stored)
    world.edit(model={"uri": "nowhere://"})
    world.settle()
    assert world.condition("Accepted")[0] == "False"
    assert world.condition("RoutingReady") == kept
    world.edit(model={"uri": "hf://Qwen/Qwen2.5-7B-Instruct"})
    world.settle()
    assert world.condition("RoutingReady") == ("True", "Routing")


def test_of_a_service_that_is_not_routed_nothing_is_said_while_its_spec_cannot_be_read() -> None:
    world = settled(H100, scaling={"replicas": 1})
    world.change(model={"uri": "nowhere://"})
    assert "RoutingReady" not in world.conditions()


def test_paused_it_is_led_past_a_router_that_is_gone() -> None:
    world = with_ready_router(routed())
    world.edit(paused=True)
    world.settle()
    world.routers = 0
    world.settle()
    assert len(past(world)) == 2


def test_at_zero_nothing_leads_past_the_router() -> None:
    world = with_ready_router(routed())
    world.change(scaling={"replicas": 0})
    world.pods.clear()
    world.roll_out(replicas=0, updated=0, ready=0, available=0)
    world.routers = 0
    world.settle()
    assert past(world) == []
    assert world.condition("RoutingReady") == ("Unknown", "Progressing")


@pytest.mark.parametrize("kind", ["Deployment", "Service", "PodDisruptionBudget"])
def test_what_is_refused_of_a_router_stops_nothing_else(kind: str) -> None:
    world = routed()
    name = "x-direct" if kind == "Service" else "x-router"
    del world.children[kind, name]
    world.refused[kind, name] = Refusal(403, "quota")
    world.edit(scaling={"replicas": 3})
    decision = world.step()
    assert ("Deployment", "x") in [(each.kind, each.name) for each in decision.apply]
    world.settle()
    assert world.condition("RoutingReady") == ("False", "RouterRefused")
    assert "quota" in world.message("RoutingReady")
    assert world.condition("Ready")[1] != "AdmissionRefused"


def test_a_service_of_that_name_that_is_another_ones_is_left_alone() -> None:
    world = routed()
    world.children["Service", "x-direct"]["metadata"]["ownerReferences"][0] |= {"name": "x-direct", "uid": "another"}
    assert not [each for each in world.step().apply if each.name == "x-direct"]
    assert world.condition("RoutingReady") == ("False", "RouterRefused")


def test_a_deployment_that_is_another_ones_is_not_led_to() -> None:
    world = routed()
    world.children["Deployment", "x-router"]["metadata"]["ownerReferences"][0] |= {"name": "x-router", "uid": "another"}
    with_ready_router(world)
    assert leads_to(world) == OF_REPLICAS


def test_a_pod_that_gets_no_requests_gets_none_past_the_router() -> None:
    world = with_ready_router(routed())
    world.unlisted.add("x-1")
    world.routers = 0
    world.settle()
    assert past(world) == ["10.0.0.1"]


def test_what_serves_is_ready_while_its_router_is_made() -> None:
    world = routed()
    del world.children["Deployment", "x-router"]
    decision = world.step()
    assert [(each.name, each.is_optional) for each in decision.apply] == [("x-router", True)]
    assert world.condition("Ready") == ("True", "RolledOut")


def test_without_a_service_of_its_own_replicas_the_router_is_not_led_to() -> None:
    """By another one's it would find another one's pods."""
    world = routed()
    world.children["Service", "x-direct"]["metadata"]["ownerReferences"][0] |= {"name": "x-direct", "uid": "another"}
    with_ready_router(world)
    assert leads_to(world) == OF_REPLICAS


def test_the_router_is_made_after_the_service_by_which_it_finds_replicas() -> None:
    world = settled(H100, scaling={"replicas": 1})
    world.settings = replace(SETTINGS, router_image="router:1")
    world.edit(routing=ROUTED)
    assert [each.name for each in world.step().apply if each.name.startswith("x-")] == ["x-direct"]
    assert {each.name for each in world.step().apply if each.name.startswith("x-")} == {"x-router"}


def test_requests_go_past_a_router_whose_way_to_the_replicas_was_deleted() -> None:
    world = with_ready_router(routed())
    del world.children["Service", "x-direct"]
    world.routers = 0
    world.step()
    assert past(world) == ["10.0.0.1", "10.0.0.2"]


def test_the_router_ends_once_requests_come_to_a_replica() -> None:
    world = with_ready_router(routed())
    world.edit(routing={})
    world.step()
    world.unlisted |= {"x-0", "x-1"}
    world.settle()
    assert world.children["Deployment", "x-router"]["spec"]["replicas"] == 2
    world.unlisted.clear()
    world.settle()
    assert world.children["Deployment", "x-router"]["spec"]["replicas"] == 0


def test_a_router_that_was_left_by_an_earlier_service_ends() -> None:
    world = with_ready_router(routed())
    del world.children["Deployment", "x-router"]["metadata"]["ownerReferences"]
    world.edit(routing={})
    world.settle()
    router = world.children["Deployment", "x-router"]
    assert (router["spec"]["replicas"], router["metadata"]["ownerReferences"][0]["name"]) == (0, "x")


def test_a_rollout_that_waits_does_not_keep_the_router_waiting() -> None:
    world = routed()
    del world.children["Deployment", "x-router"]
    world.edit(
        rollout={"strategy": "Recreate"},
        batching={"maxNumSeqs": 9},
        scaling={"replicas": 2, "holding": {"rollouts": True}},
    )
    applied = {(each.kind, each.name) for each in world.step().apply}
    assert ("Deployment", "x-router") in applied


@pytest.mark.parametrize(
    "condition",
    [
        {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"},
        {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "exceeded quota"},
    ],
    ids=["a quota", "too late"],
)
def test_a_router_that_does_not_come_is_said(condition: Json) -> None:
    world = routed()
    world.children["Deployment", "x-router"]["status"] = {"conditions": [condition]}
    world.settle()
    assert world.condition("RoutingReady") == ("False", "RouterNotReady")
    assert "quota" in world.message("RoutingReady")


QUOTA: Json = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
LATE: Json = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "it timed out"}
BY_SESSION = ROUTED | {"policy": "consistent_hash"}
AS_ASKED = "Prompts are routed: the Service leads to the router's pods."
REPLACED = f"{AS_ASKED} They are being replaced; until then earlier ones route as they were made to."
CHANGES: dict[str, tuple[Json, Json, tuple[str, str], str]] = {
    "as asked for": (ROUTED, {}, ("True", "Routing"), AS_ASKED),
    "begins": (BY_SESSION, {"observedGeneration": 1}, ("True", "Routing"), REPLACED),
    "goes on": (BY_SESSION, {"replicas": 3, "updatedReplicas": 1}, ("True", "Routing"), REPLACED),
    "a quota": (
        BY_SESSION,
        {"updatedReplicas": 0, "conditions": [QUOTA]},
        ("False", "RouterOutdated"),
        "Earlier ones that serve: 2, new ones: 0; others do not come: exceeded quota. Look at the router's pods",
    ),
    "a quota for the second": (
        BY_SESSION,
        {"updatedReplicas": 1, "conditions": [QUOTA]},
        ("False", "RouterOutdated"),
        "Earlier ones that serve: 1, new ones: 1; others do not come: exceeded quota. Look at the router's pods",
    ),
    "too late": (
        BY_SESSION,
        {"replicas": 3, "updatedReplicas": 1, "conditions": [LATE]},
        ("False", "RouterOutdated"),
        "Earlier ones that serve: 2, new ones: 0; others do not come: it timed out. Look at the router's pods",
    ),
    "what was said of an earlier one": (
        BY_SESSION,
        {"updatedReplicas": 0, "observedGeneration": 1, "conditions": [QUOTA]},
        ("True", "Routing"),
        REPLACED,
    ),
    "a quota for one more": (
        ROUTED | {"routerReplicas": 3},
        {"conditions": [QUOTA]},
        ("True", "Routing"),
        f"{AS_ASKED} 2 of 3 are ready; others do not come: exceeded quota. Look at the router's pods",
    ),
}


@pytest.mark.parametrize(("asked", "counts", "condition", "said"), CHANGES.values(), ids=CHANGES)
def test_it_is_said_whether_the_routers_pods_are_as_asked_for(
    asked: Json, counts: Json, condition: tuple[str, str], said: str
) -> None:
    world = with_ready_router(routed())
    world.change(routing=asked)
    router = world.children["Deployment", "x-router"]
    router["status"] |= {"observedGeneration": router["metadata"]["generation"]} | counts
    world.settle()
    assert world.condition("RoutingReady") == condition
    assert said in world.message("RoutingReady")
    assert (world.message("RoutingReady") == AS_ASKED) is (said == AS_ASKED)
    assert world.condition("Ready") == ("True", "RolledOut")


def test_while_paused_it_is_said_that_the_router_is_not_changed() -> None:
    world = with_ready_router(routed())
    world.change(paused=True, routing=BY_SESSION)
    assert world.message("RoutingReady") == f"{AS_ASKED} They are not changed while spec.paused is true."
    assert world.condition("RoutingReady") == ("True", "Routing")


def test_a_router_whose_deployment_was_deleted_is_being_replaced() -> None:
    world = with_ready_router(routed())
    del world.children["Deployment", "x-router"]
    world.step()
    assert (world.condition("RoutingReady"), world.message("RoutingReady")) == (("True", "Routing"), REPLACED)


@pytest.mark.parametrize("name", ["x-direct", "x-router"])
def test_a_name_that_another_service_may_have_is_looked_at_first(name: str) -> None:
    """By whoever comes second: the one whose child it is, and the one whose own name it is."""
    world = settled(H100, scaling={"replicas": 1})
    world.settings = replace(SETTINGS, router_image="router:1")
    world.edit(routing=ROUTED)
    made = [each for _ in range(3) for each in world.step().apply]
    assert {each.is_shared_name for each in made if each.name == name} == {True}
    assert not any(each.is_shared_name for each in made if each.name == "x")


def test_one_router_has_no_budget() -> None:
    world = with_ready_router(routed())
    world.change(routing=ROUTED | {"routerReplicas": 1})
    assert of_routing(world) == ALL - {("PodDisruptionBudget", "x-router")}


def test_an_installation_without_a_router_says_so() -> None:
    world = settled(H100, routing=ROUTED)
    assert world.condition("RoutingReady") == ("False", "RoutingDisabled")
    assert of_routing(world) == set()


def test_an_installation_that_loses_its_router_leads_to_replicas_again() -> None:
    world = with_ready_router(routed())
    world.settings = SETTINGS
    world.settle()
    assert leads_to(world) == OF_REPLICAS
    assert world.children["Deployment", "x-router"]["spec"]["replicas"] == 0


def test_without_the_right_to_list_slices_nothing_is_switched() -> None:
    world = routed()
    world.hidden = frozenset({"EndpointSlice"})
    with_ready_router(world)
    assert leads_to(world) == OF_REPLICAS
    assert world.condition("RoutingReady") == ("False", "RouterRefused")


def test_routing_restarts_no_replica() -> None:
    world = routed()
    before = world.revision()
    with_ready_router(world)
    world.change(routing={"mode": "router", "policy": "power_of_two"})
    assert world.revision() == before
