"""What to do about one LLMService, as a value that can be printed, compared and executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Self

from llmservice_api.reasons import Reason

from llmservice_operator.observe.observed import ENDPOINT_SLICE
from llmservice_operator.observe.reports import Ask
from llmservice_operator.observe.status.verdict import Obstacle
from llmservice_operator.workload.port import Strategy

Json = Mapping[str, Any]


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
        """Whether a child is to be written."""
        return bool(self.adopt or self.apply or self.prune)

    @property
    def routes(self) -> Self:
        """The decision with only those writes that direct requests to the activators or away from them.

        They depend on the listed pods and not on the other writes, whose refusal must not stop them.
        """
        return replace(
            self, adopt=(), apply=tuple(filter(is_route, self.apply)), prune=tuple(filter(is_route, self.prune))
        )


def is_route(write: Apply | Prune) -> bool:
    """Whether it writes an EndpointSlice of the activators."""
    return write.kind == ENDPOINT_SLICE


REFRESH_SECONDS = 60.0
"""Seconds between two reads of free GPUs for a message, so that the status does not change with every pod."""
QUOTAS_SECONDS = 180.0
"""Seconds between two reads of quotas below maxReplicas: only the condition depends on them."""


def soonest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
