"""Which clients may send requests to a service, by spec.scaling.holding.from. The NetworkPolicies of model pods do not
apply to the activator.

Pods by address, and labels of namespaces, are read from the API server and cached for a short time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from kubeloop.errors import KubeError
from kubeloop.resources import POD, Key, Resource
from kubeloop.transport import Transport
from llmservice_api.holding import (
    Address,
    Block,
    Peer,
    Requirement,
)

from llmservice_activator.holding.interface import HoldingTarget, Refusal
from llmservice_activator.services import Service

logger = logging.getLogger(__name__)

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


NAMESPACE = Resource("", "v1", "namespaces", "Namespace")
POD_SECONDS = 10.0
"""Seconds that the pod of an address is cached; a later pod with the address has its access that long."""
ABSENT_SECONDS = 2.0
"""Seconds for an address without a pod: it may be in use before the API server knows it."""
LABELS_SECONDS = 60.0
MAX_CACHED = 10_000
"""Cached addresses, and cached namespaces."""
MAX_RUNNING, MAX_WAITING = 16, 512
"""Running and waiting lookups; further ones are refused."""
LOOKUP_SECONDS = 5.0
"""Seconds of a lookup, including its wait."""
PAGE = 100
"""Pods of a response. Only pods with host networking share an address, and those do not count."""
MAX_BYTES = 16 * 2**20
"""Bytes of a response."""

T = TypeVar("T")


class ClientPods:
    """Reads and caches; concurrent lookups of the same value share one request."""

    def __init__(
        self, transport: Transport, namespaces: tuple[str, ...], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`namespaces`: those whose pods may be listed; empty: all."""
        self._transport, self._namespaces = transport, namespaces
        self._pods: _Cache[ClientPod | None] = _Cache(
            self._find, lambda pod: POD_SECONDS if pod else ABSENT_SECONDS, clock
        )
        self._labels: _Cache[Labels] = _Cache(self._read_labels, lambda _: LABELS_SECONDS, clock)

    async def pod(self, address: str) -> ClientPod | None:
        """The pod with this address; None where no pod that may be listed has it. Unidentified."""
        return await self._pods.get(address)

    async def namespace(self, name: str) -> Labels:
        """The labels of a namespace. Unidentified."""
        return await self._labels.get(name)

    async def _find(self, address: str) -> ClientPod | None:
        found = []
        for namespace in self._namespaces or (None,):
            params = {"fieldSelector": f"status.podIP={address}", "limit": str(PAGE)}
            found += client_pods_of(
                await self._transport.request("list", POD, POD.path(namespace), params=params, max_bytes=MAX_BYTES),
                address,
            )
        if len(found) > 1:
            raise Unidentified("several pods have its address")
        return found[0] if found else None

    async def _read_labels(self, name: str) -> Labels:
        namespace = await self._transport.request("get", NAMESPACE, NAMESPACE.path(None, name), max_bytes=MAX_BYTES)
        metadata = namespace.get("metadata")
        return _labels(metadata.get("labels") if isinstance(metadata, Mapping) else None)


class _Cache(Generic[T]):
    """A bounded cache of lookups, each with its own expiry; the oldest are evicted."""

    def __init__(
        self, ask: Callable[[str], Awaitable[T]], kept: Callable[[T], float], clock: Callable[[], float]
    ) -> None:
        self._ask, self._kept, self._clock = ask, kept, clock
        self._answers: OrderedDict[str, tuple[float, T]] = OrderedDict()
        """Values with their expiry."""
        self._asking: dict[str, asyncio.Task[T]] = {}
        self._problem = ""
        self._running = asyncio.Semaphore(MAX_RUNNING)

    async def get(self, question: str) -> T:
        """The value; Unidentified where the lookup fails."""
        known = self._answers.get(question)
        if known is not None and self._clock() < known[0]:
            return known[1]
        task = self._asking.get(question)
        if task is None:
            if len(self._asking) >= MAX_WAITING:
                raise Unidentified("too many addresses are looked up")
            task = self._asking[question] = asyncio.create_task(self._asked(question))
            task.add_done_callback(_seen)
        return await asyncio.shield(task)  # a disconnected client cancels no lookup that others wait for

    async def _asked(self, question: str) -> T:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS), self._running:
                began = self._clock()
                answer = await self._ask(question)
        except TimeoutError:
            raise Unidentified("the API server does not answer in time") from None
        except KubeError as error:
            self._log_problem(" ".join(str(error).split()))
            raise Unidentified("the API server refuses or does not answer; see the activator's log") from None
        finally:
            del self._asking[question]
        self._problem = ""
        self._answers.pop(question, None)
        self._answers[question] = began + self._kept(answer), answer
        while len(self._answers) > MAX_CACHED:
            self._answers.popitem(last=False)
        return answer

    def _log_problem(self, problem: str) -> None:
        """Log a problem once, not for each address."""
        if problem != self._problem:
            logger.warning("cannot find out who a client is: %s", problem)
            self._problem = problem


def _seen(task: asyncio.Task[T]) -> None:
    """Retrieve the result: its waiters may be gone."""
    if not task.cancelled():
        task.exception()


def client_pods_of(pods: Mapping[str, Any], address: str) -> list[ClientPod]:
    """Pods in a list that have this address as their own and have not ended.

    Malformed items are skipped: they admit nobody.
    """
    items = pods.get("items")
    return [
        source
        for source in (_client_pod(item, address) for item in (items if isinstance(items, list) else ()))
        if source is not None
    ]


def _client_pod(item: object, address: str) -> ClientPod | None:
    if not isinstance(item, Mapping):
        return None
    parts = (item.get(name) for name in ("metadata", "spec", "status"))
    metadata, spec, status = (part if isinstance(part, Mapping) else {} for part in parts)
    namespace = metadata.get("namespace")
    if (
        not isinstance(namespace, str)
        or status.get("podIP") != address
        or spec.get("hostNetwork")
        or status.get("phase") in ("Succeeded", "Failed")
    ):
        return None
    return ClientPod(namespace, _labels(metadata.get("labels")))


def _labels(found: object) -> Labels:
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, Mapping) else {}
