"""How many replicas a service should have: numbers to a number, with the reason in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE_TENTHS = 1
"""The HPA's default tolerance in tenths: within 10% of the replicas that exist it changes nothing."""
THOUSANDTH = 0.001
"""The least step of a metric."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds in force, and the most replicas at any time, which the HPA enforces itself."""

    fewest: int
    most: int
    most_ever: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is known of one service."""

    replicas: int
    """spec.scaling.replicas."""
    present: int
    """status.replicas: pods that exist, with which the HPA compares its metric; 0: not known."""
    ready: int
    starting: int
    """Pods that have a node and have not served yet."""
    in_flight: int
    """Requests without a complete response, over the pods that answered."""
    unread: int
    """Ready pods that did not answer."""
    concurrency: int | None
    """Requests that one replica should have; None: not known."""
    held: int = 0
    """Requests that the activators hold, over those that said it."""
    unheard: int = 0
    """Activators that did not say what they hold."""
    uncounted: int = 0
    """Ready pods that do not count the requests that began."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The result."""

    replicas: int
    """Within the bounds in force."""
    metric: float
    """What the HPA has to be given so that it sets them; it rounds up."""
    demand: int | None
    """Replicas by the requests in flight and held alone; None: not known."""
    reason: str


def desired(load: Load, bounds: Bounds, idle: str | None = None) -> Desired:
    """The replicas for this load; one at least but where it is `idle`, which says why.

    Replicas that are on their way count as capacity. Nothing is removed while a pod starts, while a ready pod
    does not answer, or while none is ready; only the bounds win over that.
    """
    demand = None if load.concurrency is None else -(-(load.in_flight + load.held) // load.concurrency)
    found, reason = _by_demand(load, demand)
    if idle is not None:
        found, reason = 0, idle
    elif bounds.fewest == 0:
        found = max(found, 1)
    replicas = max(bounds.fewest, min(found, bounds.most))
    if replicas != found:
        limit = f"minReplicas {bounds.fewest}" if replicas > found else f"maxReplicas {bounds.most}"
        reason = f"{reason}; {limit} in force"
    return Desired(replicas, _metric(replicas, load, bounds), demand, reason)


def _by_demand(load: Load, demand: int | None) -> tuple[int, str]:
    if demand is None:
        return load.replicas, "how many requests a replica holds is not known"
    pending = max(0, load.replicas - load.ready)
    found = demand if demand <= load.replicas else max(demand - pending, load.replicas)
    held = f" and {load.held} held" if load.held else ""
    reason = f"{load.in_flight} requests in flight{held}, {load.concurrency} for each"
    if found < demand:
        reason += f"; not ready yet: {pending}"
    if load.unread:
        reason += f"; ready without an answer: {load.unread}"
    if load.unheard:
        reason += f"; activators without an answer: {load.unheard}"
    if load.starting:
        reason += f"; starting: {load.starting}"
    # With no replica ready there are no requests to count: clients are refused.
    is_known = load.ready > 0 and load.unread == 0 and load.unheard == 0
    return (found if is_known and not load.starting else max(found, load.replicas)), reason


def _metric(replicas: int, load: Load, bounds: Bounds) -> float:
    """The replicas, moved out of the HPA's tolerance where others exist than are desired.

    While metric / status.replicas is from 0.9 to 1.1, both included, the HPA sets status.replicas (k8s.io/kubernetes,
    pkg/controller/podautoscaler/replica_calculator.go: isWithin): at 10 replicas it ignores a metric of 11, and of 11
    pods during a rollout of 10 it makes 11 replicas. Beyond maxReplicas it cuts the result itself; for lower bounds
    that hold at some times only, this is done here. From 20 pods on, one fewer cannot be expressed.
    """
    present = load.present or load.replicas
    if replicas < present:
        lowered = present * (10 - TOLERANCE_TENTHS) / 10 - THOUSANDTH
        return lowered if replicas - 1 < lowered < replicas else replicas
    if replicas <= max(load.replicas, present):
        return replicas
    raised = max(replicas, present + present * TOLERANCE_TENTHS // 10 + 1)
    return raised if bounds.most == bounds.most_ever else min(raised, bounds.most)
