"""What is to be done about one LLMService, as a value: it can be printed, compared and carried out."""

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

    With `known_uid` the child is known to carry our controller reference: force, and put the uid into the body's
    metadata, so that an object that vanished meanwhile answers 409. Without it: no force, and a 409 is a `Refusal`
    that the next decision sees. With `expel`, foreign additions are to go as well, which apply alone never does:
    send `drift.removal_patch(RETURNED_OBJECT)` as a JSON patch when it is not empty.
    Applies are carried out in order; the first refusal ends the round, except for what `Decision.routes` has.
    """

    manifest: Json
    reason: str
    known_uid: str | None = None
    expel: bool = False
    is_unread: bool = False
    """No right to read it: whose it is has to be found out before it is applied."""
    is_optional: bool = False
    """The next decision does without it where the API server does not take it."""
    retry_after: float | None = None
    """Seconds after which a refusal of an optional one is forgotten; None: with the next generation. With a number
    failures of the API server are refusals, too."""
    input_hash: str = ""
    """Goes into `AppliedRecord.input_hash` once the API server has taken it."""

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Prune:
    """Delete one child that we own and no longer want, with the uid as precondition."""

    kind: str
    name: str
    uid: str | None
    """None where the operator may not read it: whose it is has to be found out first."""
    reason: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Make one child of an earlier LLMService of this name ours, as it is."""

    kind: str
    name: str
    uid: str
    of: str
    """The uid of the LLMService that is gone."""


@dataclass(frozen=True, slots=True)
class DeletionCost:
    """Set DELETION_COST_ANNOTATION of this very pod; a failure to do so stops nothing."""

    pod: str
    uid: str
    cost: int


class Update(Enum):
    """Where a service stands with an update that was asked for."""

    WAITS = "waits"
    UNDER_WAY = "under way"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about the LLMService; `type` is Normal or Warning."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """How the workload is to bring a template in, and what is to be said about that."""

    strategy: Strategy
    reason: str = ""
    notice: Reason | None = None
    """The reason of an Event, where the status says so first."""
    is_reported_first: bool = False
    """The status has to say so before the workload is changed."""
    is_held: bool = False
    """The workload is not to be changed yet."""
    obstacle: Obstacle | None = None
    """What the new pod waits for."""
    recheck_after: float | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Pods of one revision are replaced by pods of another."""

    running: str
    """Label of the revision that the workload has."""
    desired: str
    strategy: str
    reason: str
    """Why this strategy; empty where the spec asks for it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything to do now; without actions and status it is the steady state."""

    desired: tuple[Json, ...] = ()
    """Manifests of all children that the service is to have, in the order in which they are applied."""
    restart: Restart | None = None
    adopt: tuple[Adopt, ...] = ()
    deletion_costs: tuple[DeletionCost, ...] = ()
    """Written right before the apply of the workload, and only with one."""
    apply: tuple[Apply, ...] = ()
    prune: tuple[Prune, ...] = ()
    status: Json | None = None
    """The whole value of `.status` to apply with the manager `llmservice-operator-status`; None: unchanged."""
    events: tuple[Event, ...] = ()
    asks: tuple[Ask, ...] = ()
    """Pods whose supervisors are to be asked from now on."""
    is_unsettled: bool = False
    """Pods, endpoints and the workload's counters disagree about whether the rollout is done."""
    claims_turn: bool = False
    """An update that was asked for begins: only where `Updates.claim` grants it."""
    begun: tuple[str, str] | None = None
    """(revision, reason) of the rollout that goes on or begins, kept until the status has it."""
    update: Update | None = None
    """None: none was asked for, or it is done."""
    requeue_after: float | None = None
    """Seconds; only where no event of the cluster will wake this key."""
    notes: tuple[str, ...] = field(default=())
    """Why nothing was done, for the log and the preview (paused, deleting)."""

    @property
    def is_steady(self) -> bool:
        """Nothing is to be written."""
        return not (self.has_work or self.status is not None)

    @property
    def has_work(self) -> bool:
        """Something about the children is to be written."""
        return bool(self.adopt or self.apply or self.prune)

    @property
    def routes(self) -> Self:
        """With no other writes than those that bring requests to the activators or away from them.

        They follow from which pods are listed now, not from the other writes, whose refusal stops none of them.
        """
        return replace(
            self, adopt=(), apply=tuple(filter(is_route, self.apply)), prune=tuple(filter(is_route, self.prune))
        )


def is_route(write: Apply | Prune) -> bool:
    """Whether it is about a slice that sends requests to the activators."""
    return write.kind == ENDPOINT_SLICE


REFRESH_SECONDS = 60.0
"""Between two readings of free GPUs for a message: figures that moved with every pod would be written all the time."""
QUOTAS_SECONDS = 180.0
"""Between two readings of the quotas that end before maxReplicas: nobody but the condition waits for them."""


def soonest(*times: float | None) -> float | None:
    """The earliest of those that are set."""
    return min((time for time in times if time is not None), default=None)
