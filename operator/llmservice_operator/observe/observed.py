"""The children and pods of one LLMService as one frozen value, and the reports of its pods' supervisors.

A pod that does not answer changes no condition, and its earlier report stays in the status. Children of other owners
are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from types import MappingProxyType
from typing import Any, Self

from llmservice_api.constants import (
    CHILD_KINDS,
    HAS_OWN_CONDITION,
    MANAGED_BY_LABEL,
    claim_names,
)
from llmservice_api.errors import Problem, checked_reader
from llmservice_api.holding import REPLICA_SLICES
from llmservice_api.reasons import Reason
from llmservice_api.status import MOST_GROUPS
from llmservice_runtime.contract import STATE_PORT, AdapterState, Cause, GroupState, MemberState, Phase, State
from llmservice_runtime.group.protocol import Step

from llmservice_operator.facts import normalize
from llmservice_operator.facts.children import (
    ChildFacts,
    ClaimFacts,
    ClaimTemplateFacts,
    HoldingSliceFacts,
    JobFacts,
    RevisionFacts,
    ScaledObjectFacts,
    ServiceFacts,
    SliceFacts,
    slice_from_object,
)
from llmservice_operator.facts.inspections import InspectionFacts, pod_from_object
from llmservice_operator.facts.pods import PodFacts, replicas
from llmservice_operator.facts.routes import HTTPRouteFacts, InferencePoolFacts
from llmservice_operator.manifests import router
from llmservice_operator.manifests.meta import Owner
from llmservice_operator.workload.kinds import WORKLOADS, replicas_of, workloads_of
from llmservice_operator.workload.port import Replica, WorkloadFacts

Json = Mapping[str, Any]

_TEXT_LIMIT = 1024
"""The CRD's limit: a longer text would have the whole status refused."""
_UNREAD = (
    f"No pod has reported its measurements yet. The operator asks a ready pod on its port {STATE_PORT}; where it gets "
    "no answer, let a NetworkPolicy admit it."
)
_STARTING = frozenset({Phase.PREFLIGHT, Phase.FETCHING, Phase.LOADING, Phase.SMOKE})


@dataclass(frozen=True, slots=True)
class Report:
    """The last answer of one run of a pod's server."""

    uid: str
    restarts: int
    state: State | None
    """None: several attempts failed."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A pod to poll until a later decision does not list it."""

    pod: str
    uid: str
    restarts: int
    address: str
    is_starting: bool
    """Its state changes; otherwise one answer, or a change of its adapters, is enough."""


Reports = Mapping[str, Report]
"""By pod name."""


def asks(
    pods: Sequence[PodFacts], reports: Reports, revision: str, previous: Json, adapters_digest: str | None
) -> tuple[Ask, ...]:
    """The pods to poll now. `adapters_digest` None: LoRA is off."""
    # With a start cache the measurements of starts differ.
    is_measured = not {"reason", "startCache"} & (_previous_measured(previous, revision) or {"reason": ""}).keys()
    return tuple(
        Ask(pod.name, pod.uid, pod.restarts, pod.address, not pod.started or pod.was_ready)
        for pod in _current(pods, revision)
        if pod.running and pod.address and _is_worth_asking(pod, report_of(pod, reports), is_measured, adapters_digest)
    )


def _is_worth_asking(pod: PodFacts, report: Report | None, is_measured: bool, adapters_digest: str | None) -> bool:
    if not pod.started or pod.was_ready:
        return True
    if not pod.has_api and report is not None and report.state is not None and report.state.started:
        return False  # its leader speaks for it
    if report is None or report.state is None:
        # It started before this process, or did not answer: poll it until it does, unless the status has its report.
        # The poller's pauses grow: on a busy node a pod may not answer during its whole start.
        return not is_measured or adapters_digest is not None
    if not report.state.started or report.state.hung:
        return True  # both change
    if report.state.group is not None and not report.state.ready:
        return True  # as it was before the pod was ready again
    is_settled = report.state.adapters_hash == adapters_digest and all(a.loaded for a in report.state.adapters)
    return adapters_digest is not None and not is_settled


def progress_of(pods: Sequence[PodFacts], reports: Reports, revision: str, previous: Json) -> dict[str, Any] | None:
    """status.progress: of the pod that it was about before while that starts, else of the first by name."""
    starting = {pod.name: state for pod, state in _states(pods, reports, revision) if _is_starting(pod, state)}
    if not starting:
        return None
    before = (previous.get("progress") or {}).get("pod")
    name = before if before in starting else min(starting)
    state = starting[name]
    transfer = state.transfer if state.phase is Phase.FETCHING else None
    found: dict[str, Any] = {"pod": name, "phase": str(state.phase), "message": state.progress[:_TEXT_LIMIT]}
    if transfer is not None:
        found |= {
            "artifact": transfer.artifact[:_TEXT_LIMIT],
            "step": str(transfer.step),
            "percent": transfer.percent,
            "bytesPerSecond": None if transfer.bytes_per_second is None else round(transfer.bytes_per_second),
            "etaSeconds": transfer.eta_seconds,
        }
    return {key: value for key, value in found.items() if value not in (None, "")}


def starting_state(pods: Sequence[PodFacts], reports: Reports, revision: str, progress: Json | None) -> State | None:
    name = progress["pod"] if progress is not None else None
    return next((state for pod, state in _states(pods, reports, revision) if pod.name == name), None)


def measured_of(pods: Sequence[PodFacts], reports: Reports, revision: str, previous: Json) -> dict[str, Any] | None:
    """Measurements of vLLM at its start: of the first pod by name, since all have the same template."""
    for _, state in _states(pods, reports, revision):
        if state.started:
            return state.measured.to_document()
    known = _previous_measured(previous, revision)
    if (known is None or "reason" in known) and any(pod.ready for pod in _current(pods, revision)):
        # Written with the status of a ready pod: a missing answer needs no write of its own.
        return {"reason": _UNREAD}
    return None if known is None else dict(known)


def adapters_of(
    names: Sequence[str], digest: str, pods: Sequence[PodFacts], reports: Reports, revision: str, previous: Json
) -> list[dict[str, Any]]:
    """Each adapter of the spec: loaded by every replica, or the message of one that failed."""
    states = [state for _, state in _states(pods, reports, revision) if state.started]
    known = {item.get("name"): item for item in previous.get("adapters") or ()}
    if not states:
        return [dict(known.get(name) or {"name": name, "loaded": False}) for name in names]
    return [_adapter(name, [_adapter_state(name, digest, state) for state in states]) for name in names]


def groups_of(pods: Sequence[PodFacts], reports: Reports, previous: Json) -> list[dict[str, Any]]:
    """Each replica over several pods, of any revision, as its leader told it last."""
    known = {group.get("name"): group for group in previous.get("groups") or ()}
    found = []
    leaders = (pod for pod in pods if pod.group and not pod.rank and pod.phase not in ("Failed", "Succeeded"))
    for pod in sorted(leaders, key=lambda pod: pod.name)[:MOST_GROUPS]:
        report = report_of(pod, reports)
        state = report.state if report is not None else None
        if state is not None and state.group is not None:
            group = _group(pod, state.group)
        elif pod.name in known and pod.started:  # its names are used again, by pods of which nothing is known yet
            group = dict(known[pod.name]) | {"ready": pod.ready}
        else:
            continue
        found.append(_as_ready(group) if pod.ready else group)
    return found


def _as_ready(group: dict[str, Any]) -> dict[str, Any]:
    """The leader is ready only while all members run: what it told before is over, asked again or not."""
    members = [{**member, "step": str(Step.RUNNING)} for member in group.get("members") or ()]
    return {**{name: value for name, value in group.items() if name != "cause"}, "members": members}


def _group(pod: PodFacts, state: GroupState) -> dict[str, Any]:
    cause = {} if state.cause is None else {"cause": cause_of(state.cause)[:_TEXT_LIMIT]}
    steps = [_member(member) for member in state.members]
    return {"name": pod.name, "ready": pod.ready, "restarts": state.restarts, **cause, "members": steps}


def _member(state: MemberState) -> dict[str, Any]:
    place = {name: text[:_TEXT_LIMIT] for name, text in (("pod", state.pod), ("node", state.node)) if text}
    return {"rank": state.rank, **place, "step": state.step[:_TEXT_LIMIT]}


def cause_of(cause: Cause) -> str:
    """Where it happened, what, and which requests were in flight."""
    where = f" on node {cause.node}" if cause.node else ""
    pod = f" (pod {cause.pod}{where})" if cause.pod else ""
    lost = f" Requests in flight then: {cause.lost_requests}." if cause.lost_requests else ""
    return f"Rank {cause.rank}{pod}: {cause.failure.reason}: {cause.failure.message}{lost}"


def _adapter(name: str, states: Sequence[AdapterState]) -> dict[str, Any]:
    message = next((state.message for state in states if state.message), "")[:_TEXT_LIMIT]
    is_loaded = all(state.loaded for state in states)
    return {"name": name, "loaded": is_loaded} | ({"message": message} if message else {})


def _adapter_state(name: str, digest: str, state: State) -> AdapterState:
    """A failure with an earlier list says nothing about this one."""
    known = next((adapter for adapter in state.adapters if adapter.name == name), None)
    if known is None or (state.adapters_hash != digest and not known.loaded):
        return AdapterState(name, loaded=False)
    return known


def _states(pods: Sequence[PodFacts], reports: Reports, revision: str) -> Iterator[tuple[PodFacts, State]]:
    """Of pods that serve: a vLLM without an API measures nothing of its own, and its leader speaks for it."""
    for pod in _current(pods, revision):
        report = report_of(pod, reports)
        if report is not None and report.state is not None and pod.has_api:
            yield pod, report.state


def _current(pods: Sequence[PodFacts], revision: str) -> Iterator[PodFacts]:
    gone = ("Failed", "Succeeded")
    yield from (pod for pod in pods if pod.revision == revision and not pod.deleting and pod.phase not in gone)


def report_of(pod: PodFacts, reports: Reports) -> Report | None:
    report = reports.get(pod.name)
    return report if report is not None and (report.uid, report.restarts) == (pod.uid, pod.restarts) else None


def _is_starting(pod: PodFacts, state: State) -> bool:
    return pod.running and not pod.ready and not state.started and state.phase in _STARTING


def _previous_measured(previous: Json, revision: str) -> Json | None:
    is_same = (previous.get("rollout") or {}).get("revision") == revision
    return previous.get("measured") if is_same else None


ChildId = tuple[str, str]
"""(kind, name)"""

Project = Callable[[Mapping[str, Any], Any], Any]
"""Takes an object of the API server, and its previous projection or None; returns the projection."""

POD = "Pod"
ENDPOINT_SLICE = "EndpointSlice"
_OF_KIND: Mapping[str, type[ChildFacts]] = {
    facts.kind: facts for facts in (ScaledObjectFacts, HTTPRouteFacts, InferencePoolFacts)
}


def facts_of(kind: str) -> type[ChildFacts]:
    """The projection class of one of `CHILD_KINDS`: a plain ChildFacts by default."""
    return _OF_KIND.get(kind) or type(f"{kind}Facts", (ChildFacts,), {"__slots__": (), "kind": kind})


_CHILDREN: tuple[type[ChildFacts], ...] = (
    *(workload.facts for workload in WORKLOADS),
    ServiceFacts,
    ClaimFacts,
    ClaimTemplateFacts,
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

    workloads: tuple[WorkloadFacts, ...] = ()
    """The one that serves first; another one is of a change between one and several nodes."""
    service: ServiceFacts | None = None
    claims: tuple[ClaimFacts, ...] = ()
    claim_templates: tuple[ClaimTemplateFacts, ...] = ()
    """Claims of devices that the operator wrote, of several revisions."""
    others: tuple[ChildFacts, ...] = ()
    """Those of the kinds in `llmservice_api/constants.py`."""
    revisions: tuple[RevisionFacts, ...] = ()
    pods: tuple[PodFacts, ...] = ()
    endpoints: frozenset[str] | None = None
    """Uids of replicas' pods that get requests, with a router from it; None: they may not be listed, and each ready pod
    counts."""
    has_ready_router: bool = False
    """The Service leads to the router, and some pod is ready there."""
    routing: tuple[ChildFacts, ...] = ()
    """Deployment and budget of the router, and the Service past it."""
    slices: tuple[HoldingSliceFacts, ...] = ()
    """EndpointSlices that point at the activators."""
    past_router: tuple[HoldingSliceFacts, ...] = ()
    """EndpointSlices that lead to the replicas while no router is ready."""
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
        endpoint, of_cluster = named(ServiceFacts.kind, name), [*all_of(ENDPOINT_SLICE)]
        is_routed = endpoint is not None and endpoint.selects_routers
        own = [each for each in of_cluster if isinstance(each, HoldingSliceFacts)]
        listed, direct = (
            # A pod is in two slices if it has addresses of both families, or moves between them.
            frozenset(
                uid
                for each in of_cluster
                if isinstance(each, SliceFacts) and each.is_direct is is_direct
                for uid in each.ready
            )
            for is_direct in (False, True)
        )
        return cls(
            workloads=workloads_of(projections, name),
            service=endpoint,
            claims=tuple(facts for claim in claim_names(name) if (facts := named(ClaimFacts.kind, claim)) is not None),
            claim_templates=()
            if ClaimTemplateFacts.kind in hidden
            else tuple(sorted(all_of(ClaimTemplateFacts.kind), key=lambda facts: facts.name)),
            others=tuple(
                facts
                for child in CHILD_KINDS
                if child.kind not in hidden and (facts := named(child.kind, name)) is not None
            ),
            revisions=tuple(sorted(all_of(RevisionFacts.kind), key=lambda facts: (facts.revision, facts.name))),
            pods=tuple(replicas(pods)),
            endpoints=None if ENDPOINT_SLICE in hidden else direct if is_routed else listed,
            has_ready_router=is_routed and bool(listed),
            routing=tuple(
                facts for kind, of_routing in router.children(name) if (facts := named(kind, of_routing)) is not None
            ),
            slices=tuple(each for each in own if not each.name.endswith(REPLICA_SLICES)),
            past_router=tuple(each for each in own if each.name.endswith(REPLICA_SLICES)),
            inspections=tuple(facts for facts in pods if isinstance(facts, InspectionFacts)),
            inspection_jobs=tuple(sorted(all_of(JobFacts.kind), key=lambda facts: (facts.created_at, facts.name))),
            hidden=hidden,
            **known,
        )

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Its pods, grouped by replica."""
        return replicas_of(self.pods)

    @property
    def workload(self) -> WorkloadFacts | None:
        """The one that serves, or is to."""
        return self.workloads[0] if self.workloads else None

    def children(self) -> Iterator[ChildFacts]:
        yield from (c for c in (self.service, *self.claims, *self.claim_templates, *self.workloads) if c is not None)
        yield from self.others
        yield from self.routing
        yield from self.slices
        yield from self.past_router
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


class Ownership(Enum):
    """The relation of an existing object to the service."""

    OURS = "ours"
    """It has the service's controller reference (or is a retained claim): apply with force."""
    ORPHAN = "orphan"
    """Created by this operator, without an owner: adopt without force."""
    LEAVING = "leaving"
    """Being deleted, by itself or with an earlier LLMService of this name: wait."""
    FOREIGN = "foreign"


def ownership(child: ChildFacts, service: Owner) -> Ownership:
    if child.deleting:
        return Ownership.LEAVING
    if child.controller is None:
        if not child.has_operator_labels or child.service != service.name:
            return Ownership.FOREIGN
        # A retained claim has no owner: only its labels identify it.
        return Ownership.OURS if isinstance(child, ClaimFacts) else Ownership.ORPHAN
    if child.controller.uid == service.uid:
        return Ownership.OURS
    return Ownership.LEAVING if child.controller.is_earlier(service.name, service.uid) else Ownership.FOREIGN


def name_conflicts(service: Owner, observed: Observed, ids: set[tuple[str, str]]) -> tuple[Problem, ...]:
    """One problem for each child of another owner, as far as known; none for kinds with a condition of their own."""
    ids = {(kind, name) for kind, name in ids if kind not in HAS_OWN_CONDITION}
    found = [
        _conflict(child.kind, child.name, *_owner(child))
        for child in observed.children()
        if (child.kind, child.name) in ids and ownership(child, service) is Ownership.FOREIGN
    ]
    # An own child that answers 409 changed meanwhile. An unknown one is not the service's, and in an orphan the fields
    # of other managers are left alone.
    ours = {(c.kind, c.name) for c in observed.children() if ownership(c, service) is not Ownership.ORPHAN}
    found += [
        _conflict(kind, name, (said := normalize.conflict(refusal.message)), said)
        for (kind, name), refusal in sorted(observed.refused.items())
        if refusal.code == 409 and (kind, name) in ids - ours
    ]
    return tuple(found)


def _owner(child: ChildFacts) -> tuple[str, str]:
    """The owner, and what shows it."""
    if child.controller is not None:
        owner = f"{child.controller.kind} {child.controller.name}"
        return f"it belongs to {owner}", f"ownerReferences: {owner} (uid {child.controller.uid})"
    if child.managed_by is not None:
        return f"it is managed by {child.managed_by}", f"label {MANAGED_BY_LABEL}: {child.managed_by}"
    return "this operator did not make it", f"no ownerReferences, no label {MANAGED_BY_LABEL}"


def _conflict(kind: str, name: str, owner: str, seen: str) -> Problem:
    return Problem(
        "metadata.name",
        f"{kind} {name} exists already and is not this service's: {owner.rstrip('.')}.",
        Reason.NAME_CONFLICT.remedy,
        Reason.NAME_CONFLICT,
        evidence=f"{kind} {name}: {seen}",
    )
