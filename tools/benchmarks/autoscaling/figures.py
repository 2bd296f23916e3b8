"""What a run measures, and what it should be: docs/scale.md says how each is taken."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.scale.figures import Goal


@dataclass
class Figures:
    """Of one run. Of the activator where no other process is named."""

    services: int
    at_zero: int
    machine: str = ""
    settled_seconds: float = 0.0
    """From the operator's start until each service is Ready and has a port."""
    ports_seconds: float = 0.0
    """From the start of an activator that finds all services until it listens on the port of each."""
    start_cpu_seconds: float = 0.0
    """Until then."""
    idle_seconds: float = 0.0
    """The steady time for which KEDA's calls come and nothing else does."""
    idle_cpu_seconds: float = 0.0
    idle_writes: dict[str, int] = field(default_factory=dict)
    """Requests that write, by verb and resource."""
    idle_requests: int = 0
    """All of the API server."""
    calls: int = 0
    """Of KEDA in the steady time."""
    calls_failed: int = 0
    calls_wrong: int = 0
    """Answers that a service at zero is in use, or that one with a request in flight is not."""
    call_ms: dict[str, float] = field(default_factory=dict)
    """Percentiles of GetMetrics, which reads the pods."""
    peak_mib: float = 0.0
    """Until the end of the steady time."""
    open_files: int = 0
    """At the end of the steady time: sockets mostly."""
    operator_idle_cpu_seconds: float = 0.0
    operator_idle_writes: dict[str, int] = field(default_factory=dict)
    """Without the renewals of its own Lease."""
    operator_peak_mib: float = 0.0
    woken: int = 0
    """Services at zero that got one request each, at the same time."""
    wake_seconds: dict[str, float] = field(default_factory=dict)
    """Percentiles: from sending the request until the watch shows spec.scaling.replicas 1; those that never had are
    left out."""
    unwoken: int = 0
    answered_seconds: dict[str, float] = field(default_factory=dict)
    """Percentiles: from sending the request until its answer, from a simulated pod, which is ready at once."""
    unanswered: int = 0
    stolen_percent: float = 0.0
    """Share of its processors that the machine's own host gave to others during the steady time."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


CPU, MIB, PORTS, WAKE, CALL_MS = 6.0, 256.0, 10.0, 3.0, 1000.0
"""Of 1,000 services: a tenth of a core in a minute, and the memory that the chart requests. KEDA gives up after 3 s."""


def goals(found: Figures) -> list[Goal]:
    """Times and memory in proportion to the services above a thousand."""
    size = max(1.0, found.services / 1000)
    minutes = found.idle_seconds / 60
    writes, operator_writes = sum(found.idle_writes.values()), sum(found.operator_idle_writes.values())
    return [
        Goal("writes of the activator in an idle minute", 0, writes, "", is_count=True),
        Goal("writes of the operator in an idle minute, lease apart", 0, operator_writes, "", is_count=True),
        Goal("activator CPU in an idle minute", CPU * size * minutes, found.idle_cpu_seconds, "s"),
        Goal("activator memory, peak", MIB * size, found.peak_mib, "MiB"),
        Goal("activator start to all ports open", PORTS * size, found.ports_seconds, "s"),
        Goal("calls of KEDA that failed", 0, found.calls_failed, "", is_count=True),
        Goal("wrong answers to KEDA", 0, found.calls_wrong, "", is_count=True),
        Goal("GetMetrics, 99 of 100", CALL_MS, found.call_ms.get("p99", 0.0), "ms"),
        Goal("request at zero to scale 1, the slowest", WAKE, found.wake_seconds.get("max", 0.0), "s"),
        Goal("services that were not woken", 0, found.unwoken, "", is_count=True),
        Goal("requests without an answer", 0, found.unanswered, "", is_count=True),
    ]


def rest(found: Figures) -> list[tuple[str, str]]:
    """Without a goal."""
    return [
        ("services, at zero", f"{found.services:,}, {found.at_zero:,}"),
        ("operator start to all Ready with a port", f"{found.settled_seconds:.4g} s"),
        ("activator CPU until all ports are open", f"{found.start_cpu_seconds:.4g} s"),
        ("activator open files", f"{found.open_files:,}"),
        ("activator requests of the API server, idle", f"{found.idle_requests:,}"),
        ("calls of KEDA, idle", f"{found.calls:,}"),
        ("GetMetrics, median", f"{found.call_ms.get('p50', 0.0):.4g} ms"),
        ("operator CPU, idle", f"{found.operator_idle_cpu_seconds:.4g} s"),
        ("operator memory, peak", f"{found.operator_peak_mib:.4g} MiB"),
        ("request at zero to scale 1, median", f"{found.wake_seconds.get('p50', 0.0):.4g} s"),
        ("request at zero to its answer, the slowest", f"{found.answered_seconds.get('max', 0.0):.4g} s"),
        ("CPU that the machine's host took, idle", f"{found.stolen_percent:.2g} %"),
    ]
