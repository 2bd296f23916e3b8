"""Who may send requests to a service, by spec.scaling.holding.from. NetworkPolicies of model pods do not guard us."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kubeloop.resources import Key
from llmservice_api.network_peers import Address, Block, Peer, Requirement

from llmservice_activator.holding.target import Refusal, Target
from llmservice_activator.services import Service

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Source:
    """The pod that has an address."""

    namespace: str
    labels: Labels


class Unidentified(Exception):
    """Whose an address is cannot be found out now; the message has the cause."""


class Lookup(Protocol):
    """What is asked of the API server. Both raise Unidentified."""

    def pod(self, address: str) -> Awaitable[Source | None]:
        """The pod with this address; None: no pod has it."""

    def namespace(self, name: str) -> Awaitable[Labels]:
        """The labels of a namespace."""


class Admission:
    """Decides by the address of a connection; what cannot be found out is refused."""

    def __init__(self, find: Callable[[Key], Service | None], lookup: Lookup) -> None:
        self._find, self._lookup = find, lookup

    async def admits(self, target: Target, text: str) -> Refusal | None:
        """None: it may send requests. Where there is always a replica now, those may that were admitted before."""
        if self._find(target.key) is None:
            return Refusal(503, "Deleted", "The LLMService is gone. Try again.")
        if not target.clients:
            return None
        try:
            if await self._is_admitted(target.clients, address_of(text), target.key.namespace):
                return None
        except Unidentified as why:
            return Refusal(
                503, "ClientUnidentified", f"Whether this client is admitted is not known: {why}. Try again."
            )
        return Refusal(
            403, "permission_denied", "The address of this client is not admitted by spec.scaling.holding.from."
        )

    async def _is_admitted(self, peers: Iterable[Peer], address: Address, namespace: str) -> bool:
        if any(in_block(peer.block, address) for peer in peers if peer.block is not None):
            return True
        selecting = [peer for peer in peers if peer.block is None]
        source = await self._lookup.pod(str(address)) if selecting else None
        if source is None:
            return False
        if any(selects(peer, source, namespace, None) for peer in selecting if peer.namespaces is None):
            return True
        others = [peer for peer in selecting if peer.namespaces is not None]
        labels = await self._lookup.namespace(source.namespace) if others else None
        return any(selects(peer, source, namespace, labels) for peer in others)


def address_of(text: str) -> Address:
    """Of a connection's other end, IPv4 also where its socket is IPv6's; Unidentified where it is no address."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        raise Unidentified("the connection has no address") from None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def in_block(block: Block, address: Address) -> bool:
    """Whether an ipBlock has an address; one of the other family never."""
    return address in block.cidr and not any(address in network for network in block.excepted)


def selects(peer: Peer, source: Source, namespace: str, labels: Labels | None) -> bool:
    """Whether a peer with selectors selects a pod. `namespace`: the LLMService's; `labels`: of the pod's namespace."""
    if peer.block is not None:
        return False
    if peer.namespaces is None:
        if peer.pods is None or source.namespace != namespace:
            return False
    elif labels is None or not matches(peer.namespaces, labels):
        return False
    return matches(peer.pods or (), source.labels)


def matches(selector: Iterable[Requirement], labels: Labels) -> bool:
    """A label selector; an empty one selects everything."""
    return all(_is_met(requirement, labels) for requirement in selector)


def _is_met(requirement: Requirement, labels: Labels) -> bool:
    match requirement.operator:
        case "In":
            return requirement.key in labels and labels[requirement.key] in requirement.values
        case "NotIn":
            return requirement.key not in labels or labels[requirement.key] not in requirement.values
        case "Exists":
            return requirement.key in labels
        case "DoesNotExist":
            return requirement.key not in labels
        case _:
            return False
