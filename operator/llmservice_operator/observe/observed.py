"""The children and pods of one LLMService as one frozen value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, Self

from llmservice_api.constants import claim_names
from llmservice_api.errors import checked_reader
from llmservice_api.kinds import CHILD_KINDS

from llmservice_operator.facts.children import (
    ChildFacts,
    ClaimFacts,
    HoldingSliceFacts,
    JobFacts,
    RevisionFacts,
    ServiceFacts,
    SliceFacts,
    facts_of,
    slice_from_object,
)
from llmservice_operator.facts.inspections import InspectionFacts, pod_from_object
from llmservice_operator.facts.pods import PodFacts, replicas
from llmservice_operator.observe.reports import Report
from llmservice_operator.workload.kinds import WORKLOADS, live_workload, replicas_of
from llmservice_operator.workload.port import Replica, WorkloadFacts

ChildId = tuple[str, str]
"""(kind, name)"""

Project = Callable[[Mapping[str, Any], Any], Any]
"""Takes an object of the API server, and its previous projection or None; returns the projection."""

POD = "Pod"
ENDPOINT_SLICE = "EndpointSlice"
_CHILDREN: tuple[type[ChildFacts], ...] = (
    *(workload.facts for workload in WORKLOADS),
    ServiceFacts,
    ClaimFacts,
    RevisionFacts,
    JobFacts,
    *(facts_of(child.kind) for child in CHILD_KINDS),
)
PROJECTIONS: Mapping[str, Project] = {
    **{facts.kind: checked_reader(facts.kind, facts.from_object) for facts in _CHILDREN},
    POD: checked_reader(POD, pod_from_object),
    ENDPOINT_SLICE: checked_reader(ENDPOINT_SLICE, slice_from_object),
}
"""By kind. Each raises UnreadableObject for an object without its kind's shape."""


@dataclass(frozen=True, slots=True)
class AppliedRecord:
    """The API server's result of the last apply; kept in memory only and not needed after a restart."""

    input_hash: str
    """`Apply.input_hash`."""
    managed_hash: str
    """`managed_hash` of the returned object's projection (after the removal patch, if any)."""
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server's refusal of a write; dropped once a write succeeds."""

    code: int
    """HTTP status: 409 is a field conflict with another manager or owner."""
    message: str
    """The API server's message; for 409 it names the fields and their managers."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A write that the API server did not answer, or failed to process."""

    message: str
    """Of the last attempt."""
    seconds: float
    """Since the first attempt in a row."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Children have the service's names, whoever owns them; revisions and pods have its label."""

    workload: WorkloadFacts | None = None
    service: ServiceFacts | None = None
    claims: tuple[ClaimFacts, ...] = ()
    others: tuple[ChildFacts, ...] = ()
    """Those of the kinds in `llmservice_api/kinds.py`."""
    revisions: tuple[RevisionFacts, ...] = ()
    pods: tuple[PodFacts, ...] = ()
    endpoints: frozenset[str] | None = None
    """Uids of pods that get the Service's requests; None: they may not be listed, and each ready pod counts."""
    slices: tuple[HoldingSliceFacts, ...] = ()
    """EndpointSlices that point at the activators."""
    unsettled_for: float = inf
    """Seconds since pods, endpoints and the workload's counters began to disagree; reported from
    `progress.SETTLE_SECONDS` on."""
    inspection_jobs: tuple[JobFacts, ...] = ()
    """Jobs that inspect this service's model, the latest last."""
    inspections: tuple[InspectionFacts, ...] = ()
    """Their pods."""
    applied: Mapping[ChildId, AppliedRecord] = field(default_factory=lambda: MappingProxyType({}))
    refused: Mapping[ChildId, Refusal] = field(default_factory=lambda: MappingProxyType({}))
    unanswered: Mapping[ChildId, Unanswered] = field(default_factory=lambda: MappingProxyType({}))
    """Applies, deletions and adoptions that failed at least twice in a row."""
    kept: Mapping[ChildId, Refusal] = field(default_factory=lambda: MappingProxyType({}))
    """Refused deletions and adoptions, which are not to be retried now."""
    reports: Mapping[str, Report] = field(default_factory=lambda: MappingProxyType({}))
    """Reports of supervisors, by pod name."""
    hidden: frozenset[str] = frozenset()
    """Kinds that the operator cannot list, without permission or CRD: none is created."""
    ongoing_rollout: tuple[str, str] | None = None
    """(revision, reason) of the rollout that this process last started: its status is written after its workload."""

    @classmethod
    def of(
        cls, name: str, projections: Mapping[str, Mapping[str, Any]], hidden: frozenset[str] = frozenset(), **known: Any
    ) -> Self:
        """From the `projections` of the service `name`, by kind and name, and from fields of this class by keyword.

        `hidden` are the kinds that the reader cannot list.
        """

        def all_of(kind: str) -> Iterator[Any]:
            return iter(projections.get(kind, {}).values())

        def named(kind: str, name: str) -> Any:
            return projections.get(kind, {}).get(name)

        pods = sorted(all_of(POD), key=lambda facts: facts.name)
        return cls(
            workload=live_workload(projections, name),
            service=named(ServiceFacts.kind, name),
            claims=tuple(facts for claim in claim_names(name) if (facts := named(ClaimFacts.kind, claim)) is not None),
            others=tuple(
                facts
                for child in CHILD_KINDS
                if child.kind not in hidden and (facts := named(child.kind, name)) is not None
            ),
            revisions=tuple(sorted(all_of(RevisionFacts.kind), key=lambda facts: (facts.revision, facts.name))),
            pods=tuple(replicas(pods)),
            # A pod is in two slices if it has addresses of both families, or moves between them.
            endpoints=None
            if ENDPOINT_SLICE in hidden
            else frozenset(
                uid for each in all_of(ENDPOINT_SLICE) if isinstance(each, SliceFacts) for uid in each.ready
            ),
            slices=tuple(each for each in all_of(ENDPOINT_SLICE) if isinstance(each, HoldingSliceFacts)),
            inspections=tuple(facts for facts in pods if isinstance(facts, InspectionFacts)),
            inspection_jobs=tuple(sorted(all_of(JobFacts.kind), key=lambda facts: (facts.created_at, facts.name))),
            hidden=hidden,
            **known,
        )

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Its pods, grouped by replica."""
        return replicas_of(self.workload, self.pods)

    def children(self) -> Iterator[ChildFacts]:
        yield from (c for c in (self.service, *self.claims, self.workload) if c is not None)
        yield from self.others
        yield from self.slices
        yield from self.revisions
        yield from self.inspection_jobs

    def child(self, kind: str, name: str) -> ChildFacts | None:
        return next((c for c in self.children() if (c.kind, c.name) == (kind, name)), None)

    def inspection_job(self, name: str) -> JobFacts | None:
        return next((job for job in self.inspection_jobs if job.name == name), None)

    def inspection(self, job: JobFacts) -> InspectionFacts | None:
        """The pod of a Job: of several, the one that came furthest."""
        own = [pod for pod in self.inspections if pod.owner_uid == job.uid]
        return max(own, key=lambda pod: (pod.inspection is not None, pod.since), default=None)
