"""What Gateways' controllers say of HTTPRoutes and InferencePools, and which requests a route takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from llmservice_operator.facts import normalize
from llmservice_operator.facts.children import (
    LONGEST_TEXT,
    LONGEST_WORD,
    MOST_CONDITIONS,
    ChildFacts,
    Json,
    common_of,
    text_of,
)


class ParentStatus(NamedTuple):
    """A condition of the controller of a Gateway to which a route or a pool is attached, with bounded texts."""

    gateway: str
    """NAMESPACE/NAME."""
    type: str
    """Accepted, ResolvedRefs, or PartiallyInvalid, which is bad where it is True."""
    status: str
    reason: str
    message: str


ANY = ""
"""Any host of the listener, or any request whatever model it names."""


class Pair(NamedTuple):
    """Requests for a host by a model; each may be ANY."""

    host: str
    model: str


class Claim(NamedTuple):
    """Requests that a route takes at a Gateway: for each of the hosts by each of the models."""

    gateway: str
    """NAMESPACE/NAME."""
    listener: str
    """Empty: any of the Gateway's."""
    hosts: frozenset[str]
    models: frozenset[str]

    @property
    def keys(self) -> frozenset[tuple[str, ...]]:
        """By which `near` of others finds it: its hosts, and what is as wide as these or wider."""
        wider = {wide for host in self.hosts for wide in _wider(host)}
        return frozenset((self.gateway, host) for host in self.hosts) | {(self.gateway, _WITHIN, w) for w in wider}

    def near(self, hosts: Iterable[str]) -> set[tuple[str, ...]]:
        """Keys of all claims that may take some of the same requests for these of its hosts."""
        found: set[tuple[str, ...]] = set()
        for host in hosts:
            found.update((self.gateway, wide) for wide in _wider(host))
            if _is_wide(host):
                found.add((self.gateway, _WITHIN, host))
        return found

    def shared(self, other: Claim, *, is_same_team: bool) -> tuple[frozenset[str], frozenset[str]]:
        """Hosts and models of this one for which a Gateway would have to choose: for each of these hosts by each of
        these models. Within a namespace narrower hosts and models beside wider ones are meant: they get what is theirs.
        Of another namespace they would take it."""
        if self.gateway != other.gateway or (self.listener and other.listener and self.listener != other.listener):
            return _NONE, _NONE
        if is_same_team:
            return self.hosts & other.hosts, self.models & other.models
        models = self.models if ANY in other.models else self.models & (other.models | {ANY})
        if not models:
            return _NONE, _NONE
        return frozenset(host for host in self.hosts if any(_overlap(host, each) for each in other.hosts)), models


_NONE: frozenset[str] = frozenset()
_WITHIN = "within"


def _is_wide(host: str) -> bool:
    return host == ANY or host.startswith("*.")


def _wider(host: str) -> Iterator[str]:
    """Hosts that are as wide as this one or wider."""
    yield host
    labels = host.split(".")
    yield from (f"*.{'.'.join(labels[n:])}" for n in range(1, len(labels)))
    yield ANY


def _overlap(host: str, other: str) -> bool:
    return _covers(host, other) or _covers(other, host)


def _covers(host: str, other: str) -> bool:
    """Whether the first is as wide as the second or wider."""
    return host in (ANY, other) or (host.startswith("*.") and other.endswith(host[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class InferencePoolFacts(ChildFacts):
    kind: ClassVar[str] = "InferencePool"
    parents: tuple[ParentStatus, ...]
    """About the present generation. Anyone with access to the status may have written them."""

    @classmethod
    def from_object(cls, obj: Json, known: ChildFacts | None = None) -> Self:
        return cls(**common_of(obj, cls.content, known), parents=_parents(obj))


@dataclass(frozen=True, slots=True, kw_only=True)
class HTTPRouteFacts(ChildFacts):
    kind: ClassVar[str] = "HTTPRoute"
    parents: tuple[ParentStatus, ...]
    """As of an InferencePool."""
    claims: frozenset[Claim]
    """One of each listener, or Gateway, to which it is attached."""
    leads_to_pool: bool

    @classmethod
    def from_object(cls, obj: Json, known: ChildFacts | None = None) -> Self:
        return cls(
            **common_of(obj, cls.content, known),
            parents=_parents(obj),
            claims=claims_of(obj),
            leads_to_pool=any(backend.get("kind") == InferencePoolFacts.kind for backend in _backends(obj)),
        )

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset().union(*(claim.hosts for claim in self.claims))

    @property
    def models(self) -> frozenset[str]:
        return frozenset().union(*(claim.models for claim in self.claims))

    @property
    def is_rejected(self) -> bool:
        """Its Gateway says that it takes none of its requests."""
        return any((each.type, each.status) == ("Accepted", "False") for each in self.parents)


_TAKEN = " is taken by "
_MOST_SAID = 5


def taken(asked: Iterable[Claim], held: Mapping[Pair, str]) -> str:
    """What is said of the `asked` pairs of host and model that others have: by host and holder, with the models, unless
    they have all of several."""
    (claim,) = asked
    models: dict[tuple[str, str], list[str]] = {}
    for (host, model), holder in sorted(held.items()):
        models.setdefault((host, holder), []).append(model)
    gateway, most = claim.gateway, len(claim.models)
    said = [_taken(host, names, most, f"{gateway}{_TAKEN}{holder}") for (host, holder), names in models.items()]
    return "; ".join(_some(said))


def _taken(host: str, models: list[str], asked: int, by: str) -> str:
    named = [] if len(models) == asked > 1 else [model for model in models if model]
    by_models = f"with the model{'s'[: len(named) > 1]} {', '.join(_some(named))}" if named else ""
    return " ".join(filter(None, (host or "any host", by_models, "at Gateway", by)))


def left_out(asked: Iterable[Claim], left: Iterable[Claim]) -> str:
    """What is said of hosts and models that a route is without, since others have some of their requests."""
    (wanted,), there = asked, next(iter(left), None)
    if there is None:
        return "Nothing is left of the route"
    hosts, models = sorted(wanted.hosts - there.hosts), sorted(wanted.models - there.models)
    named = [f"the model{'s'[: len(models) > 1]} {', '.join(_some(models))}"] if models else []
    return f"The route is without {' and '.join([*filter(None, [', '.join(_some(hosts))]), *named])}"


def _some(texts: list[str]) -> list[str]:
    more = len(texts) - _MOST_SAID
    return texts if more <= 0 else [*texts[:_MOST_SAID], f"{more} more"]


def is_taken(refusal: str) -> bool:
    return _TAKEN in refusal


_TYPES = ("Accepted", "ResolvedRefs", "PartiallyInvalid")
_MOST_PARENTS = _MOST_HOSTS = _MOST_RULES = 32
_MOST_MATCHES = 128
"""As many as the Gateway API admits, or more."""
_MOST_NAMES = 2048
_LONGEST_NAME = 253


def _parents(obj: Json) -> tuple[ParentStatus, ...]:
    """Malformed entries are left out, and what is said of an earlier generation."""
    metadata, status = obj["metadata"], obj.get("status")
    generation, found = metadata.get("generation"), []
    for parent in _items(status.get("parents") if isinstance(status, Mapping) else None, _MOST_PARENTS):
        gateway = _gateway(parent.get("parentRef"), metadata)
        for each in _items(parent.get("conditions"), MOST_CONDITIONS):
            if each.get("type") in _TYPES and each.get("observedGeneration", generation) == generation:
                word, why = (text_of(each.get(name), LONGEST_WORD) for name in ("status", "reason"))
                said = normalize.replica_failure(text_of(each.get("message"), LONGEST_TEXT))
                found.append(ParentStatus(gateway, str(each["type"]), word, why, said))
    return tuple(found)


def claims_of(route: Json) -> frozenset[Claim]:
    """Of an HTTPRoute, which others may have written."""
    spec = _mapping(route.get("spec"))
    parents = {
        (_gateway(ref, route["metadata"]), text_of(ref.get("sectionName"), _LONGEST_NAME))
        for ref in _items(spec.get("parentRefs"), _MOST_PARENTS)
    }
    named = spec.get("hostnames")
    hosts = {text_of(host, _LONGEST_NAME) for host in (named if isinstance(named, list) else ())[:_MOST_HOSTS]}
    models = {
        next((text_of(header.get("value"), _LONGEST_NAME) for header in _items(match.get("headers"), 1)), ANY)
        for rule in _items(spec.get("rules"), _MOST_RULES)
        for match in _items(rule.get("matches"), _MOST_MATCHES)
    }
    some = frozenset(sorted(models)[:_MOST_NAMES] or [ANY])
    return frozenset(Claim(*parent, frozenset(hosts or [ANY]), some) for parent in parents)


def _backends(route: Json) -> Iterator[Mapping[str, Any]]:
    for rule in _items(_mapping(route.get("spec")).get("rules"), _MOST_RULES):
        yield from _items(rule.get("backendRefs"), _MOST_RULES)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _gateway(ref: object, metadata: Mapping[str, Any]) -> str:
    found = ref if isinstance(ref, Mapping) else {}
    namespace = text_of(found.get("namespace"), _LONGEST_NAME) or text_of(metadata.get("namespace"), _LONGEST_NAME)
    return f"{namespace}/{text_of(found.get('name'), _LONGEST_NAME)}"


def _items(value: object, most: int) -> Iterator[Mapping[str, Any]]:
    yield from (each for each in (value if isinstance(value, list) else ())[:most] if isinstance(each, Mapping))
