"""What a run measures, and what it should be: docs/scale.md says how each is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from llmservice_cli.text import table as in_columns


@dataclass
class Figures:
    """Of one run; None is what was not measured."""

    services: int
    faults: bool = False
    inspected: bool = False
    """Whether the services leave out what their model looks like, so that each asks its neighbours and makes a Job."""
    rate: float | None = None
    """Services a second that arrived while the operator ran; None: they were there before it."""
    """Processes that shared the work; their CPU and memory are summed."""
    machine: str = ""
    stolen_percent: float = 0.0
    """Share of its processors that the machine's own host gave to others until all were Ready."""
    floor_seconds: float = 0.0
    """All CPU seconds that the machine used until then, by its cores: it could not have been sooner with this work."""
    start_cpu_seconds: float = 0.0
    """Of an operator with nothing to do, until it is quiet."""
    first_child_seconds: float = 0.0
    """From the operator's start, or with a rate from the first arrival, until any service has a child."""
    children_seconds: float = 0.0
    pods_seconds: float = 0.0
    ready_seconds: float = 0.0
    """From the operator's start, or with a rate from the first arrival, until all have it."""
    service_seconds: dict[str, float] = field(default_factory=dict)
    """Percentiles over the services: until each says Ready, from the operator's start or from its own arrival."""
    cpu_ms_per_service: float = 0.0
    """Until all are Ready, the start apart."""
    peak_mib: float = 0.0
    control_plane_cpu_seconds: dict[str, float] = field(default_factory=dict)
    requests_per_service: dict[str, float] = field(default_factory=dict)
    writes_per_service: float = 0.0
    """Events apart."""
    events_per_service: float = 0.0
    events: dict[str, int] = field(default_factory=dict)
    """By reason, until all are Ready."""
    looks_per_service: float = 0.0
    """Decisions, each of some milliseconds of CPU, most of which find nothing to do."""
    idle_writes: int = 0
    """In a steady minute, the lease apart."""
    idle_cpu_seconds: float = 0.0
    edits_ms: dict[str, float] = field(default_factory=dict)
    restart_seconds: float = 0.0
    """From the new process's start until an edit made at once is in the child."""
    restart_writes: int = 0
    """Of anything but what was edited."""
    restart_mib: float = 0.0
    requests_failed: int = 0
    """Answered by the API server with 4xx or 5xx."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Goal:
    what: str
    limit: float
    value: float
    unit: str
    is_count: bool = False
    """Counts are the same on every machine: they may fail a test, where times may not."""

    @property
    def is_met(self) -> bool:
        """At most the limit."""
        return self.value <= self.limit


SECONDS = {100: (4.0, 7.0), 1000: (45.0, 95.0)}
"""Children and Ready; other numbers in proportion to the larger."""
MIB = {1000: 200.0, 10000: 600.0}
INSPECTED = ("operator memory, peak", "writes in an idle minute, lease apart", "writes of a restart")
"""The goals of a run that inspects models; its CPU for each service is to be compared between numbers of services."""
FIRST_CHILD, CPU_MS, WRITES, EVENTS, EDIT_P50, EDIT_P99, RESTART = 1.5, 8.0, 5.0, 1.0, 25.0, 150.0, 8.0


def goals(found: Figures) -> list[Goal]:
    """Those that a run of so many services has."""
    count = found.services
    children, ready = SECONDS.get(count, tuple(limit * count / 1000 for limit in SECONDS[1000]))
    memory = next((limit for most, limit in MIB.items() if count <= most), MIB[10000])
    made = [
        Goal("first child", FIRST_CHILD, found.first_child_seconds, "s"),
        Goal("all children", children, found.children_seconds, "s"),
        Goal("all Ready", ready, found.ready_seconds, "s"),
        Goal("operator CPU a service, start apart", CPU_MS, found.cpu_ms_per_service, "ms"),
        Goal("operator memory, peak", memory, found.peak_mib, "MiB"),
        Goal("writes a service, Events apart", WRITES, found.writes_per_service, "", is_count=True),
        Goal("Events a service", EVENTS, found.events_per_service, "", is_count=True),
        Goal("writes in an idle minute, lease apart", 0, found.idle_writes, "", is_count=True),
        Goal("edit to child, median", EDIT_P50, found.edits_ms.get("p50", 0.0), "ms"),
        Goal("edit to child, 99 of 100", EDIT_P99, found.edits_ms.get("p99", 0.0), "ms"),
        Goal("restart to first edit served", RESTART * max(1.0, count / 1000), found.restart_seconds, "s"),
        Goal("writes of a restart", 0, found.restart_writes, "", is_count=True),
    ]
    if found.inspected:  # Jobs, their pods and what they find are more writes, and take their time
        return [goal for goal in made if goal.what in INSPECTED]
    return [goal for goal in made if not found.rate or goal.what not in ("first child", "all children", "all Ready")]


def table(found: Figures) -> str:
    """For people: goal beside figure."""
    return judged(goals(found))


def judged(every: Sequence[Goal]) -> str:
    """Each with what was measured, and whether it is met."""
    rows = []
    for goal in every:
        limit = f"≤ {goal.limit:g} {goal.unit}".strip()
        rows.append((goal.what, limit, f"{goal.value:.4g} {goal.unit}".strip(), "met" if goal.is_met else "MISSED"))
    return "\n".join(in_columns(("figure", "goal", "measured", ""), rows))


def percentiles(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """p50, p90, p99 and the largest; nothing of nothing."""
    ordered = sorted(values)
    if not ordered:
        return {}
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    found = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] for name, share in shares.items()}
    return {name: round(value, digits) for name, value in {**found, "max": ordered[-1]}.items()}
