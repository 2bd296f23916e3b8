"""How long the cluster's DNS names a replica that is gone, which is how long a router may send requests there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from llmservice_cli.api import Json, name_of

from .facts import Check, Facts, Finding, names, not_known, ok, warning

LARGEST, MOST_LINES = 64 * 1024, 2_000
"""Characters and lines of a Corefile that are read."""
CONFIGS = ("coredns", "node-local-dns")
"""ConfigMaps of kube-system, which has the second one with NodeLocal DNSCache."""
_TTL, _CACHED = 5, 3_600
"""Seconds: what CoreDNS' plugins `kubernetes` and `cache` do by default."""
_LONGEST = 5
"""Seconds for which a router may follow late: a replica that is to end answers for ten."""


@dataclass(slots=True)
class _Line:
    """A directive of a Corefile, with those in its braces."""

    words: tuple[str, ...]
    inside: list[_Line] = field(default_factory=list)

    def all(self, name: str) -> Iterator[_Line]:
        return (line for line in self.inside if line.words[:1] == (name,))

    def seconds(self, at: int, otherwise: int) -> int:
        word = self.words[at] if len(self.words) > at else ""
        return int(word) if word.isdecimal() and len(word) < 9 else otherwise


def dns(facts: Facts) -> Iterator[Finding]:
    routed = [name_of(each) for each in facts.services if is_routed(each, facts.namespace)]
    servers = [server for name in CONFIGS for server in _servers(facts, name)]
    cluster = next((each for each in servers if any(each.all("kubernetes"))), None)
    if not routed:
        yield ok(f"no LLMService in {facts.namespace} has a router")
        return
    if cluster is None:
        yield not_known("kube-system has no Corefile of CoreDNS with the cluster's names", _UNKNOWN)
        return
    (names_of, *_), domain = cluster.all("kubernetes"), _domain(cluster)
    ttl = next((line.seconds(1, _TTL) for line in names_of.all("ttl")), _TTL)
    asked = (each for each in servers if each is cluster or domain in map(_zone, each.words))
    cached = max((_cached(cache, domain) for each in asked for cache in each.all("cache")), default=0)
    said = f"the cluster's DNS names a replica that is gone for up to {min(ttl, cached)} s"
    if min(ttl, cached) <= _LONGEST:
        yield ok(said)
    else:
        yield warning(f"{said}, and so long routers may send requests there: {names(routed)}", _REMEDY)


_REMEDY = "set ttl 5 in the plugin kubernetes of the ConfigMap coredns in kube-system"
_UNKNOWN = "let the cluster's DNS keep records of Services without a cluster IP for no longer than 5 s"


def is_routed(service: Json, namespace: str) -> bool:
    routing = (service.get("spec") or {}).get("routing") or {}
    return service["metadata"].get("namespace") == namespace and routing.get("mode") == "router"


def _servers(facts: Facts, name: str) -> list[_Line]:
    found = next((each for each in facts.dns if each["metadata"]["name"] == name), {})
    return _parsed(str((found.get("data") or {}).get("Corefile") or ""))


def _parsed(corefile: str) -> list[_Line]:
    """The servers. What opens no brace or closes none too many is a directive of the brace that is open."""
    whole = _Line(())
    opened = [whole]
    for text in corefile[:LARGEST].splitlines()[:MOST_LINES]:
        words = tuple(text.partition("#")[0].split())
        if words[-1:] == ("{",):
            line = _Line(words[:-1])
            opened[-1].inside.append(line)
            opened.append(line)
        elif words == ("}",):
            opened = opened[:-1] or [whole]
        elif words:
            opened[-1].inside.append(_Line(words))
    return whole.inside


def _domain(server: _Line) -> str:
    """The cluster's: of the plugin kubernetes, or else of its server."""
    zones = (zone for line in (*server.all("kubernetes"), server) for zone in map(_zone, line.words))
    return next((zone for zone in zones if "." in zone and not zone.endswith(".arpa")), "")


def _zone(address: str) -> str:
    """Of `dns://cluster.local:53` and the like; empty: all."""
    return re.sub(r"^\w+://|:\d+,?$", "", address).strip(".")


def _cached(cache: _Line, domain: str) -> int:
    """Seconds for which addresses that were found are kept at most."""
    for line in cache.all("disable"):
        if line.words[1:2] == ("success",) and (not line.words[2:] or domain in map(_zone, line.words)):
            return 0
    most = cache.seconds(1, _CACHED)
    return next((line.seconds(2, most) for line in cache.all("success")), most)


CHECKS = (
    Check(
        "dns",
        "of services with routing.mode router: how long CoreDNS and NodeLocal DNSCache name a replica that is gone",
        ("services", "dns"),
        dns,
        True,
    ),
)
