"""What a Gateway costs the API server, and whose requests are whose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kubeloop.errors import ApiError, Invalid, NotFound
from kubeloop.resources import Key
from llmservice_operator.facts.routes import claims_of
from llmservice_operator.service.decide import decide

from tests.unit.decide_world import SETTINGS
from tests.unit.reconcile_world import World, parent

APPLY = "apply HTTPRoute"
REF = {"name": "public", "namespace": "gateways"}


def a_service(name: str = "chat", **gateway: Any) -> Any:
    """`gateway` replaces fields of spec.endpoint.gateway."""
    service = parent(name=name, uid=f"u-{name}")
    service["spec"] |= {
        "fitPolicy": "Ignore",
        "endpoint": {"gateway": {"ref": REF, "hostnames": ["models.example.com"], **gateway}},
    }
    return service


def a_world(*others: Any, **gateway: Any) -> World:
    """A service `chat`, and routes of others that the watch has brought."""
    world = World(a_service(**gateway))
    world.ctx.decide, world.ctx.settings = decide, replace(SETTINGS, has_gateways=True)
    for other in others:
        see(world, other)
    return world


def see(world: World, route: Any) -> None:
    """The watch brings it, and its LLMService."""
    name, namespace = route["metadata"]["name"], route["metadata"]["namespace"]
    if name != "nobody":
        world.ctx.cache.update("LLMService", parent(name=name, namespace=namespace, uid=f"u-{name}"))
    world.ctx.cache.update("HTTPRoute", route)


REJECTED = {"type": "Accepted", "status": "False", "reason": "NotAllowedByListeners", "observedGeneration": 1}


def a_route(service: str, *, host: str = "models.example.com", model: str = "", gateway: str = "public") -> Any:
    """Of another service, in another namespace."""
    match: dict[str, Any] = {"headers": [{"name": "m", "value": model}]} if model else {}
    return {
        "metadata": {
            "namespace": "team-b",
            "name": service,
            "uid": f"u-{service}",
            "resourceVersion": "3",
            "generation": 1,
            "ownerReferences": [{"kind": "LLMService", "name": service, "uid": f"u-{service}", "controller": True}],
            "labels": {"llmservice.dev/service": service, "app.kubernetes.io/managed-by": "llmservice-operator"},
        },
        "spec": {
            "parentRefs": [{"namespace": "gateways", "name": gateway}],
            "hostnames": [host],
            "rules": [{"matches": [match]}],
        },
    }


IN_THE_WAY: dict[str, tuple[Any, dict[str, Any], str]] = {
    "the same host": (a_route("y"), {}, "models.example.com at Gateway gateways/public"),
    "the same model": (
        a_route("y", model="chat"),
        {"byModel": True},
        "models.example.com with the model chat at Gateway gateways/public",
    ),
    "a wider host": (a_route("y", host="*.example.com"), {}, "models.example.com at Gateway gateways/public"),
    "all requests": (
        a_route("y"),
        {"byModel": True},
        "models.example.com with the model chat at Gateway gateways/public",
    ),
    "another host": (a_route("y", host="y.example.com"), {}, ""),
    "another Gateway": (a_route("y", gateway="inner"), {}, ""),
    "another model": (a_route("y", model="other"), {"byModel": True}, ""),
    "a route that its Gateway rejects": (
        a_route("y") | {"status": {"parents": [{"parentRef": {}, "conditions": [REJECTED]}]}},
        {},
        "",
    ),
    "a route of no LLMService": (a_route("nobody"), {}, ""),
    "its own in another namespace": (a_route("chat"), {}, "models.example.com at Gateway gateways/public"),
}


@pytest.mark.parametrize(("other", "gateway", "taken"), IN_THE_WAY.values(), ids=IN_THE_WAY)
async def test_requests_that_another_service_takes_are_refused_with_its_name(
    other: Any, gateway: dict[str, Any], taken: str
) -> None:
    world = a_world(other, **gateway)
    then = await world.settle()
    condition = world.condition("RoutingReady")
    assert (world.stored("HTTPRoute") is None) is bool(taken)
    assert world.stored("Deployment") is not None
    if not taken:
        assert condition["reason"] == "RouteNotAccepted"
        return
    assert condition["reason"] == "RouteTaken"
    assert f"{taken} is taken by an LLMService of another namespace." in condition["message"]
    assert then.after is not None
    assert 0 < then.after <= 60
    world.ctx.cache.remove("HTTPRoute", "team-b", other["metadata"]["name"], other["metadata"]["uid"])
    world.now += 60
    await world.settle()
    assert world.stored("HTTPRoute") is not None
    assert world.condition("RoutingReady")["reason"] == "RouteNotAccepted"


async def test_a_route_that_is_there_keeps_what_it_has() -> None:
    world = a_world()
    await world.settle()
    see(world, a_route("later", host="two.example.com"))
    hosts = ["models.example.com", "two.example.com", "three.example.com"]
    world.see(world.api.put(a_service(hostnames=hosts), generation=2))
    await world.settle()
    assert world.condition("RoutingReady")["reason"] == "RouteTaken"
    spec = world.stored("HTTPRoute")["spec"]
    assert spec["hostnames"] == ["models.example.com", "three.example.com"], "all but what another one has"
    world.calls()
    world.now += 60
    await world.settle()
    assert world.calls(APPLY) == [], "nothing is written again"


async def test_an_adapter_with_anothers_name_keeps_no_other_out() -> None:
    world = a_world(a_route("y", model="shared"), byModel=True)
    service = a_service(byModel=True)
    service["spec"]["adapters"] = [{"name": each, "uri": "hf://o/a"} for each in ("own", "shared")]
    world.see(world.api.put(service, generation=2))
    await world.settle()
    assert world.condition("RoutingReady")["reason"] == "RouteTaken"
    (rule,) = world.stored("HTTPRoute")["spec"]["rules"]
    assert [match["headers"][0]["value"] for match in rule["matches"]] == ["chat", "own"]


async def test_of_a_namespace_the_other_service_is_named() -> None:
    other = a_route("y")
    other["metadata"]["namespace"] = "ns"
    world = a_world(other)
    await world.settle()
    assert "is taken by LLMService y." in world.condition("RoutingReady")["message"]


async def test_of_two_at_the_same_moment_one_gets_the_requests() -> None:
    """The first waits for the API server while the second looks."""
    world = a_world()
    second = a_service("second")
    world.see(world.api.put(second))
    world.ctx.claimed[Key("ns", "second")] = claims_of({"metadata": {"namespace": "ns"}, "spec": a_route("y")["spec"]})
    await world.settle()
    assert world.condition("RoutingReady")["reason"] == "RouteTaken"
    assert "is taken by LLMService second." in world.condition("RoutingReady")["message"]
    world.ctx.claimed.clear()
    world.now += 60
    await world.settle()
    assert world.stored("HTTPRoute") is not None
    assert world.ctx.claimed == {}


REFUSALS: dict[str, ApiError] = {
    "invalid": Invalid("spec.hostnames[0]: Invalid value", code=422),
    "no CRD any more": NotFound("the server could not find the requested resource", code=404),
}


@pytest.mark.parametrize("error", REFUSALS.values(), ids=REFUSALS)
async def test_a_refused_route_is_tried_again_each_minute_and_stops_nothing(error: ApiError) -> None:
    world = a_world()
    world.api.fails[APPLY] = [error] * 2
    await world.settle()
    assert world.stored("Deployment") is not None
    assert world.condition("RoutingReady")["reason"] == "RouteRefused"
    await world.settle()
    assert world.calls() == [], "nothing before its time"
    for _ in range(2):
        world.now += 60
        await world.settle()
    assert world.stored("HTTPRoute") is not None
    world.calls()
    await world.settle()
    assert world.calls() == [], "and nothing once it is there"


async def test_without_a_gateway_nothing_is_written() -> None:
    service = parent()
    service["spec"] |= {"fitPolicy": "Ignore"}
    world = World(service)
    world.ctx.decide, world.ctx.settings = decide, replace(SETTINGS, has_gateways=True)
    await world.settle()
    assert not [call for call in world.calls() if "HTTPRoute" in call or "InferencePool" in call]
