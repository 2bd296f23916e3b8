"""Where a Gateway's requests lead, and what the condition says of the route."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from llmservice_operator.children import with_hash
from llmservice_operator.facts.routes import Claim, HTTPRouteFacts, InferencePoolFacts, Pair, claims_of, taken
from llmservice_operator.manifests.gateway import narrowed
from llmservice_operator.observe.observed import PROJECTIONS, Refusal

from tests.unit.decide_world import H100, SETTINGS, World, a_pod, settled
from tests.unit.hostile import json_value, seeds

Json = dict[str, Any]

GATEWAY: Json = {"ref": {"name": "public", "namespace": "gateways"}, "hostnames": ["models.example.com"]}
BY_MODEL = GATEWAY | {"byModel": True}
HEADER = "X-Gateway-Model-Name"
ROUTE, POOL = ("HTTPRoute", "x"), ("InferencePool", "x")
TO_SERVICE = {"group": "", "kind": "Service", "name": "x", "port": 80, "weight": 1}
TO_POOL = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "x", "weight": 1}


def attached(gateway: Json | None = None, *, is_allowed: bool = True, **sections: Any) -> World:
    """A service with replicas that serve."""
    given = {"endpoint": {"gateway": GATEWAY if gateway is None else gateway}} | sections
    world = settled(H100, scaling={"replicas": 2})
    world.settings = replace(SETTINGS, has_gateways=is_allowed)
    world.settle()
    world.roll_out()
    world.change(**given)
    return world


def answered(world: World, *conditions: tuple[str, str, str, str], of: Any = ROUTE, **more: Any) -> World:
    """With the Gateway's conditions: type, status, reason, message."""
    child = world.children[of]
    found = [
        {"type": type_, "status": status, "reason": reason, "message": message, **more}
        for type_, status, reason, message in conditions
    ]
    parent = {"parentRef": {"name": "public", "namespace": "gateways"}, "conditions": found}
    child["status"] = {"parents": [parent]}
    world.settle()
    return world


TAKEN = (("Accepted", "True", "Accepted", ""), ("ResolvedRefs", "True", "ResolvedRefs", ""))


def leads_to(world: World) -> Any:
    (backend,) = world.children[ROUTE]["spec"]["rules"][0]["backendRefs"]
    return backend


def test_the_route_of_a_service() -> None:
    world = attached()
    assert world.children[ROUTE]["spec"] == {
        "parentRefs": [
            {
                "group": "gateway.networking.k8s.io",
                "kind": "Gateway",
                "name": "public",
                "namespace": "gateways",
            }
        ],
        "hostnames": ["models.example.com"],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}],
                "backendRefs": [TO_SERVICE],
                "timeouts": {"request": "0s"},
            }
        ],
    }
    assert POOL not in world.children
    assert world.condition("RoutingReady") == ("Unknown", "RouteNotAccepted")
    assert world.condition("Ready") == ("True", "RolledOut")
    answered(world, *TAKEN)
    assert world.condition("RoutingReady") == ("True", "Attached")
    assert "gateways/public" in world.message("RoutingReady")


def test_requests_come_by_the_names_of_the_model_and_its_adapters() -> None:
    adapters = [{"name": f"a{n:02}", "uri": f"hf://o/a{n}"} for n in range(64)]
    world = attached(BY_MODEL, adapters=adapters)
    rules = world.children[ROUTE]["spec"]["rules"]
    assert [len(rule["matches"]) for rule in rules] == [64, 1], "64 of a rule, 128 of a route"
    headers = [match["headers"] for rule in rules for match in rule["matches"]]
    assert headers[0] == [{"type": "Exact", "name": HEADER, "value": "x"}]
    assert {each["value"] for (each,) in headers} == {"x", *(adapter["name"] for adapter in adapters)}
    assert all(rule["backendRefs"] == [TO_SERVICE] for rule in rules)


def test_a_pool_leads_requests_to_replicas_while_some_serve() -> None:
    world = attached(routing={"mode": "pool"})
    assert world.children[POOL]["spec"] == {
        "selector": {"matchLabels": {"llmservice.dev/service": "x"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": "x-epp",
            "port": {"number": 9002},
            "failureMode": "FailOpen",
        },
    }
    assert leads_to(world) == TO_POOL
    for name in tuple(world.pods):
        world.pods[name] = a_pod(name, world.revision(), ready=False)
    world.settle()
    assert leads_to(world) == TO_SERVICE, "where they are held, or refused as everywhere"
    world.pods["x-0"] = a_pod("x-0", world.revision(), ready=True)
    world.settle()
    assert leads_to(world) == TO_POOL
    answered(world, *TAKEN)
    assert world.condition("RoutingReady") == ("Unknown", "RouteNotAccepted"), "the pool is yet to be accepted"
    answered(world, *TAKEN, of=POOL)
    assert world.condition("RoutingReady") == ("True", "Attached")


def test_a_pool_that_rests_is_no_fault() -> None:
    world = attached(routing={"mode": "pool"})
    world.change(scaling={"replicas": 0})
    assert leads_to(world) == TO_SERVICE
    answered(world, *TAKEN)
    assert world.condition("RoutingReady") == ("True", "Attached"), "of a pool without a route nobody says anything"


NO_POOL: dict[str, Json] = {
    "no CRD": {"hidden": frozenset({"InferencePool"})},
    "refused": {"refused": {POOL: Refusal(403, "no")}},
    "somebody else's": {},
}


@pytest.mark.parametrize("found", NO_POOL.values(), ids=NO_POOL)
def test_without_a_pool_of_its_own_the_route_leads_to_the_service(found: Json) -> None:
    world = attached()
    world.hidden, world.refused = found.get("hidden", frozenset()), found.get("refused", {})
    if not found:
        world.children[POOL] = {
            "metadata": {"name": "x", "namespace": "team-a", "uid": "theirs", "resourceVersion": "1"},
            "spec": {},
        }
    world.change(routing={"mode": "pool"})
    assert leads_to(world) == TO_SERVICE
    assert world.condition("RoutingReady")[0] == "False"


def test_a_pool_goes_after_the_route_no_longer_leads_to_it() -> None:
    world = attached(routing={"mode": "pool"})
    world.edit(routing={})
    first = world.step()
    assert leads_to(world) == TO_SERVICE
    assert POOL not in {(prune.kind, prune.name) for prune in first.prune}
    world.settle()
    assert POOL not in world.children


def test_the_route_leaves_the_pool_before_the_last_replica_goes() -> None:
    world = attached(routing={"mode": "pool"})
    world.edit(scaling={"replicas": 0})
    kinds = [apply.kind for apply in world.step().apply]
    assert kinds.index("HTTPRoute") < kinds.index("Deployment")


NOTHING_MAY_CHANGE: dict[str, Json] = {
    "paused": {"paused": True},
    "paused, with an edit": {"paused": True, "routing": {}, "endpoint": {"gateway": BY_MODEL, "port": 81}},
    "a spec that cannot be read": {"batching": {"maxNumSeqs": "many"}},
}


@pytest.mark.parametrize("edit", NOTHING_MAY_CHANGE.values(), ids=NOTHING_MAY_CHANGE)
def test_the_route_leaves_an_empty_pool_whatever_may_not_change(edit: Json) -> None:
    world = attached(routing={"mode": "pool"})
    before = world.children[ROUTE]["spec"]
    world.change(**edit)
    assert world.children[ROUTE]["spec"] == before
    serving = dict(world.pods)
    for name in serving:
        world.pods[name] = a_pod(name, world.revision(), ready=False)
    assert [apply.kind for apply in world.step().apply] == ["HTTPRoute"]
    to_service = [rule | {"backendRefs": [TO_SERVICE]} for rule in before["rules"]]
    assert world.children[ROUTE]["spec"] == before | {"rules": to_service}
    assert not world.step().apply
    world.pods.update(serving)
    assert [apply.kind for apply in world.step().apply] == ["HTTPRoute"]
    assert world.children[ROUTE]["spec"] == before


def names(world: World) -> set[str]:
    return {
        match["headers"][0]["value"] for rule in world.children[ROUTE]["spec"]["rules"] for match in rule["matches"]
    }


NAMED: Json = {"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "servedModelNames": ["renamed"]}


def test_an_old_name_leads_to_the_pods_that_know_it() -> None:
    world = attached(BY_MODEL)
    world.edit(model=NAMED)
    world.settle()
    assert names(world) == {"x", "renamed"}, "pods of the old revision serve"
    world.roll_out()
    world.settle()
    assert names(world) == {"renamed"}
    world.change(
        model={"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "servedModelNames": ["again"]},
        batching={"maxModelLen": 30_000_000},
    )
    assert "renamed" in names(world), "the edit is held"


HELD_NAMES: dict[str, tuple[Json, Json, set[str]]] = {
    # What was there, what the held edit changes, and the names that the route has then.
    "another name": ({}, {"model": NAMED}, {"x"}),
    "an adapter more": ({}, {"adapters": [{"name": "new", "uri": "hf://o/a"}]}, {"x"}),
    "an adapter less": ({"adapters": [{"name": "old", "uri": "hf://o/a"}]}, {"adapters": []}, {"x", "old"}),
    "by names from now on": (
        {"endpoint": {"gateway": GATEWAY}},
        {"endpoint": {"gateway": BY_MODEL}, "model": NAMED},
        {"x"},
    ),
}


@pytest.mark.parametrize(("before", "edit", "expected"), HELD_NAMES.values(), ids=HELD_NAMES)
def test_a_held_edit_takes_no_names_that_no_pod_knows(before: Json, edit: Json, expected: set[str]) -> None:
    world = attached(BY_MODEL)
    if before:
        world.change(**before)
        world.roll_out()
        world.settle()
    world.change(**edit, batching={"maxModelLen": 30_000_000})
    assert world.condition("Ready")[0] == "False"
    assert names(world) == expected


def test_names_for_which_a_route_has_no_room_are_said() -> None:
    adapters = [[{"name": f"{letter}{n:02}", "uri": "hf://o/a"} for n in range(64)] for letter in "ab"]
    served = [{"uri": "hf://o/m", "servedModelNames": [f"{letter}{n}" for n in range(16)]} for letter in "mn"]
    world = attached(BY_MODEL, adapters=adapters[0])
    world.change(model=served[0])
    world.roll_out()
    world.settle()
    answered(world, *TAKEN)
    assert world.condition("RoutingReady") == ("True", "Attached")
    world.change(model=served[1], adapters=adapters[1])
    assert len(names(world)) == 128
    assert world.condition("RoutingReady") == ("False", "RouteRefused")
    assert "HTTPRoute x has 128 names of models, the most" in world.message("RoutingReady")
    assert "rename fewer at a time" in world.message("RoutingReady")
    world.roll_out()
    world.settle()
    assert len(names(world)) == 80
    answered(world, *TAKEN)
    assert world.condition("RoutingReady") == ("True", "Attached")


REST: dict[str, tuple[Json, bool]] = {
    # Whether the live route is written at once while the refusal of `m` waits.
    "the last replicas go": ({"scaling": {"replicas": 0}}, True),
    "the pool is no longer asked for": ({"routing": {}}, True),
    "another port of the Service": ({"routing": {}, "endpoint": {"port": 81, "gateway": BY_MODEL}}, True),
    "a host less": ({"endpoint": {"gateway": BY_MODEL | {"hostnames": ["two.example.com"]}}}, True),
    "nothing": ({}, False),
    "an adapter that the route lacks": ({"adapters": [{"name": "m", "uri": "hf://o/a"}]}, False),
}


@pytest.mark.parametrize(("edit", "is_written"), REST.values(), ids=REST)
def test_the_rest_of_a_route_that_is_partly_taken_follows(edit: Json, is_written: bool) -> None:
    world = attached(BY_MODEL | {"hostnames": ["models.example.com", "two.example.com"]}, routing={"mode": "pool"})
    assert leads_to(world) == TO_POOL
    world.edit(**edit)
    if "adapters" in edit:
        made = next(each for each in world.step().desired if each["kind"] == "HTTPRoute")
        left = narrowed(dict(made), ("models.example.com", "two.example.com"), ("x",))
        assert left is not None
        world._apply(with_hash(left).manifest)
        world.settle()
    world.refused[ROUTE] = HELD
    first = world.step()
    kinds = [apply.kind for apply in first.apply]
    assert ("HTTPRoute" in kinds) is is_written
    if "scaling" in edit:
        assert kinds.index("HTTPRoute") < kinds.index("Deployment")
        assert leads_to(world) == TO_SERVICE
    world.refused[ROUTE] = Refusal(422, "no")
    world.edit(endpoint={"gateway": BY_MODEL, "port": 82})
    assert "HTTPRoute" not in [apply.kind for apply in world.step().apply], "refused for another reason, it waits"


def test_a_held_edit_leaves_the_route() -> None:
    world = attached(routing={"mode": "pool"})
    world.change(batching={"maxModelLen": 30_000_000})
    assert world.condition("Ready")[0] == "False"
    assert leads_to(world) == TO_POOL
    world.change(batching={"maxModelLen": 30_000_000}, endpoint={"gateway": GATEWAY | {"hostnames": ["b.example.com"]}})
    assert world.children[ROUTE]["spec"]["hostnames"] == ["b.example.com"]


def test_what_is_no_longer_asked_for_goes() -> None:
    world = attached(routing={"mode": "pool", "endpointPicker": {"name": "mine", "port": 9999}})
    assert (
        world.children[POOL]["spec"]["endpointPickerRef"] | {"name": "mine", "port": {"number": 9999}}
        == (world.children[POOL]["spec"]["endpointPickerRef"])
    )
    world.change(routing={})
    assert POOL not in world.children
    assert leads_to(world) == TO_SERVICE
    world.change(endpoint={})
    assert ROUTE not in world.children
    assert "RoutingReady" not in world.conditions()


SAID: dict[str, tuple[tuple[tuple[str, str, str, str], ...], Json, tuple[str, str], str]] = {
    "no listener admits it": (
        (("Accepted", "False", "NotAllowedByListeners", "No listener admits\x1b[2J it."), TAKEN[1]),
        {},
        ("False", "RouteNotAccepted"),
        "Gateway gateways/public says of HTTPRoute x: Accepted=False (NotAllowedByListeners): No listener admits",
    ),
    "no such backend": (
        (TAKEN[0], ("ResolvedRefs", "False", "BackendNotFound", "none")),
        {},
        ("False", "RouteNotAccepted"),
        "ResolvedRefs=False (BackendNotFound): none. See what",
    ),
    "not yet": ((("Accepted", "Unknown", "Pending", ""),), {}, ("Unknown", "RouteNotAccepted"), "Accepted=Unknown"),
    "of an earlier generation": (TAKEN, {"observedGeneration": 0}, ("Unknown", "RouteNotAccepted"), "No Gateway's"),
    "half of it": (TAKEN[:1], {}, ("Unknown", "RouteNotAccepted"), "has said ResolvedRefs of HTTPRoute x yet"),
    "some rules are dropped": (
        (*TAKEN, ("PartiallyInvalid", "True", "UnsupportedValue", "Dropped Rule(s) [0]")),
        {},
        ("False", "RouteNotAccepted"),
        "PartiallyInvalid=True (UnsupportedValue): Dropped Rule(s) [0].",
    ),
    "none is dropped": ((*TAKEN, ("PartiallyInvalid", "False", "Fine", "")), {}, ("True", "Attached"), "public"),
    "of this generation": (TAKEN, {"observedGeneration": 1}, ("True", "Attached"), "gateways/public"),
}


@pytest.mark.parametrize(("conditions", "more", "expected", "words"), SAID.values(), ids=SAID)
def test_what_the_gateway_says_is_passed_on(
    conditions: tuple[tuple[str, str, str, str], ...], more: Json, expected: tuple[str, str], words: str
) -> None:
    world = answered(attached(), *conditions, **more)
    assert world.condition("RoutingReady") == expected
    assert words in world.message("RoutingReady")
    assert world.condition("Ready") == ("True", "RolledOut")


def test_what_another_gateway_says_is_of_no_interest() -> None:
    world = attached()
    parent = {"parentRef": {"name": "public"}, "conditions": [{"type": "Accepted", "status": "False", "reason": "No"}]}
    world.children[ROUTE]["status"] = {"parents": [parent]}
    world.settle()
    assert world.condition("RoutingReady") == ("Unknown", "RouteNotAccepted")


ASKED = Claim("gateways/public", "", frozenset(["models.example.com"]), frozenset(["m", "x"]))
HELD = Refusal(409, taken([ASKED], {Pair("models.example.com", "m"): "LLMService y"}))
PROBLEMS: dict[str, tuple[Json, tuple[str, str], str]] = {
    "the installation has none": ({"is_allowed": False}, ("False", "GatewayDisabled"), "gateway.enabled=true"),
    "no CRD": ({"hidden": frozenset({"HTTPRoute"})}, ("False", "GatewayAPIMissing"), "It is HTTPRoute."),
    "refused": (
        {"refused": {ROUTE: Refusal(422, "spec.hostnames: Invalid value")}},
        ("False", "RouteRefused"),
        "HTTPRoute x cannot be applied as it is asked for: spec.hostnames: Invalid value.",
    ),
    "another service's": (
        {"refused": {ROUTE: HELD}},
        ("False", "RouteTaken"),
        "models.example.com with the model m at Gateway gateways/public is taken by LLMService y.",
    ),
}


@pytest.mark.parametrize(("found", "expected", "words"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_keeps_a_route_from_being_made(found: Json, expected: tuple[str, str], words: str) -> None:
    world = attached(is_allowed=found.get("is_allowed", True))
    if found.get("is_allowed", True):
        world.children.pop(ROUTE)
        world.hidden, world.refused = found.get("hidden", frozenset()), found.get("refused", {})
    world.settle()
    assert world.condition("RoutingReady") == expected
    assert words in world.message("RoutingReady")
    assert world.condition("Ready") == ("True", "RolledOut")
    assert ROUTE not in world.children


def test_a_route_of_somebody_else_is_left_alone() -> None:
    world = attached()
    world.children[ROUTE] = {
        "metadata": {"name": "x", "namespace": "team-a", "uid": "theirs", "resourceVersion": "1"},
        "spec": {"rules": []},
    }
    world.settle()
    assert world.condition("RoutingReady") == ("False", "RouteRefused")
    assert world.children[ROUTE]["spec"] == {"rules": []}
    assert world.condition("Ready") == ("True", "RolledOut")


def test_the_router_and_the_gateway_together_say_the_worse() -> None:
    world = attached(routing={"mode": "router"})
    answered(world, *TAKEN)
    assert world.condition("RoutingReady") == ("False", "RoutingDisabled")
    world.settings = replace(world.settings, router_image="router:1")
    world.settle()
    assert world.condition("RoutingReady") == ("Unknown", "Progressing")


def test_what_a_route_takes() -> None:
    world = attached(BY_MODEL | {"hostnames": ["a.example.com", "b.example.com"]})
    hosts = frozenset(("a.example.com", "b.example.com"))
    assert claims_of(world.children[ROUTE]) == {Claim("gateways/public", "", hosts, frozenset("x"))}
    world = attached({"ref": {"name": "own", "sectionName": "https"}})
    assert claims_of(world.children[ROUTE]) == {Claim("team-a/own", "https", frozenset([""]), frozenset([""]))}


A, WILD, ANY = "a.example.com", "*.example.com", ""
RIVALS: dict[str, tuple[tuple[str, str, str], tuple[str, str, str], tuple[bool, bool]]] = {
    # (listener, host, model) of each; whether they are rivals within a namespace, and of two
    "the same": (("", A, ""), ("", A, ""), (True, True)),
    "the same model": (("", A, "m"), ("", A, "m"), (True, True)),
    "another model": (("", A, "m"), ("", A, "n"), (False, False)),
    "a model beside all requests": (("", A, "m"), ("", A, ""), (False, True)),
    "another host": (("", A, ""), ("", "b.example.com", ""), (False, False)),
    "a host beside a wildcard": (("", A, ""), ("", WILD, ""), (False, True)),
    "a deeper host beside a wildcard": (("", "x.y.example.com", ""), ("", WILD, ""), (False, True)),
    "a host that only ends alike": (("", "badexample.com", ""), ("", WILD, ""), (False, False)),
    "a host beside any": (("", A, ""), ("", ANY, ""), (False, True)),
    "two wildcards": (("", WILD, "m"), ("", "*.b.example.com", "m"), (False, True)),
    "another listener": (("http", A, ""), ("https", A, ""), (False, False)),
    "any listener": (("", A, ""), ("https", A, ""), (True, True)),
}


@pytest.mark.parametrize(("one", "other", "expected"), RIVALS.values(), ids=RIVALS)
def test_which_routes_are_rivals(
    one: tuple[str, str, str], other: tuple[str, str, str], expected: tuple[bool, bool]
) -> None:
    first, second = (Claim("g", each[0], frozenset([each[1]]), frozenset([each[2]])) for each in (one, other))
    for ours, theirs in ((first, second), (second, first)):
        found = tuple(all(ours.shared(theirs, is_same_team=is_same)) for is_same in (True, False))
        assert found == expected
        # By the index all are found that are to be looked at.
        assert not any(found) or ours.near(ours.hosts) & theirs.keys
    assert not all(first.shared(second._replace(gateway="h"), is_same_team=False))


NAMES = (
    *("spec", "status", "parents", "parentRef", "parentRefs", "conditions", "type", "Accepted", "observedGeneration"),
    *("hostnames", "rules", "matches", "headers", "value", "name", "namespace", "message", "reason"),
)


@given(seeds)
def test_whatever_a_route_says_is_read_within_bounds(seed: int) -> None:
    random = Random(seed)
    metadata = {"name": "x", "namespace": "team-a", "uid": "u", "resourceVersion": "1", "generation": 1}
    said = {"metadata": metadata, "spec": {}, "status": json_value(random, ("Accepted", 1), NAMES, 6)}
    for kind in ("HTTPRoute", "InferencePool"):
        read = PROJECTIONS[kind](said, None)
        assert isinstance(read, HTTPRouteFacts | InferencePoolFacts)
        assert all(each.isprintable() for parent in read.parents for each in parent)
    claims = claims_of({"metadata": metadata, "spec": json_value(random, ("Accepted", 1), NAMES, 6)})
    texts = {text for claim in claims for text in (claim.gateway, claim.listener, *claim.hosts, *claim.models)}
    assert all(map(str.isprintable, texts))


def test_a_route_of_everything_is_read_in_bounds() -> None:
    ref = {"name": "n" * 5000}
    matches = [{"headers": [{"value": f"{n}"}]} for n in range(5000)]
    spec = {"parentRefs": [ref] * 5000, "hostnames": [f"h{n}" for n in range(5000)], "rules": [{"matches": matches}]}
    claims = claims_of({"metadata": {"namespace": "team-a"}, "spec": spec})
    (claim,) = claims
    assert len(claim.gateway) < 300
    assert len(claim.hosts) * len(claim.models) <= 4096
    assert len(claim.keys) <= 128
