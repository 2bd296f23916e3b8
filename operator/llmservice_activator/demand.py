"""Replicas for a load, with the reason. Pure."""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE_TENTHS = 1
"""The HPA's default tolerance in tenths: within 10% of the existing replicas it changes nothing."""
THOUSANDTH = 0.001
"""The resolution of a metric."""


@dataclass(frozen=True, slots=True)
class ReplicaBounds:
    """The bounds in force, and the overall maximum, which the HPA enforces itself."""

    min_replicas: int
    max_replicas: int
    overall_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Replicas and requests of one service."""

    replicas: int
    """spec.scaling.replicas."""
    existing: int
    """status.replicas: existing pods, with which the HPA compares its metric; 0: unknown."""
    ready: int
    starting: int
    """Pods that are scheduled and have not been ready yet."""
    in_flight: int
    """Requests without a complete response, over the pods that answered."""
    unread: int
    """Ready pods that did not answer."""
    concurrency: int | None
    """Target of concurrent requests per replica; None: unknown."""
    held: int = 0
    """Requests that the activators hold, over those that answered."""
    unanswered_activators: int = 0
    """Activators that did not answer."""
    uncounted_pods: int = 0
    """Ready pods that do not count started requests."""


@dataclass(frozen=True, slots=True)
class Desired:
    """Desired replicas, with the metric for the HPA."""

    replicas: int
    """Within the bounds in force."""
    metric: float
    """The value from which the HPA computes `replicas`; it rounds up."""
    demand: int | None
    """Replicas for the requests in flight and held alone; None: unknown."""
    reason: str


def desired(load: Load, bounds: ReplicaBounds, idle: str | None = None) -> Desired:
    """The replicas for this load: at least one, unless `idle` says why none is needed.

    Starting replicas count as capacity. Nothing is removed while a pod starts, while a ready pod does not answer, or
    while none is ready, except by the bounds.
    """
    demand = None if load.concurrency is None else -(-(load.in_flight + load.held) // load.concurrency)
    found, reason = _by_demand(load, demand)
    if idle is not None:
        found, reason = 0, idle
    elif bounds.min_replicas == 0:
        found = max(found, 1)
    replicas = max(bounds.min_replicas, min(found, bounds.max_replicas))
    if replicas != found:
        limit = f"minReplicas {bounds.min_replicas}" if replicas > found else f"maxReplicas {bounds.max_replicas}"
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
    if load.unanswered_activators:
        reason += f"; activators without an answer: {load.unanswered_activators}"
    if load.starting:
        reason += f"; starting: {load.starting}"
    # Without a ready replica no requests can be counted: clients are refused.
    is_known = load.ready > 0 and load.unread == 0 and load.unanswered_activators == 0
    return (found if is_known and not load.starting else max(found, load.replicas)), reason


def _metric(replicas: int, load: Load, bounds: ReplicaBounds) -> float:
    """`replicas`, moved out of the HPA's tolerance where other replicas exist than are desired.

    While metric / status.replicas is within 0.9 and 1.1, the HPA sets status.replicas (k8s.io/kubernetes,
    pkg/controller/podautoscaler/replica_calculator.go: isWithin): at 10 replicas it ignores a metric of 11, and 11 pods
    during a rollout of 10 become 11 replicas. The HPA applies maxReplicas itself; bounds of a schedule are applied
    here. From 20 pods on, one replica fewer cannot be expressed.
    """
    existing = load.existing or load.replicas
    if replicas < existing:
        lowered = existing * (10 - TOLERANCE_TENTHS) / 10 - THOUSANDTH
        return lowered if replicas - 1 < lowered < replicas else replicas
    if replicas <= max(load.replicas, existing):
        return replicas
    raised = max(replicas, existing + existing * TOLERANCE_TENTHS // 10 + 1)
    return raised if bounds.max_replicas == bounds.overall_max else min(raised, bounds.max_replicas)
