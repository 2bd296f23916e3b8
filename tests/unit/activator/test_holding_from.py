"""spec.scaling.holding.from: which clients are admitted, as by a NetworkPolicy, and what is refused."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from llmservice_activator.admission import Admission, ClientPod, Unidentified, address_of, in_block, matches, selects
from llmservice_activator.holding.interface import HoldingTarget, Refusal
from llmservice_activator.services import Services, Unknown
from llmservice_api.constants import LLMSERVICE
from llmservice_api.errors import InvalidSpec
from llmservice_api.holding import Block, Requirement, peers_of
from llmservice_api.service import LLMService

from tests.unit.decide_world import an_llmservice, spec
from tests.unit.holding_world import KEY, target, world
from tests.unit.scaler_zero_world import CHAT, NOON, at_zero

Json = dict[str, Any]

CHAT_APP = {"matchLabels": {"app": "chat"}}
TEAM = {"matchLabels": {"team": "a"}}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


class Cluster:
    """Pods and namespaces by address and name, and what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.pods = {"10.0.0.1": ClientPod("ns", {"app": "chat"}), "10.0.0.2": ClientPod("other", {"app": "chat"})}
        self.namespaces = {"ns": {"team": "b"}, "other": {"team": "a"}}
        self.fails = ""

    async def pod(self, address: str) -> ClientPod | None:
        self.asked.append(address)
        if self.fails == "pod":
            raise Unidentified("the API server is away")
        return self.pods.get(address)

    async def namespace(self, name: str) -> dict[str, str]:
        self.asked.append(name)
        if self.fails == "namespace":
            raise Unidentified("the API server is away")
        return self.namespaces[name]


def admission(peers: list[Json], cluster: Cluster) -> Admission:
    return Admission(services({"from": peers}).find, cluster)


def of(peers: list[Json]) -> HoldingTarget:
    """The target of a service with these peers."""
    zero = services({"from": peers}).find(CHAT)
    assert zero is not None
    assert zero.holding is not None
    return target(CHAT, port=1, clients=zero.holding.clients)


async def test_who_was_admitted_still_is_once_the_service_always_has_a_replica() -> None:
    """minReplicas was raised: for some seconds nodes still send requests here, and a pod answers them."""
    peers = [{"podSelector": CHAT_APP}]
    known, before = services({"from": peers}), of(peers)
    asked = Admission(known.find, Cluster())
    known.updated(LLMSERVICE, at_zero(scaling={"autoscaling": {"minReplicas": 1, "maxReplicas": 2}}))
    service = known.find(CHAT)
    assert service is not None
    assert service.holding is None
    assert await asked.admits(before, OWN) is None
    refused = await asked.admits(before, NODE)
    assert refused is not None
    assert refused.status == 403


def services(holding: Json) -> Services:
    made = Services(now=lambda: NOON)
    made.updated(LLMSERVICE, at_zero(scaling={"holding": holding}))
    return made


OWN, OTHER, NODE = "10.0.0.1", "10.0.0.2", "192.168.7.7"
CASES: list[tuple[str, list[Json], set[str]]] = [
    ("nothing: everybody", [], {OWN, OTHER, NODE}),
    ("a pod selector is of the own namespace", [{"podSelector": CHAT_APP}], {OWN}),
    ("an empty pod selector: all of the own namespace", [{"podSelector": {}}], {OWN}),
    ("another label", [{"podSelector": {"matchLabels": {"app": "x"}}}], set()),
    ("a namespace selector: all pods there", [{"namespaceSelector": TEAM}], {OTHER}),
    ("an empty namespace selector: all pods, no nodes", [{"namespaceSelector": {}}], {OWN, OTHER}),
    ("both must match", [{"namespaceSelector": TEAM, "podSelector": {"matchLabels": {"app": "x"}}}], set()),
    ("both match", [{"namespaceSelector": TEAM, "podSelector": CHAT_APP}], {OTHER}),
    ("both, empty pod selector", [{"namespaceSelector": TEAM, "podSelector": {}}], {OTHER}),
    ("entries are alternatives", [{"namespaceSelector": TEAM}, {"podSelector": {}}], {OWN, OTHER}),
    ("In", [{"podSelector": expression("app", "In", "x", "chat")}], {OWN}),
    ("In, absent key", [{"podSelector": expression("tier", "In", "x")}], set()),
    ("NotIn, absent key", [{"podSelector": expression("tier", "NotIn", "x")}], {OWN}),
    ("NotIn", [{"podSelector": expression("app", "NotIn", "chat")}], set()),
    ("Exists", [{"podSelector": expression("app", "Exists")}], {OWN}),
    ("Exists not", [{"podSelector": expression("tier", "Exists")}], set()),
    ("DoesNotExist", [{"podSelector": expression("app", "DoesNotExist")}], set()),
    ("DoesNotExist, absent key", [{"podSelector": expression("tier", "DoesNotExist")}], {OWN}),
    ("labels and expressions", [{"podSelector": CHAT_APP | expression("app", "NotIn", "chat")}], set()),
    ("a block", [{"ipBlock": {"cidr": "192.168.0.0/16"}}], {NODE}),
    ("its exceptions", [{"ipBlock": {"cidr": "192.168.0.0/16", "except": ["192.168.7.0/24"]}}], set()),
    ("a block has pods too", [{"ipBlock": {"cidr": "10.0.0.2/32"}}], {OTHER}),
    ("host bits do not count", [{"ipBlock": {"cidr": "10.0.0.77/24"}}], {OWN, OTHER}),
    ("the other family", [{"ipBlock": {"cidr": "::/0"}}], set()),
]


@pytest.mark.parametrize(("name", "peers", "admitted"), CASES, ids=[case[0] for case in CASES])
async def test_the_meaning_is_that_of_a_network_policy(name: str, peers: list[Json], admitted: set[str]) -> None:
    asked = admission(peers, Cluster())
    found = {address: await asked.admits(of(peers), address) for address in (OWN, OTHER, NODE)}
    assert {address for address, refusal in found.items() if refusal is None} == admitted
    assert {refusal.status for refusal in found.values() if refusal is not None} <= {403}


async def test_addresses_of_blocks_are_not_looked_up_and_mapped_ones_are_ipv4() -> None:
    cluster = Cluster()
    asked = admission([{"ipBlock": {"cidr": "10.0.0.0/24"}}, {"podSelector": {}}], cluster)
    wanted = of([{"ipBlock": {"cidr": "10.0.0.0/24"}}, {"podSelector": {}}])
    assert await asked.admits(wanted, "::ffff:10.0.0.9") is None
    assert cluster.asked == []
    assert await asked.admits(wanted, "::ffff:10.9.9.9") is not None
    assert cluster.asked == ["10.9.9.9"]


@pytest.mark.parametrize("fails", ["pod", "namespace", "address", "service"])
async def test_what_cannot_be_found_out_is_never_open(fails: str) -> None:
    cluster = Cluster()
    cluster.fails = fails
    asked = admission([{"namespaceSelector": {}}], cluster)
    wanted = replace(of([{"namespaceSelector": {}}]), key=KEY if fails == "service" else CHAT)
    refusal = await asked.admits(wanted, "" if fails == "address" else OWN)
    assert refusal is not None
    assert refusal.status == 503


BAD: list[tuple[Json, str]] = [
    ({}, ""),
    ({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}, ".ipBlock"),
    ({"ipBlock": {"cidr": "10.0.0.0"}}, ".ipBlock.cidr"),
    ({"ipBlock": {"cidr": "10.0.0.0/33"}}, ".ipBlock.cidr"),
    ({"ipBlock": {"cidr": "10.0.0.0/255.0.0.0"}}, ".ipBlock.cidr"),
    ({"ipBlock": {"cidr": "example.com/8"}}, ".ipBlock.cidr"),
    ({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "11.0.0.0/16"]}}, ".ipBlock.except[1]"),
    ({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["0.0.0.0/0"]}}, ".ipBlock.except[0]"),
    ({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["::/0"]}}, ".ipBlock.except[0]"),
    ({"podSelector": expression("a", "Gt", "1")}, ".podSelector.matchExpressions[0].operator"),
    ({"podSelector": expression("a", "In")}, ".podSelector.matchExpressions[0].values"),
    ({"podSelector": expression("a", "Exists", "b")}, ".podSelector.matchExpressions[0].values"),
    ({"namespaceSelector": expression("-a", "Exists")}, ".namespaceSelector.matchExpressions[0]"),
    ({"namespaceSelector": {"matchLabels": {"a": "b c"}}}, ".namespaceSelector.matchLabels"),
]


@pytest.mark.parametrize(("peer", "field"), BAD)
def test_what_means_nothing_is_refused_with_its_field_and_what_to_do(peer: Json, field: str) -> None:
    holding = {"from": [{"podSelector": {}}, peer]}
    with pytest.raises(InvalidSpec) as refused:
        LLMService.from_object(an_llmservice(spec(scaling={"autoscaling": {"maxReplicas": 2}, "holding": holding})))
    (problem,) = refused.value.problems
    assert problem.field == f"spec.scaling.holding.from[1]{field}"
    assert problem.remedy
    with pytest.raises(Unknown, match=r"scaling\.holding\.from\[1\]"):
        services(holding).get(CHAT)


async def test_a_client_that_is_not_admitted_wakes_nobody_whatever_it_sends() -> None:
    said: list[tuple[str, str]] = []
    answers = [Refusal(403, "permission_denied", "no"), Refusal(503, "ClientUnidentified", "later")]

    async def admits(target: HoldingTarget, address: str) -> Refusal | None:
        said.append((str(target.key), address))
        return answers[len(said) % 2]

    async with world(admits) as made:
        of = target(keys=frozenset({"right"}))
        await made.serve(of)
        later, refused = await made.ask(of), await made.ask(of, headers={"Authorization": "Bearer right"})
        assert (later.status, later.error["type"], later.headers["Retry-After"]) == (503, "ClientUnidentified", "10")
        assert (refused.status, refused.error["code"], refused.error["type"]) == (403, 403, "permission_denied")
        assert (await made.ask(of, "/v1/models", "GET")).status == 503
        assert (await made.ask(of, "/llmservice.dev/activator", "GET")).json == {"uid": of.uid}, "the operator's proof"
        assert said == [(str(KEY), "127.0.0.1")] * 3
        assert made.woken == []
        assert made.held(of) == 0
        assert made.counted.of == {"answered forbidden": 1, "answered unidentified": 2, "answered probed": 1}


LABELS = some.dictionaries(some.sampled_from("abcd"), some.sampled_from("xyz"))
REQUIREMENTS = some.builds(
    Requirement,
    some.sampled_from("abcd"),
    some.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    some.frozensets(some.sampled_from("xyz"), min_size=1),
)
OPPOSITE = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}


@given(some.lists(REQUIREMENTS, max_size=4), LABELS)
def test_a_selector_matches_where_the_opposite_of_none_of_its_requirements_does(
    selector: list[Requirement], labels: dict[str, str]
) -> None:
    opposites = [Requirement(each.key, OPPOSITE[each.operator], each.values) for each in selector]
    assert matches(selector, labels) == (not any(matches([each], labels) for each in opposites))


ADDRESSES = some.ip_addresses()


@given(ADDRESSES, ADDRESSES, some.integers(0, 128), some.integers(0, 128))
def test_blocks_by_the_bits_of_addresses(address: Any, other: Any, outer: int, inner: int) -> None:
    bits = other.max_prefixlen
    outer, inner = sorted((outer % (bits + 1), inner % (bits + 1)))
    cidr, excepted = (ipaddress.ip_network(f"{other}/{prefix}", strict=False) for prefix in (outer, inner))

    def shares(prefix: int) -> bool:
        same: bool = int(address) >> bits - prefix == int(other) >> bits - prefix
        return same and bool(address.version == other.version)

    assert in_block(Block(cidr), address) == shares(outer)
    assert in_block(Block(cidr, (excepted,)), address) == (shares(outer) and not shares(inner))


ANYTHING = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=12),
    lambda inner: some.lists(inner, max_size=3),
    max_leaves=4,
)
TEXTS = some.text(max_size=20) | some.sampled_from(["10.0.0.0/8", "::/0", "a", "In", "a/b", "10.0.0.0/8/8", "%", "/"])
SELECTORS = some.fixed_dictionaries(
    {},
    optional={
        "matchLabels": some.dictionaries(TEXTS, TEXTS, max_size=2),
        "matchExpressions": some.lists(
            some.fixed_dictionaries({"key": TEXTS, "operator": TEXTS}, optional={"values": some.lists(TEXTS)}),
            max_size=2,
        ),
    },
)
PEERS = some.fixed_dictionaries(
    {},
    optional={
        "podSelector": SELECTORS,
        "namespaceSelector": SELECTORS,
        "ipBlock": some.fixed_dictionaries({"cidr": TEXTS}, optional={"except": some.lists(TEXTS, max_size=2)}),
    },
)


@given(some.lists(PEERS, max_size=3), TEXTS | ADDRESSES.map(str), LABELS)
def test_whatever_the_schema_accepts_is_refused_or_decides(
    peers: list[Json], text: str, labels: dict[str, str]
) -> None:
    try:
        found = peers_of(peers)
    except InvalidSpec:
        return
    assert len(found) == len(peers)
    for peer in found:
        assert selects(peer, ClientPod("ns", labels), "ns", labels) in (True, False)
    try:
        address = address_of(text)
    except Unidentified:
        return
    assert not (address.version == 6 and address.ipv4_mapped)
