"""What to do about one LLMService, as a value that can be printed, compared and executed; and the inputs of a decision,
as one frozen value, with their source and age.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import Enum
from typing import Any, Generic, Self, TypeVar

from llmservice_api.constants import HTTP_ROUTE
from llmservice_api.errors import InvalidSpec, Problem
from llmservice_api.holding import Activators, PortClaim
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.devices import ClusterDevices
from llmservice_planner.model.reading import ConfigReading
from llmservice_planner.pick import Pick
from llmservice_planner.room import Quotas, Room

from llmservice_operator.manifests.server import accelerator_resource
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.activators import Reports
from llmservice_operator.observe.failures.pod_events import PodEvents
from llmservice_operator.observe.observed import ENDPOINT_SLICE, Ask, Observed
from llmservice_operator.observe.verdict import Obstacle
from llmservice_operator.workload.port import Strategy

Json = Mapping[str, Any]

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class UpdatePermission:
    """Whether a requested update may start: the operator limits how many run at a time."""

    is_granted: bool
    limit: int = 1
    failed: tuple[str, ...] = ()
    """Names of services in the namespace whose update failed: until that is resolved, no other update starts."""
    failed_in_other_namespaces: int = 0
    """Number of failed updates in other namespaces, whose names this namespace may not know."""


@dataclass(frozen=True, slots=True)
class GroupTurn:
    """Whether this service may let the pods of a replica look for nodes: one service at a time does."""

    is_own: bool
    are_others_placing: bool = False
    """Pods of another service's replica look for nodes for so long that the turn went on."""


@dataclass(frozen=True, slots=True)
class GPUsQuery:
    """GPUs of an extended resource on nodes with these labels."""

    resource: str
    node_selector: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, service: LLMService) -> Self:
        """Of the nodes that its pods may use."""
        resource = accelerator_resource(service)
        assert resource is not None, "services on GPUs without claims have one"
        return cls(resource, tuple(sorted(service.spec.pod_template.spec.node_selector.items())))


@dataclass(frozen=True, slots=True)
class DevicesQuery:
    """Devices of a driver that a class selects, on nodes with these labels."""

    driver: str
    device_class: str
    node_selector: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RoomQuery:
    """Free resources of the cluster's nodes, and which pods hold a resource."""

    resource: str | None
    """The accelerator's; None on CPUs."""
    max_age_seconds: float = 0.0
    """An earlier read for this service that is younger is sufficient: messages change less often."""
    is_only_shown: bool = False
    """For a message only: if nodes cannot be read, an old read is used."""

    def is_answered_by(self, other: RoomQuery) -> bool:
        """Whether the result for the other query is sufficient for this one. Of two resources the first takes
        precedence."""
        is_certain = self.is_only_shown or not other.is_only_shown
        has_resource = self.resource is None or other.resource is not None
        return is_certain and has_resource and other.max_age_seconds <= self.max_age_seconds

    def and_(self, other: RoomQuery) -> RoomQuery:
        return RoomQuery(
            self.resource if self.resource is not None else other.resource,
            min(self.max_age_seconds, other.max_age_seconds),
            self.is_only_shown and other.is_only_shown,
        )


@dataclass(frozen=True, slots=True)
class HoldingQuery:
    """A question to the activators: whether they can hold the service's requests."""

    port: int | None
    """The service's port, if known."""
    is_at_zero: bool
    """No replica is to run, and requests are held."""
    addresses: tuple[str, ...] = ()
    """Of the activators."""


PickOf = Callable[[LLMService, ClusterGPUs], Pick | None]
"""The choice of GPUs for a service; None where its plan does not count."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """The parts of `Inputs` that a decision needs and that have to be read first, by their names there."""

    update_permission: bool = False
    group_turn: bool = False
    sibling_model: str | None = None
    """Inspection key of a model that another service may have inspected."""
    reading: str | None = None
    """The model's configuration as JSON text."""
    gpus: GPUsQuery | None = None
    devices: DevicesQuery | None = None
    room: RoomQuery | None = None
    pod_events: tuple[str, ...] = ()
    """Names of the pods."""
    in_flight: tuple[tuple[str, str], ...] = ()
    """Names and IP addresses of the pods."""
    port: HoldingQuery | None = None
    """The port at the activators has to be allocated or confirmed."""
    holding: HoldingQuery | None = None
    """Reports of the activators."""
    quotas: bool = False
    """ResourceQuotas of the namespace, for this generation, at most QUOTAS_SECONDS old."""

    def __bool__(self) -> bool:
        return self != NO_REQUIREMENTS

    def __or__(self, other: Requirements) -> Requirements:
        """Both; where both have a part, this one's is taken."""
        return Requirements(
            **{each.name: getattr(self, each.name) or getattr(other, each.name) for each in fields(self)}
        )


NO_REQUIREMENTS = Requirements()


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """An input that no watch brings, and that only some decisions need."""

    value: T
    source: str
    """Where it was read, for users: `nodes and pods of the cluster`."""
    age_seconds: float = 0.0
    asked: RoomQuery | None = None
    """For free resources: the query that this answers; None: any."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """About one LLMService, at one time. A part is None if it was not read; `decide` returns which it needs."""

    parent: Json
    """The stored LLMService: metadata, status, and spec (an object, or its `spec_text`)."""
    stored: LLMService | None
    """The parsed LLMService; None: `problems` has the causes."""
    problems: tuple[Problem, ...]
    observed: Observed
    """Children, pods and endpoints from the watches, and the API server's answers to writes."""
    settings: Settings
    now: datetime
    internal_errors: str = ""
    """Parts of the operator that raise exceptions for this service; empty: none."""
    update_permission: Part[UpdatePermission] | None = None
    """Whether a requested update may start."""
    group_turn: Part[GroupTurn] | None = None
    """Whether pods of a group may look for nodes. The room for them is read afterwards."""
    sibling_model: Part[Json] | None = None
    """status.model of another service with the same model; empty if there is none."""
    reading: Part[ConfigReading] | None = None
    """The model's parsed configuration."""
    gpus: Part[ClusterGPUs] | None = None
    """GPUs of the nodes."""
    devices: Part[ClusterDevices] | None = None
    """Devices that drivers publish."""
    room: Part[Room] | None = None
    """Free resources of the nodes."""
    pod_events: Part[PodEvents] | None = None
    """Events of pods that do not start."""
    quotas: Part[Quotas | None] | None = None
    """ResourceQuotas of the namespace; a value of None: they could not be listed."""
    in_flight: Part[Mapping[str, int]] | None = None
    """Requests in flight by pod name, of ready pods that answered."""
    activators: Activators = None
    """Ready activators of the installation."""
    unknown_for: float = 0.0
    """Seconds for which the activators have been unknown while this service was reconciled."""
    port_claim: Part[PortClaim] | None = None
    """The port at the activators that was allocated to this service."""
    holding: Part[Reports] | None = None
    """Reports of the activators about this service."""

    def free_room(self, asked: RoomQuery) -> Room | Requirements:
        """Free resources, if the read ones answer this query; else what to read."""
        if self.room is None:
            return Requirements(room=asked)
        answered = self.room.asked
        if answered is None or asked.is_answered_by(answered):
            return self.room.value
        return Requirements(room=answered.and_(asked))

    def reports_of(self, query: HoldingQuery) -> Requirements:
        """What to read for reports of the activators: the port first; nothing if they were read."""
        if not query.addresses or self.holding is not None:
            return NO_REQUIREMENTS
        return Requirements(port=query) if self.port_claim is None else Requirements(holding=query)

    def with_parts(self, read: Mapping[str, Part[Any]]) -> Self:
        return replace(self, **read)  # type: ignore[arg-type]  # parts only

    @classmethod
    def of(cls, parent: Json, observed: Observed, settings: Settings, now: datetime, **more: Any) -> Self:
        """The inputs with the LLMService parsed; `more` are further fields by name."""
        try:
            service, problems = LLMService.from_object(parent), ()
        except InvalidSpec as invalid:
            return cls(parent, None, tuple(invalid.problems), observed, settings, now, **more)
        return cls(parent, service, problems, observed, settings, now, **more)


def value_of(part: Part[T] | None, otherwise: D) -> T | D:
    """The value of a part, or `otherwise` if it was not read."""
    return otherwise if part is None else part.value


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of one child with the field manager `llmservice-operator`.

    With `known_uid` the child has the service's controller reference: apply with force, and with the uid in its
    metadata, so that a vanished object answers 409. Without it: no force, and a 409 becomes a `Refusal` for the next
    decision. With `remove_foreign_fields`, foreign fields are removed as well, which an apply does not do: send
    `drift.removal_patch(RETURNED_OBJECT)` as a JSON patch if it is not empty.

    Applies are executed in order. The first refusal ends the round, except for those in `Decision.routes`.
    """

    manifest: Json
    reason: str
    known_uid: str | None = None
    remove_foreign_fields: bool = False
    is_shared_name: bool = False
    """Another service's child may have this name: the live object is read before it is made."""
    is_unreadable: bool = False
    """The operator may not read it: its owner is determined before it is applied."""
    is_optional: bool = False
    """The next decision goes on without it if the API server refuses it."""
    retry_after: float | None = None
    """Seconds after which a refusal of an optional child expires; None: with the next generation. With a number,
    failures of the API server count as refusals."""
    input_hash: str = ""
    """Becomes `AppliedRecord.input_hash` once the API server accepted it."""

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Prune:
    """Delete an own child that is no longer desired, with its uid as precondition."""

    kind: str
    name: str
    uid: str | None
    """None where the operator may not read it: its owner is determined before it is deleted."""
    reason: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take over a child of an earlier LLMService of this name, unchanged."""

    kind: str
    name: str
    uid: str
    of: str
    """The uid of the deleted LLMService."""


@dataclass(frozen=True, slots=True)
class DeletionCost:
    """Set DELETION_COST_ANNOTATION of the pod with this uid; a failure stops nothing."""

    pod: str
    uid: str
    cost: int


@dataclass(frozen=True, slots=True)
class Release:
    """Take GROUP_GATE, the only gate that is left, from the pod with this uid."""

    pod: str
    uid: str
    node_selector: tuple[tuple[str, str], ...] = ()
    """Further labels of its node."""


class Update(Enum):
    WAITS = "waits"
    RUNNING = "under way"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about the LLMService; `type` is Normal or Warning."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """How the workload gets a template, and what to report about it."""

    strategy: Strategy
    reason: str = ""
    notice: Reason | None = None
    """Reason of an Event, once the status has it."""
    is_reported_first: bool = False
    """The status has to report it before the workload changes."""
    is_held: bool = False
    """The workload must not change yet."""
    obstacle: Obstacle | None = None
    """What the new pod waits for."""
    recheck_after: float | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Pods of one revision are replaced by pods of another."""

    running: str
    """Label of the workload's revision."""
    desired: str
    strategy: str
    reason: str
    """Why this strategy; empty where the spec requests it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything to do now. Without actions and status the service is steady."""

    desired: tuple[Json, ...] = ()
    """Manifests of all desired children, in order of application."""
    restart: Restart | None = None
    adopt: tuple[Adopt, ...] = ()
    deletion_costs: tuple[DeletionCost, ...] = ()
    """Written only with an apply of the workload, right before it."""
    release: tuple[Release, ...] = ()
    is_placing: bool = False
    """Pods of a group look for nodes, or will once `release` is done."""
    apply: tuple[Apply, ...] = ()
    prune: tuple[Prune, ...] = ()
    status: Json | None = None
    """The complete `.status` to apply with the manager `llmservice-operator-status`; None: unchanged."""
    events: tuple[Event, ...] = ()
    asks: tuple[Ask, ...] = ()
    """Pods whose supervisors are to be polled from now on."""
    is_unsettled: bool = False
    """Pods, endpoints and the workload's counters disagree about whether the rollout is done."""
    claims_update: bool = False
    """A requested update starts, if `Updates.claim` permits it."""
    ongoing_rollout: tuple[str, str] | None = None
    """(revision, reason) of the rollout that continues or starts, kept until the status has it."""
    update: Update | None = None
    """None: none was requested, or it is done."""
    requeue_after: float | None = None
    """Seconds; only where no event of the cluster queues the key."""
    notes: tuple[str, ...] = field(default=())
    """Why nothing was done (paused, deleting), for the log and the preview."""

    @property
    def is_steady(self) -> bool:
        """Whether nothing is to be written."""
        return not (self.has_work or self.status is not None)

    @property
    def has_work(self) -> bool:
        """Whether a child or a pod is to be written."""
        return bool(self.adopt or self.apply or self.prune or self.release)

    @property
    def routes(self) -> Self:
        """The decision with only those writes that say where requests go, or let pods look for nodes.

        They depend on the listed pods and not on the other writes, whose refusal must not stop them.
        """
        return replace(
            self, adopt=(), apply=tuple(filter(is_route, self.apply)), prune=tuple(filter(is_route, self.prune))
        )


def is_route(write: Apply | Prune) -> bool:
    """Whether it says where requests go: an EndpointSlice of the activators or past a router, or the HTTPRoute."""
    return write.kind in (ENDPOINT_SLICE, HTTP_ROUTE.kind)


REFRESH_SECONDS = 60.0
"""Seconds between two reads of free GPUs for a message, so that the status does not change with every pod."""
QUOTAS_SECONDS = 180.0
"""Seconds between two reads of quotas below maxReplicas: only the condition depends on them."""


def soonest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
