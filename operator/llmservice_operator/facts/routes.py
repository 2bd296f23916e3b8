"""What Gateways' controllers say of HTTPRoutes and InferencePools, and which requests a route takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
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


class Claim(NamedTuple):
    """Requests that a route takes."""

    gateway: str
    """NAMESPACE/NAME."""
    listener: str
    """Empty: any of the Gateway's."""
    host: str
    """Empty: any of the listener's."""
    model: str
    """The value of a header; empty: any request."""

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """By which it is found, from a Gateway to a model."""
        return (self.gateway,), (self.gateway, self.host), (self.gateway, self.host, self.model)

    def rivals(self) -> Iterator[tuple[str, ...]]:
        """Keys of all claims that may take some of the same requests."""
        if not self.host or self.host.startswith("*."):
            yield (self.gateway,)
            return
        labels = self.host.split(".")
        for host in (self.host, *(f"*.{'.'.join(labels[n:])}" for n in range(1, len(labels))), ""):
            if not self.model:
                yield self.gateway, host
            else:
                yield self.gateway, host, self.model
                yield self.gateway, host, ""

    def is_rival(self, other: Claim, *, is_same_team: bool) -> bool:
        """Whether a Gateway would have to choose. Within a namespace narrower hosts and models beside wider ones are
        meant: they get what is theirs. Of another namespace they would take it."""
        if self.gateway != other.gateway or (self.listener and other.listener and self.listener != other.listener):
            return False
        if is_same_team:
            return (self.host, self.model) == (other.host, other.model)
        hosts = _covers(self.host, other.host) or _covers(other.host, self.host)
        return hosts and (not self.model or not other.model or self.model == other.model)


def _covers(host: str, other: str) -> bool:
    """Whether the first is as wide as the second or wider."""
    return host in ("", other) or (host.startswith("*.") and other.endswith(host[1:]))


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
    def is_rejected(self) -> bool:
        """Its Gateway says that it takes none of its requests."""
        return any((each.type, each.status) == ("Accepted", "False") for each in self.parents)


_TAKEN = " is taken by "


def taken(claim: Claim, holder: str) -> str:
    """What is said of a claim that `holder` has."""
    what = " ".join(filter(None, (claim.host or "any host", claim.model and f"with the model {claim.model}")))
    return f"{what} at Gateway {claim.gateway}{_TAKEN}{holder}"


def is_taken(refusal: str) -> bool:
    return _TAKEN in refusal


_TYPES = ("Accepted", "ResolvedRefs", "PartiallyInvalid")
_MOST_PARENTS = _MOST_HOSTS = _MOST_RULES = 32
_MOST_MATCHES = 128
"""As many as the Gateway API admits, or more."""
_MOST_CLAIMS = 2048
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
        next((text_of(header.get("value"), _LONGEST_NAME) for header in _items(match.get("headers"), 1)), "")
        for rule in _items(spec.get("rules"), _MOST_RULES)
        for match in _items(rule.get("matches"), _MOST_MATCHES)
    }
    every = product(sorted(parents), sorted(hosts) or [""], sorted(models) or [""])
    return frozenset(Claim(*parent, host, model) for parent, host, model in islice(every, _MOST_CLAIMS))


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
