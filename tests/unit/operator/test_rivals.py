"""Whose requests are whose: by the index the same as by comparing each claim with each, in bounded work."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import product
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from kubeloop.informer import Cache
from kubeloop.resources import Key
from llmservice_operator.facts.routes import Pair, claims_of
from llmservice_operator.service.watch import INDICES, PROJECTIONS, rivals_of

from tests.unit.reconcile_world import parent

HOSTS = ("", "a.example.com", "b.example.com", "x.a.example.com", "badexample.com", "example.com", "com")
WILD = ("*.example.com", "*.a.example.com", "*.com", "*.b.example.com")
REJECTED = {"type": "Accepted", "status": "False", "reason": "No", "observedGeneration": 1}


class Asked(NamedTuple):
    """What the spec of a route says."""

    gateway: str
    listener: str
    hosts: tuple[str, ...]
    models: tuple[str, ...]

    def route(self, namespace: str, name: str, *, is_rejected: bool = False, owner: str = "") -> dict[str, Any]:
        matches = [{"headers": [{"name": "m", "value": model}]} if model else {} for model in self.models]
        section = {"sectionName": self.listener} if self.listener else {}
        status = {"parents": [{"parentRef": {}, "conditions": [REJECTED]}]} if is_rejected else {}
        uid = owner or f"u-{namespace}-{name}"
        return {
            "metadata": {
                "namespace": namespace,
                "name": name,
                "uid": f"h-{namespace}-{name}",
                "resourceVersion": "3",
                "generation": 1,
                "ownerReferences": [{"kind": "LLMService", "name": name, "uid": uid, "controller": True}],
                "labels": {"llmservice.dev/service": name, "app.kubernetes.io/managed-by": "llmservice-operator"},
            },
            "spec": {
                "parentRefs": [{"namespace": "gateways", "name": self.gateway, **section}],
                "hostnames": [host for host in self.hosts if host],
                "rules": [{"matches": matches[start : start + 64]} for start in range(0, len(matches), 64)],
            },
            "status": status,
        }

    def pairs(self) -> Iterator[tuple[str, str]]:
        return product([host for host in self.hosts if host] or [""], self.models)


def _some(values: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=4, unique=True).map(tuple)


asked = st.builds(
    Asked,
    st.sampled_from(("public", "public", "inner")),
    st.sampled_from(("", "", "http", "https")),
    _some(HOSTS + WILD),
    _some(("m", "n", "o")) | st.just(("",)) | _some(("", "m")),
)
others = st.lists(
    st.tuples(
        st.sampled_from(("ns", "team-b", "team-c")), asked, st.sampled_from(("", "", "", "rejected", "nobody", "w"))
    ),
    max_size=6,
)


def _covers(host: str, other: str) -> bool:
    return host in ("", other) or (host.startswith("*.") and other.endswith(host[1:]))


def _is_rival(one: Asked, pair: tuple[str, str], other: Asked, each: tuple[str, str], *, is_same_team: bool) -> bool:
    """The definition: of one claim beside another."""
    if one.gateway != other.gateway or (one.listener and other.listener and one.listener != other.listener):
        return False
    if is_same_team:
        return pair == each
    (host, model), (theirs, named) = pair, each
    is_near = _covers(host, theirs) or _covers(theirs, host)
    return is_near and (not model or not named or model == named)


@given(asked, st.none() | asked, others)
def test_each_claim_has_the_rivals_of_the_definition(new: Asked, had: Asked | None, there: Any) -> None:
    cache, written = Cache(PROJECTIONS, INDICES), {}
    expected: dict[tuple[str, str], set[Key]] = {}
    is_kept = had is not None and (had.gateway, had.listener) == (new.gateway, new.listener)
    known = set(had.pairs()) if had is not None and is_kept else set()
    for n, (namespace, other, what) in enumerate(there):
        key = Key(namespace, f"r{n}")
        route = other.route(*key, is_rejected=what == "rejected", owner="somebody" if what == "nobody" else "")
        if what == "w":
            written[key] = claims_of(route)
        else:
            cache.update("LLMService", parent(name=key.name, namespace=namespace, uid=f"u-{namespace}-{key.name}"))
            cache.update("HTTPRoute", route)
        for pair in set(new.pairs()) - known if what in ("", "w") else ():
            is_same_team = namespace == "ns"
            if any(_is_rival(new, pair, other, each, is_same_team=is_same_team) for each in other.pairs()):
                expected.setdefault(pair, set()).add(key)
    own = new.route("ns", "asking")
    cache.update("LLMService", parent(name="asking", namespace="ns", uid="u-ns-asking"))
    cache.update("HTTPRoute", own)
    has = claims_of(had.route("ns", "asking")) if had is not None else frozenset()
    found = rivals_of(cache, claims_of(own), has, Key("ns", "asking"), written)
    assert found.keys() == {Pair(*pair) for pair in expected}
    assert all(found[Pair(*pair)] == min(holders) for pair, holders in expected.items()), "always the same one is named"


class Counting(Cache):
    """Counts what is looked at."""

    looked_at = 0

    def indexed(self, kind: str, value: Hashable) -> Iterator[Any]:
        self.looked_at += 1
        for each in super().indexed(kind, value):
            self.looked_at += 1
            yield each


def test_many_wildcards_by_many_models_cost_no_more_with_many_routes() -> None:
    """1280 pairs each, which share no requests."""
    looked_at = set()
    for count in (2, 40):
        cache = Counting(PROJECTIONS, INDICES)
        for n in range(count + 1):
            hosts, models = (f"*.h{i}-{n}.example.com" for i in range(16)), (f"m{i}-{n}" for i in range(80))
            route = Asked("public", "", tuple(hosts), tuple(models)).route("ns", f"r{n}")
            cache.update("LLMService", parent(name=f"r{n}", namespace="ns", uid=f"u-ns-r{n}"))
            cache.update("HTTPRoute", route)
        (claim,) = claims_of(route)
        assert len(claim.hosts) * len(claim.models) == 1280
        assert rivals_of(cache, [claim], (), Key("ns", f"r{count}"), {}) == {}
        looked_at.add(cache.looked_at)
    assert max(looked_at) < 100
    assert len(looked_at) == 1
