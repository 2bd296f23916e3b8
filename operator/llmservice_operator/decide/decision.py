"""What is to be done about one LLMService, as a value: it can be printed, compared and carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from llmservice_operator.observe.reports import Ask

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of one child with the field manager `llmservice-operator`.

    With `known_uid` the child is known to carry our controller reference: force, and put the uid into the body's
    metadata, so that an object that vanished meanwhile answers 409. Without it: no force, and a 409 is a `Refusal`
    that the next decision sees. With `expel`, foreign additions are to go as well, which apply alone never does:
    send `observe.foreign.removal_patch(RETURNED_OBJECT)` as a JSON patch when it is not empty.
    Applies are carried out in order; the first refusal ends the round.
    """

    manifest: Json
    reason: str
    known_uid: str | None = None
    expel: bool = False
    is_unread: bool = False
    """No right to read it: whose it is has to be found out before it is applied."""
    is_optional: bool = False
    """The next decision does without it where the API server does not take it."""
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
class Inherit:
    """Make one child of an earlier LLMService of this name ours, as it is."""

    kind: str
    name: str
    uid: str
    of: str
    """The uid of the LLMService that is gone."""


@dataclass(frozen=True, slots=True)
class GpusOf:
    """To be found out: what nodes with these labels have of a resource, as `Observed.gpus`."""

    resource: str
    node_selector: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FactsOf:
    """To be found out: what another service of the namespace knows of the same model, as `Observed.lent`."""

    inspection: str


@dataclass(frozen=True, slots=True)
class RoomFor:
    """To be found out: what is free on the cluster's nodes, and who holds a resource, as `Observed.room`."""

    resource: str | None
    """The accelerator's; None on CPUs."""
    may_be_old: float = 0.0
    """Seconds for which what this service was told before will do: texts are not to move more often."""
    is_only_told: bool = False
    """Nothing is decided by it: what was seen long ago is better than nothing."""


@dataclass(frozen=True, slots=True)
class EventsOf:
    """To be found out: what Events say of these pods, as `Observed.pod_events`."""

    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TurnOf:
    """To be found out: whether an update that was asked for may begin, as `Observed.turn`."""


@dataclass(frozen=True, slots=True)
class ReadingOf:
    """To be found out: what a model's configuration says, as `Observed.reading`."""

    document: str
    """The configuration, as JSON text."""


Lack = GpusOf | FactsOf | ReadingOf | RoomFor | TurnOf | EventsOf
"""What no watch tells, and only a few decisions need."""


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
class Decision:
    """Everything to do now; the empty decision is the steady state."""

    inherit: tuple[Inherit, ...] = ()
    apply: tuple[Apply, ...] = ()
    prune: tuple[Prune, ...] = ()
    status: Json | None = None
    """The whole value of `.status` to apply with the manager `llmservice-operator-status`; None: unchanged."""
    events: tuple[Event, ...] = ()
    asks: tuple[Ask, ...] = ()
    """Pods whose supervisors are to be asked from now on."""
    lack: Lack | None = None
    """Find this out and decide again; nothing else counts then."""
    is_unsettled: bool = False
    """Pods, endpoints and the Deployment's counters disagree about whether the rollout is done."""
    begun: tuple[str, str] | None = None
    """(revision, reason) of the rollout that goes on or begins, to be known until the status tells it."""
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
        return bool(self.inherit or self.apply or self.prune)


def soonest(*times: float | None) -> float | None:
    """The earliest of those that are set."""
    return min((time for time in times if time is not None), default=None)
