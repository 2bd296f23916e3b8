"""Everything known around one LLMService, as one frozen value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any

from llmservice_operator.observe.failures.pod_events import PodEvents
from llmservice_operator.observe.projections.children import (
    BudgetFacts,
    ChildFacts,
    ClaimFacts,
    DeploymentFacts,
    JobFacts,
    RevisionFacts,
    ServiceFacts,
)
from llmservice_operator.observe.projections.endpoints import EndpointFacts
from llmservice_operator.observe.projections.inspections import InspectionFacts
from llmservice_operator.observe.projections.pods import PodFacts
from llmservice_operator.observe.reports import Report
from llmservice_operator.planner.cluster import ClusterGPUs
from llmservice_operator.planner.model.reading import Reading
from llmservice_operator.planner.room import Room

ChildId = tuple[str, str]
"""(kind, name)"""


@dataclass(frozen=True, slots=True)
class AppliedRecord:
    """What the API server made of our last apply; kept in memory only, a restart does without it."""

    input_hash: str
    """`Apply.input_hash`."""
    managed_hash: str
    """`managed_hash` of the facts of the returned object (after the removal patch, where there was one)."""
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server's answer to an apply that it did not take; forgotten as soon as one is taken."""

    code: int
    """HTTP status: 409 is a field conflict with another manager or owner."""
    message: str
    """The API server's message; for 409 it names the fields and their managers."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Whether an update that was asked for may begin: the operator lets a few services at a time."""

    is_granted: bool
    limit: int = 1
    failed: tuple[str, ...] = ()
    """Names of the namespace's own services whose update failed: until that is seen to, no other one begins."""
    failed_elsewhere: int = 0
    """How many of other namespaces did: their names are not this namespace's to know."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Children are those of our names (own or foreign); revisions and pods those with our service label."""

    deployment: DeploymentFacts | None = None
    service: ServiceFacts | None = None
    budget: BudgetFacts | None = None
    claim: ClaimFacts | None = None
    revisions: tuple[RevisionFacts, ...] = ()
    pods: tuple[PodFacts, ...] = ()
    endpoints: EndpointFacts | None = None
    """Where the Service sends requests; None: no right to look, and a ready pod is taken to get some."""
    unsettled_for: float = inf
    """Seconds since pods, endpoints and the Deployment's counters were first seen to disagree; as long as that is less
    than `rollout.PATIENCE`, the status does not speak of it."""
    inspection_jobs: tuple[JobFacts, ...] = ()
    """Those that look, or looked, at this service's model; the latest last."""
    inspections: tuple[InspectionFacts, ...] = ()
    """Their pods."""
    applied: Mapping[ChildId, AppliedRecord] = field(default_factory=lambda: MappingProxyType({}))
    refused: Mapping[ChildId, Refusal] = field(default_factory=lambda: MappingProxyType({}))
    reports: Mapping[str, Report] = field(default_factory=lambda: MappingProxyType({}))
    """What supervisors said, by the pod's name."""
    hidden: frozenset[str] = frozenset()
    """Kinds that the operator has no right to list: none of them is made, since it would not be seen."""
    lent: Mapping[str, Any] | None = None
    """status.model of another service of the same model, empty where there is none; None: nobody looked."""
    reading: Reading | None = None
    """What the model's configuration says; None: nobody asked, since only a new plan needs it."""
    gpus: ClusterGPUs | None = None
    """What nodes have; None: nobody looked, since only a new revision needs it."""
    room: Room | None = None
    """What is free on them; None: nobody looked, since only a choice of strategy and a pod without a node need it."""

    pod_events: PodEvents | None = None
    """What Events say of pods in doubt; None: nobody looked, since no other pod needs it."""

    begun: tuple[str, str] | None = None
    """(revision, reason) of the rollout that this process began last: its status is written after its Deployment."""
    turn: Turn | None = None
    """None: nobody asked, since only an update that was asked for needs one."""

    def children(self) -> Iterator[ChildFacts]:
        """All children that exist."""
        yield from (c for c in (self.service, self.claim, self.deployment, self.budget) if c is not None)
        yield from self.revisions
        yield from self.inspection_jobs

    def child(self, kind: str, name: str) -> ChildFacts | None:
        """One child by kind and name."""
        return next((c for c in self.children() if (c.kind, c.name) == (kind, name)), None)

    def inspection_job(self, name: str) -> JobFacts | None:
        """One of them by name."""
        return next((job for job in self.inspection_jobs if job.name == name), None)

    def inspection(self, job: JobFacts) -> InspectionFacts | None:
        """What is known of the pod of a Job: where there are several, of the one that came furthest."""
        own = [pod for pod in self.inspections if pod.owner_uid == job.uid]
        return max(own, key=lambda pod: (pod.inspection is not None, pod.since), default=None)
