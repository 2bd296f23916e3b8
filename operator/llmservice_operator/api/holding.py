"""Where requests are held while no replica serves: the activators, what they report, and the port of each service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from llmservice_operator.api.lifecycle import Scaling

FIRST_PORT: Final = 10_240
LAST_PORT: Final = 32_767
"""Of the activators' ports for services, one for each. Below are ports of their own; above, those that Linux gives to
outgoing connections."""
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


@dataclass(frozen=True, slots=True)
class PortClaim:
    """The port that was allotted to a service."""

    port: int | None
    problem: str = ""
    """Why there is none; or why it is not known whether the stored one is still the service's."""


def is_idle(status: Mapping[str, Any]) -> bool:
    """status.holding.idle: autoscaling set spec.scaling.replicas to 0, not a user."""
    holding = status.get("holding")
    return isinstance(holding, Mapping) and holding.get("idle") is True


def holds(scaling: Scaling, status: Mapping[str, Any]) -> bool:
    """Whether requests are held while no replica answers. Where minReplicas was raised at zero, until one does."""
    return scaling.holds or (scaling.autoscaling is not None and is_idle(status))


def stored_port(status: Mapping[str, Any]) -> int | None:
    """status.holding.port; None where it is not there or no port of ours."""
    holding = status.get("holding")
    port = holding.get("port") if isinstance(holding, Mapping) else None
    is_port = isinstance(port, int) and not isinstance(port, bool) and FIRST_PORT <= port <= LAST_PORT
    return port if is_port else None
