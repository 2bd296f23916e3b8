"""What a Gateway costs the API server, and whose requests are whose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from kubeloop.errors import ApiError, Forbidden, Invalid, NotFound, Refused
from kubeloop.resources import Key
from llmservice_operator.facts.routes import claims_of
from llmservice_operator.service.decide import decide
from llmservice_operator.service.watch import rivals_of

from tests.unit.decide_world import SETTINGS, a_pod
from tests.unit.reconcile_world import World, parent

Json = dict[str, Any]

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


ONE, TWO = "models.example.com", "two.example.com"
BOTH: Json = {"hostnames": [ONE, TWO]}


def asking(names: Sequence[str] = ("chat",), adapters: Sequence[str] = (), **gateway: Any) -> Any:
    """By these names of the model and of adapters."""
    service = a_service(**{"byModel": True} | gateway)
    service["spec"]["model"]["servedModelNames"] = list(names)
    service["spec"]["adapters"] = [{"name": each, "uri": "hf://o/a"} for each in adapters]
    return service


def named(route: Any) -> tuple[list[str], list[str]] | None:
    """Hosts and models of an HTTPRoute."""
    if route is None:
        return None
    matches = [match for rule in route["spec"]["rules"] for match in rule["matches"]]
    return route["spec"]["hostnames"], [match["headers"][0]["value"] for match in matches]


PARTLY: dict[str, tuple[Any, list[Any], Any, tuple[list[str], list[str]] | None, str]] = {
    # What was asked for before, the routes of others, what is asked for now; what the route has then, and what is said.
    "a host of a new service": (
        None,
        [a_route("y", host=TWO)],
        asking(**BOTH),
        ([ONE], ["chat"]),
        f"{TWO} with the model chat at Gateway gateways/public is taken by an LLMService of another namespace. "
        f"The route is without {TWO}.",
    ),
    "a host, all models": (
        None,
        [a_route("y", host=TWO)],
        asking(adapters=["own"], **BOTH),
        ([ONE], ["chat", "own"]),
        f"for: {TWO} at Gateway gateways/public is taken by an LLMService of another namespace. The route is without",
    ),
    "a model on one host of a new service": (
        None,
        [a_route("y", model="shared")],
        asking(adapters=["shared"], **BOTH),
        ([TWO], ["chat", "shared"]),
        f"{ONE} with the model shared at Gateway gateways/public is taken by an LLMService of another namespace. "
        f"The route is without {ONE}.",
    ),
    "a model on one host of two that serve": (
        asking(**BOTH),
        [a_route("y", model="shared")],
        asking(adapters=["own", "shared"], **BOTH),
        ([ONE, TWO], ["chat", "own"]),
        "The route is without the model shared.",
    ),
    "a host more, and an adapter": (
        asking(),
        [a_route("y", host=TWO)],
        asking(adapters=["own"], **BOTH),
        ([ONE], ["chat", "own"]),
        f"The route is without {TWO}.",
    ),
    "a host and a model": (
        asking(),
        [a_route("y", host=TWO), a_route("z", model="shared")],
        asking(adapters=["own", "shared"], **BOTH),
        ([ONE], ["chat", "own"]),
        f"The route is without {TWO} and the model shared.",
    ),
    "another name instead": (
        asking(["a"]),
        [a_route("y", model="b")],
        asking(["b"]),
        None,
        "Nothing is left of the route.",
    ),
    "another name instead, and one that is free": (
        asking(["a"]),
        [a_route("y", model="b")],
        asking(["b", "c"]),
        ([ONE], ["c"]),
        "The route is without the model b.",
    ),
    "another host instead": (asking(), [a_route("y", host=TWO)], asking(hostnames=[TWO]), None, "Nothing is left"),
    "many models": (
        asking(),
        [a_route(f"y{n}", model=f"m{n}") for n in range(8)],
        asking(adapters=[f"m{n}" for n in range(8)]),
        ([ONE], ["chat"]),
        f"{ONE} with the models m0, m1, m2, m3, m4, 3 more at Gateway",
    ),
}


@pytest.mark.parametrize(("before", "others", "asked", "expected", "said"), PARTLY.values(), ids=PARTLY)
async def test_all_but_what_others_have_is_applied(
    before: Any, others: list[Any], asked: Any, expected: tuple[list[str], list[str]] | None, said: str
) -> None:
    world = a_world()
    if before is not None:
        world.see(world.api.put(before, generation=2))
        await world.settle()
    for other in others:
        see(world, other)
    world.see(world.api.put(asked, generation=3))
    for _ in range(3):
        await world.settle()
        assert named(world.stored("HTTPRoute")) == expected
        assert world.condition("RoutingReady")["reason"] == "RouteTaken"
        assert said in world.condition("RoutingReady")["message"]
        world.now += 60
    assert world.calls("HTTPRoute", "apply LLMService") == [], "nothing is written again"
    for other in others:
        world.ctx.cache.remove("HTTPRoute", "team-b", other["metadata"]["name"], other["metadata"]["uid"])
    await world.settle()
    assert world.condition("RoutingReady")["reason"] == "RouteNotAccepted"
    gateway, adapters = asked["spec"]["endpoint"]["gateway"], asked["spec"]["adapters"]
    models = [*asked["spec"]["model"]["servedModelNames"], *(each["name"] for each in adapters)]
    assert named(world.stored("HTTPRoute")) == (gateway["hostnames"], models)


async def test_two_services_may_swap_their_names() -> None:
    world = a_world(byModel=True)
    world.see(world.api.put(asking(["a"]), generation=2))
    await world.settle()
    other = a_route("y", model="b")
    other["metadata"]["namespace"] = "ns"
    see(world, other)
    world.see(world.api.put(asking(["b"]), generation=3))
    await world.settle()
    route = claims_of({"metadata": {"namespace": "ns"}, "spec": a_route("y", model="a")["spec"]})
    assert rivals_of(world.ctx.cache, route, (), Key("ns", "y"), {}) == {}, "the other one may have it"


def leads_to(world: World) -> str:
    (backend,) = world.stored("HTTPRoute")["spec"]["rules"][0]["backendRefs"]
    return str(backend["kind"])


async def pooled() -> World:
    """A service whose route leads to its pool, and the pod there."""
    world = a_world()
    world.ctx.hidden = lambda namespace: frozenset({"EndpointSlice"})
    service = asking()
    service["spec"] |= {"routing": {"mode": "pool"}, "scaling": {"replicas": 1}}
    world.see(world.api.put(service, generation=2))
    await world.settle()
    revision = world.stored("Deployment")["spec"]["template"]["metadata"]["labels"]["llmservice.dev/revision"]
    pod = a_pod("chat-0", revision, ready=True, address="10.0.0.1", service="chat") | {"kind": "Pod"}
    pod["metadata"] |= {"namespace": "ns", "resourceVersion": "77"}
    pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "llmservice-operator"
    world.see(pod)
    await world.settle()
    assert leads_to(world) == "InferencePool"
    return world


async def test_a_refused_edit_leaves_no_route_at_an_empty_pool() -> None:
    world = await pooled()
    world.api.fails["apply Deployment by force"] = [Refused("exceeded quota: team", code=403)] * 99
    world.edit({"batching": {"maxNumSeqs": 8}})
    await world.settle()
    assert world.condition("Stalled")["status"] == "True"
    world.ctx.cache.remove("Pod", "ns", "chat-0", "uid-chat-0")
    await world.settle()
    assert leads_to(world) == "Service", "the refused write waits, and it does not"


async def test_a_route_that_is_partly_taken_leaves_its_pool() -> None:
    world = await pooled()
    see(world, a_route("y", host=TWO))
    world.edit({"endpoint": asking(**BOTH)["spec"]["endpoint"]})
    await world.settle()
    assert leads_to(world) == "InferencePool"
    assert world.condition("RoutingReady")["reason"] == "RouteTaken"
    world.ctx.cache.remove("Pod", "ns", "chat-0", "uid-chat-0")
    await world.settle()
    assert leads_to(world) == "Service", "at once, whatever is refused"
    world.edit({"routing": {"mode": "none"}})
    await world.settle()
    assert world.stored("InferencePool") is None
    assert world.condition("RoutingReady")["reason"] == "RouteTaken"


NOT_DONE: dict[str, tuple[str, Any, str]] = {
    "the rest is refused": (f"{APPLY} by force", asking(adapters=["own"], **BOTH), "RouteRefused"),
    "nothing is left, and it cannot be deleted": (
        "delete HTTPRoute u-HTTPRoute",
        asking(hostnames=[TWO]),
        "RouteTaken",
    ),
    "nothing is left at another Gateway": (
        "delete HTTPRoute u-HTTPRoute",
        asking(ref={"name": "inner", "namespace": "gateways"}),
        "RouteTaken",
    ),
}


@pytest.mark.parametrize(("request_", "asked", "reason"), NOT_DONE.values(), ids=NOT_DONE)
async def test_what_is_left_waits_as_all_refusals_do(request_: str, asked: Any, reason: str) -> None:
    world = a_world(a_route("y", host=TWO), a_route("z", gateway="inner"))
    world.see(world.api.put(asking(), generation=2))
    await world.settle()
    world.api.fails[request_] = [Forbidden("no", code=403)]
    world.see(world.api.put(asked, generation=3))
    then = await world.settle()
    assert then.failure is None
    assert world.condition("RoutingReady")["reason"] == reason
    assert len(world.calls(request_)) == 1
    await world.settle()
    assert world.calls() == [], "nothing before its time"
    world.now += 60
    await world.settle()
    assert world.condition("RoutingReady")["reason"] == "RouteTaken"


async def test_what_is_left_is_claimed_while_it_is_written() -> None:
    world = a_world(a_route("y", host=TWO))
    claimed: list[Any] = []
    apply = world.kube.apply

    async def spied(resource: Any, manifest: Any, **more: Any) -> Any:
        if manifest["kind"] == "HTTPRoute":
            claimed.append({host for claim in world.ctx.claimed[Key("ns", "chat")] for host in claim.hosts})
        return await apply(resource, manifest, **more)

    world.kube.apply = spied  # type: ignore[method-assign]
    world.see(world.api.put(asking(**BOTH), generation=2))
    await world.settle()
    assert claimed == [{ONE}]
    assert world.ctx.claimed == {}


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
