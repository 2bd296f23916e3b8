"""Which clients may send requests to a service, by spec.scaling.holding.from. The NetworkPolicies of model pods do not
apply to the activator."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kubeloop.resources import Key
from llmservice_api.network_peers import Address, Block, Peer, Requirement

from llmservice_activator.holding.interface import HoldingTarget, Refusal
from llmservice_activator.services import Service

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClientPod:
    """The pod that a connection comes from."""

    namespace: str
    labels: Labels


class Unidentified(Exception):
    """It is not known whose an address is; the message has the cause."""


class Lookup(Protocol):
    """Reads from the API server. Both methods raise Unidentified."""

    def pod(self, address: str) -> Awaitable[ClientPod | None]:
        """The pod with this address, or None."""

    def namespace(self, name: str) -> Awaitable[Labels]:
        """The labels of a namespace."""


class Admission:
    """Decides by the peer address of a connection. Unidentified clients are refused."""

    def __init__(self, find: Callable[[Key], Service | None], lookup: Lookup) -> None:
        self._find, self._lookup = find, lookup

    async def admits(self, target: HoldingTarget, text: str) -> Refusal | None:
        """None where the client may send requests. A service that always has a replica now admits whom it admitted
        before."""
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
        pod = await self._lookup.pod(str(address)) if selecting else None
        if pod is None:
            return False
        if any(selects(peer, pod, namespace, None) for peer in selecting if peer.namespaces is None):
            return True
        others = [peer for peer in selecting if peer.namespaces is not None]
        labels = await self._lookup.namespace(pod.namespace) if others else None
        return any(selects(peer, pod, namespace, labels) for peer in others)


def address_of(text: str) -> Address:
    """The peer address of a connection, as IPv4 also where an IPv6 socket reports it; Unidentified for other text."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        raise Unidentified("the connection has no address") from None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def in_block(block: Block, address: Address) -> bool:
    """Whether an ipBlock contains an address; False for the other family."""
    return address in block.cidr and not any(address in network for network in block.excepted)


def selects(peer: Peer, pod: ClientPod, namespace: str, labels: Labels | None) -> bool:
    """Whether a peer with selectors selects a pod. `namespace` is the LLMService's, `labels` those of the pod's
    namespace."""
    if peer.block is not None:
        return False
    if peer.namespaces is None:
        if peer.pods is None or pod.namespace != namespace:
            return False
    elif labels is None or not matches(peer.namespaces, labels):
        return False
    return matches(peer.pods or (), pod.labels)


def matches(selector: Iterable[Requirement], labels: Labels) -> bool:
    """Whether a label selector matches; an empty one matches everything."""
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
