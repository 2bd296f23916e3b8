"""Holding of requests while no replica serves: activators, their reports, and the port of each service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # commands that only read statuses do not import pydantic
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
