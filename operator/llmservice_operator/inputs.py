"""Everything that a decision is made from, as one frozen value: what is known, where it is from and how old it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from llmservice_api.errors import InvalidSpec, Problem
from llmservice_api.holding import Activators, PortClaim
from llmservice_api.service import LLMService
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.model.reading import Reading
from llmservice_planner.quotas import Quotas
from llmservice_planner.room import Room

from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.activators import Reports
from llmservice_operator.observe.failures.pod_events import PodEvents
from llmservice_operator.observe.observed import Observed

Json = Mapping[str, Any]
T = TypeVar("T")
D = TypeVar("D")


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
class GPUsQuery:
    """What nodes with these labels have of an extended resource."""

    resource: str
    node_selector: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RoomQuery:
    """What is free on the cluster's nodes, and who holds a resource."""

    resource: str | None
    """The accelerator's; None on CPUs."""
    max_age_seconds: float = 0.0
    """What was read for this service before and is younger will do: messages are not to change more often."""
    is_only_shown: bool = False
    """Nothing is decided by it: where it cannot be read, what was read long ago is better than nothing."""

    def is_answered_by(self, other: RoomQuery) -> bool:
        """Whether what was read for the other question answers this one. Of two resources the first one stays."""
        is_certain = self.is_only_shown or not other.is_only_shown
        has_resource = self.resource is None or other.resource is not None
        return is_certain and has_resource and other.max_age_seconds <= self.max_age_seconds

    def and_(self, other: RoomQuery) -> RoomQuery:
        """The question whose answer answers both."""
        return RoomQuery(
            self.resource if self.resource is not None else other.resource,
            min(self.max_age_seconds, other.max_age_seconds),
            self.is_only_shown and other.is_only_shown,
        )


@dataclass(frozen=True, slots=True)
class HoldingQuery:
    """What activators are asked about the service: whether they can hold its requests."""

    port: int | None
    """Of the service, as far as it is known."""
    is_at_rest: bool
    """No replica is to run, and requests are held."""
    addresses: tuple[str, ...] = ()
    """Of the activators."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """The parts of `Inputs` that a decision needs and that are to be read next, by their names there."""

    turn: bool = False
    sibling_model: str | None = None
    """The inspection key of the model that a sibling may know."""
    reading: str | None = None
    """The model's configuration, as JSON text."""
    gpus: GPUsQuery | None = None
    room: RoomQuery | None = None
    pod_events: tuple[str, ...] = ()
    """Names of the pods."""
    in_flight: tuple[tuple[str, str], ...] = ()
    """Names and IP addresses of the pods."""
    port: HoldingQuery | None = None
    """The port at the activators is to be allotted, or known to be the service's still."""
    holding: HoldingQuery | None = None
    """What the activators report."""
    quotas: bool = False
    """The ResourceQuotas of the namespace, for this generation, of the last QUOTAS_SECONDS."""

    def __bool__(self) -> bool:
        return self != NOTHING

    def __or__(self, other: Requirements) -> Requirements:
        """Both; what both name is this one's."""
        return Requirements(
            **{each.name: getattr(self, each.name) or getattr(other, each.name) for each in fields(self)}
        )


NOTHING = Requirements()


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """What no watch brings, and only some decisions need."""

    value: T
    source: str
    """What it was read from, for people: `nodes and pods of the cluster`."""
    age_seconds: float = 0.0
    asked: RoomQuery | None = None
    """Of free room: the question that this answers; None: any."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """About one LLMService, at one time. A part that is None was not read; `decide` says which it needs."""

    parent: Json
    """The LLMService as it is stored: metadata, status, and spec (an object, or its `spec_text`)."""
    stored: LLMService | None
    """The same, parsed; None: `problems` say why not."""
    problems: tuple[Problem, ...]
    observed: Observed
    """Its children, pods and endpoints as their watches brought them, and what the API server made of our writes."""
    settings: Settings
    now: datetime
    internal_errors: str = ""
    """Which parts of the operator's work on this service raise exceptions; empty: none does."""
    turn: Part[Turn] | None = None
    """Whether an update that was asked for may begin."""
    sibling_model: Part[Json] | None = None
    """status.model of another service of the same model; empty where there is none."""
    reading: Part[Reading] | None = None
    """What the model's configuration says."""
    gpus: Part[ClusterGPUs] | None = None
    """What the nodes have."""
    room: Part[Room] | None = None
    """What is free on the nodes."""
    pod_events: Part[PodEvents] | None = None
    """What Events say of pods that do not start."""
    quotas: Part[Quotas | None] | None = None
    """The ResourceQuotas of the namespace; a value of None: they could not be listed just now."""
    in_flight: Part[Mapping[str, int]] | None = None
    """Requests in flight of each ready pod that could be read, by its name."""
    activators: Activators = None
    """Those that are ready, of the whole installation."""
    unknown_for: float = 0.0
    """Seconds for which they have not been known, as far as this service was worked on."""
    port_claim: Part[PortClaim] | None = None
    """The port at the activators that was allotted to this service."""
    holding: Part[Reports] | None = None
    """What the activators say of this service."""

    def free_room(self, asked: RoomQuery) -> Room | Requirements:
        """What is free on the nodes, where what was read answers this question."""
        if self.room is None:
            return Requirements(room=asked)
        answered = self.room.asked
        if answered is None or asked.is_answered_by(answered):
            return self.room.value
        return Requirements(room=answered.and_(asked))

    def reports_of(self, query: HoldingQuery) -> Requirements:
        """The activators' reports, or first the port that they are asked about; nothing: they were read."""
        if not query.addresses or self.holding is not None:
            return NOTHING
        return Requirements(port=query) if self.port_claim is None else Requirements(holding=query)

    def with_parts(self, read: Mapping[str, Part[Any]]) -> Self:
        """With parts that were read, by their names."""
        return replace(self, **read)  # type: ignore[arg-type]  # parts only

    @classmethod
    def of(cls, parent: Json, observed: Observed, settings: Settings, now: datetime, **more: Any) -> Self:
        """With the parsed LLMService; `more` are further fields by name."""
        try:
            service, problems = LLMService.from_object(parent), ()
        except InvalidSpec as invalid:
            return cls(parent, None, tuple(invalid.problems), observed, settings, now, **more)
        return cls(parent, service, problems, observed, settings, now, **more)


def value_of(part: Part[T] | None, otherwise: D) -> T | D:
    """The value of a part, or what stands for one that was not read."""
    return otherwise if part is None else part.value
