"""Where requests are held while no replica serves: the activators, what they report, and the port of each service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # the spec is made of pydantic models, which commands that only read statuses do without
    from llmservice_api.lifecycle import Scaling

FIRST_PORT: Final = 10_240
LAST_PORT: Final = 32_767
"""Of the activators' ports for services, one for each. Below are ports of their own; above, those that Linux gives to
outgoing connections."""
LAST_USE: Final = "llmservice_activator_last_use_timestamp_seconds"
"""The activators' metric that `llmservice status` reads; its value is LastUse.at."""
INTERNAL_PORT: Final = 9091
"""Where activators report, to the operator and to each other."""
ACTIVATOR_SLICES: Final = ("-activator-ipv4", "-activator-ipv6")
"""What the name of an EndpointSlice of ours ends with, after the service's. The cluster's own end with five letters and
digits."""
MOST_HELD_BYTES: Final = 64 << 20
"""The highest spec.scaling.holding.maxBytes: what an activator keeps for the services of one namespace."""
SLICE_MANAGER_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
"""Kubernetes' own labels on EndpointSlices: whose they are, and which Service they belong to."""


@dataclass(frozen=True, slots=True, order=True)
class Activator:
    """One that is ready and not terminating, at one of its IP addresses."""

    address: str
    node: str = ""
    """Empty: not known."""

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.address


Activators = tuple[Activator, ...] | None
"""Those that hold requests, sorted. None: it is not known, or there was one a moment ago; what is, stays as it is."""


@dataclass(frozen=True, slots=True)
class HoldingReport:
    """What one activator says of one service."""

    is_listening: bool = False
    """The service's port is open there, for this uid."""
    is_reachable: bool = False
    """A request through the service's ClusterIP came to an activator."""
    problem: str = ""
    """What keeps it from holding, with the remedy, in one line; empty: nothing."""
    unread: str = ""
    """Why nothing is known of it; empty: it reported."""


@dataclass(frozen=True, slots=True, order=True)
class LastUse:
    """The last request that kept a service from zero. The later one is the greater."""

    at: float
    """Unix time."""
    method: str
    """Or WEBSOCKET, or OTHER."""
    path: str
    """One of vLLM's; empty: another."""

    @classmethod
    def parsed(cls, at: float, method: str, path: str) -> LastUse | None:
        """By the words of a pod; None where they are not those of a supervisor or activator."""
        is_valid = 0 < at < _LATEST and re.fullmatch(METHOD, method) and re.fullmatch(PATH, path)
        return cls(at, method, path) if is_valid else None


_LATEST = 100_000_000_000
METHOD, PATH = "[A-Z]{1,16}", "[a-z0-9/_.-]{0,64}"
"""What LastUse.method and LastUse.path match."""


@dataclass(frozen=True, slots=True)
class PortClaim:
    """The port that was allotted to a service."""

    port: int | None
    problem: str = ""
    """Why there is none; or why it is not known whether the stored one is still the service's."""


def is_idle(scaling: Scaling, status: Mapping[str, Any]) -> bool:
    """Whether the 0 in spec.scaling.replicas is autoscaling's, not a user's.

    Where minReplicas was raised since, the status has it; or it has a port, from the time before: an operator may end
    between KEDA's 0 and its own status.
    """
    if scaling.autoscaling is None or scaling.replicas:
        return False
    idle = stored_idle(status)
    was_kedas = stored_port(status) is not None and not scaling.holding.rollouts if idle is None else idle
    return scaling.may_be_at_zero or was_kedas


def holds(scaling: Scaling, status: Mapping[str, Any]) -> bool:
    """Whether requests come to the activators while no replica answers: where minReplicas was raised at zero, or
    autoscaling was removed, as long as the status has a port, which is until one does."""
    return scaling.holds or stored_port(status) is not None


def stored_idle(status: Mapping[str, Any]) -> bool | None:
    """status.holding.idle; None where it is not there."""
    holding = status.get("holding")
    idle = holding.get("idle") if isinstance(holding, Mapping) else None
    return idle if isinstance(idle, bool) else None


def stored_port(status: Mapping[str, Any]) -> int | None:
    """status.holding.port; None where it is not there or no port of ours."""
    holding = status.get("holding")
    port = holding.get("port") if isinstance(holding, Mapping) else None
    is_port = isinstance(port, int) and not isinstance(port, bool) and FIRST_PORT <= port <= LAST_PORT
    return port if is_port else None
