"""Holding of requests while no replica serves: activators, their reports, the port of each service, and its clients.

spec.scaling.holding.from, which clients may send requests, has the meaning of a NetworkPolicy's `from` and Kubernetes'
shape; what its schema cannot express is checked here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from llmservice_api.errors import InvalidSpec, Problem

if TYPE_CHECKING:
    from llmservice_api.lifecycle import Scaling

FIRST_PORT: Final = 10_240
LAST_PORT: Final = 32_767
"""Ports of the activators for services, one each. Lower ports have other uses; higher ones are Linux's ephemeral
ports."""
LAST_USE_METRIC: Final = "llmservice_activator_last_use_timestamp_seconds"
"""Metric of the activators that `llmservice status` reads; its value is LastUse.at."""
INTERNAL_PORT: Final = 9091
"""Port on which activators report to the operator and to each other."""
ACTIVATOR_SLICES: Final = ("-activator-ipv4", "-activator-ipv6")
"""Name suffixes of the operator's EndpointSlices, after the service's name. Those of the cluster end with five letters
and digits."""
REPLICA_SLICES: Final = ("-replicas-ipv4", "-replicas-ipv6")
"""The same for those that lead past the pods of a router while none is ready."""
MOST_HELD_BYTES: Final = 64 << 20
"""The highest spec.scaling.holding.maxBytes: an activator's limit for the services of one namespace."""
SLICE_MANAGER_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
"""Kubernetes' own labels on EndpointSlices: their controller and their Service."""


@dataclass(frozen=True, slots=True, order=True)
class Activator:
    """A ready activator that is not terminating, at one of its IP addresses."""

    address: str
    node: str = ""
    """Empty: unknown."""

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.address


Activators = tuple[Activator, ...] | None
"""Activators that hold requests, sorted. None: unknown, or one was ready a moment ago; current EndpointSlices are
kept."""


@dataclass(frozen=True, slots=True)
class HoldingReport:
    """Report of one activator about one service."""

    is_listening: bool = False
    """The service's port is open on it, for this uid."""
    is_reachable: bool = False
    """A request through the service's ClusterIP reached an activator."""
    problem: str = ""
    """Why it cannot hold requests, with the remedy, in one line; empty: it can."""
    unread: str = ""
    """Why there is no report; empty: it reported."""


@dataclass(frozen=True, slots=True, order=True)
class LastUse:
    """The last request that kept a service from zero. Ordered by time."""

    at: float
    """Unix time."""
    method: str
    """An HTTP method, WEBSOCKET or OTHER."""
    path: str
    """A path of vLLM; empty: another one."""

    @classmethod
    def parsed(cls, at: float, method: str, path: str) -> LastUse | None:
        """From a pod's report; None for values that no supervisor or activator sends."""
        is_valid = 0 < at < _LATEST and re.fullmatch(METHOD, method) and re.fullmatch(PATH, path)
        return cls(at, method, path) if is_valid else None


_LATEST = 100_000_000_000
METHOD, PATH = "[A-Z]{1,16}", "[a-z0-9/_.-]{0,64}"
"""Patterns of LastUse.method and LastUse.path."""


@dataclass(frozen=True, slots=True)
class PortClaim:
    """The port that was allocated to a service."""

    port: int | None
    problem: str = ""
    """Why there is no port, or why the stored one may no longer be the service's."""


def is_idle(scaling: Scaling, status: Mapping[str, Any]) -> bool:
    """Whether autoscaling and not a user set spec.scaling.replicas to 0.

    After minReplicas was raised, the status records it, or has a port from before: an operator may end between KEDA's 0
    and its own status.
    """
    if scaling.autoscaling is None or scaling.replicas:
        return False
    idle = stored_idle(status)
    was_kedas = stored_port(status) is not None and not scaling.holding.rollouts if idle is None else idle
    return scaling.may_be_at_zero or was_kedas


def holds(scaling: Scaling, status: Mapping[str, Any]) -> bool:
    """Whether activators hold requests while no replica answers. Where minReplicas was raised at zero, or autoscaling
    was removed, for as long as the status has a port, which is until a replica answers."""
    return scaling.holds or stored_port(status) is not None


def stored_idle(status: Mapping[str, Any]) -> bool | None:
    holding = status.get("holding")
    idle = holding.get("idle") if isinstance(holding, Mapping) else None
    return idle if isinstance(idle, bool) else None


def stored_port(status: Mapping[str, Any]) -> int | None:
    """status.holding.port; None if absent or outside the activators' range."""
    holding = status.get("holding")
    port = holding.get("port") if isinstance(holding, Mapping) else None
    is_port = isinstance(port, int) and not isinstance(port, bool) and FIRST_PORT <= port <= LAST_PORT
    return port if is_port else None


Json = Mapping[str, Any]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

AT = "spec.scaling.holding.from"
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_OPERATORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}
"""Whether the operator has values."""
_CIDR_REMEDY = "Write an address and the length of its prefix, as in 10.0.0.0/8 or 2001:db8::/32."
_LABEL_REMEDY = "Write a label as Kubernetes has it: NAME or DOMAIN/NAME, and a value of at most 63 characters."


@dataclass(frozen=True, slots=True)
class Requirement:
    """An item of matchExpressions; a pair of matchLabels is `In` with one value."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Block:
    """Addresses of `cidr` without those of `excepted`."""

    cidr: Network
    excepted: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """An address block; or pods of `namespaces` (None: the LLMService's own) that `pods` selects (None: all)."""

    pods: tuple[Requirement, ...] | None = None
    namespaces: tuple[Requirement, ...] | None = None
    block: Block | None = None


def check_peers(peers: Sequence[Json]) -> None:
    """InvalidSpec with all problems."""
    peers_of(peers)


def peers_of(peers: Sequence[Json]) -> tuple[Peer, ...]:
    """Peers from the spec; InvalidSpec with all problems."""
    problems: list[Problem] = []
    found = tuple(_peer(peer, f"{AT}[{index}]", problems) for index, peer in enumerate(peers))
    if problems:
        raise InvalidSpec(problems)
    return found


def _peer(peer: Json, at: str, problems: list[Problem]) -> Peer:
    block, pods, namespaces = (peer.get(name) for name in ("ipBlock", "podSelector", "namespaceSelector"))
    others = set(peer) - {"ipBlock", "podSelector", "namespaceSelector"}
    if others or (block is None and pods is None and namespaces is None):
        problems.append(Problem(at, "It selects nobody.", "Set podSelector, namespaceSelector or ipBlock."))
    if block is not None and (pods is not None or namespaces is not None):
        problems.append(Problem(f"{at}.ipBlock", "It is beside a selector.", "Make two entries of them."))
    return Peer(
        pods=None if pods is None else tuple(_selector(pods, f"{at}.podSelector", problems)),
        namespaces=None if namespaces is None else tuple(_selector(namespaces, f"{at}.namespaceSelector", problems)),
        block=None if block is None else _block(block, f"{at}.ipBlock", problems),
    )


def _selector(selector: Json, at: str, problems: list[Problem]) -> Iterator[Requirement]:
    for key, value in (selector.get("matchLabels") or {}).items():
        if not _is_label(key, [value]):
            problems.append(Problem(f"{at}.matchLabels", f"{key}: {value} is no label.", _LABEL_REMEDY))
        yield Requirement(key, "In", frozenset([value]))
    for index, expression in enumerate(selector.get("matchExpressions") or ()):
        where = f"{at}.matchExpressions[{index}]"
        key, operator, values = (expression.get(name) for name in ("key", "operator", "values"))
        if operator not in _OPERATORS:
            problems.append(
                Problem(f"{where}.operator", f"{operator} is no operator.", f"Write one of {', '.join(_OPERATORS)}.")
            )
        elif bool(values) != _OPERATORS[operator]:
            remedy = "Add values." if _OPERATORS[operator] else "Remove its values."
            problems.append(Problem(f"{where}.values", f"{operator} {'with' if values else 'without'} values.", remedy))
        if not _is_label(key, values or ()):
            problems.append(Problem(where, f"{key} or one of its values is no label.", _LABEL_REMEDY))
        yield Requirement(str(key), str(operator), frozenset(map(str, values or ())))


def _is_label(key: object, values: Sequence[object]) -> bool:
    return all(isinstance(text, str) for text in (key, *values)) and (
        _KEY.fullmatch(str(key)) is not None and all(_VALUE.fullmatch(str(value)) for value in values)
    )


def _block(block: Json, at: str, problems: list[Problem]) -> Block | None:
    cidr = _network(block.get("cidr"), f"{at}.cidr", problems)
    excepted = []
    for index, text in enumerate(block.get("except") or ()):
        where = f"{at}.except[{index}]"
        network = _network(text, where, problems)
        if cidr is None or network is None:
            continue
        if not _is_within(network, cidr):
            problems.append(Problem(where, f"{network} is not within {cidr}.", "Remove it or widen cidr."))
        excepted.append(network)
    return None if cidr is None else Block(cidr, tuple(excepted))


def _network(text: object, at: str, problems: list[Problem]) -> Network | None:
    """As in Kubernetes: host bits may be set; a mask, or a missing prefix length, is invalid."""
    try:
        _, slash, prefix = str(text).partition("/")
        if not (slash and prefix.isascii() and prefix.isdecimal()) or "%" in str(text):
            raise ValueError
        return ipaddress.ip_network(str(text), strict=False)
    except ValueError:
        problems.append(Problem(at, f"{str(text)[:64]} is no CIDR.", _CIDR_REMEDY))
        return None


def _is_within(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.prefixlen >= outer.prefixlen and inner.network_address in outer
