"""Everything that a decision is made from, as one frozen value: what is known, where it is from and how old it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

from llmservice_api.errors import InvalidSpec, Problem
from llmservice_api.holding import Activators, PortClaim
from llmservice_api.service import LLMService
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.model.reading import Reading
from llmservice_planner.quotas import Quotas
from llmservice_planner.room import Room

from llmservice_operator.decide.fit.model_facts import ModelFacts, facts_for
from llmservice_operator.decide.rollout.selection import Selection, Turn, select
from llmservice_operator.decide.zero import Known, Reports, Zero, with_replicas, zero
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.failures.pod_events import PodEvents
from llmservice_operator.observe.observed import Observed

Json = Mapping[str, Any]
T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """What no watch brings, and only some decisions need."""

    value: T
    source: str
    """What it was read from, for people: `nodes and pods of the cluster`."""
    age_seconds: float = 0.0


@dataclass(frozen=True)
class Inputs:
    """About one LLMService, at one time. A part that is None was not read; `requirements` says which are needed."""

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

    @cached_property
    def service(self) -> LLMService | None:
        """The LLMService as its children are to be made: its replicas are those that the workload is to have."""
        return None if self.stored is None else with_replicas(self.stored, self.zero.replicas)

    @cached_property
    def zero(self) -> Zero:
        """How many replicas are to run, and whether requests go to the activators. Only where there is a service."""
        assert self.stored is not None
        known = Known(
            self.activators,
            self.unknown_for,
            value_of(self.port_claim, None),
            value_of(self.holding, None),
            value_of(self.in_flight, None),
        )
        return zero(self.stored, self.observed, self.settings, known)

    @cached_property
    def selection(self) -> Selection | tuple[Problem, ...]:
        """Which revision is to run, or why none may. Only where there is a service."""
        assert self.service is not None
        return select(self.service, self.observed, self.settings, value_of(self.turn, None))

    @cached_property
    def facts(self) -> ModelFacts:
        """What is known of the model. Only where there is a selection."""
        assert isinstance(self.selection, Selection)
        sibling_model = value_of(self.sibling_model, None)
        return facts_for(self.selection.service, self.selection.match, self.observed, self.now, sibling_model)

    @cached_property
    def facts_digest(self) -> str | None:
        """`ModelFacts.digest` of the facts."""
        assert isinstance(self.selection, Selection)
        return self.facts.digest(self.selection.service)

    def with_parts(self, read: Mapping[str, Part[Any]]) -> Self:
        """With parts that were read, by their names; what was worked out already and does not depend on them holds."""
        made = replace(self, **read)  # type: ignore[arg-type]  # parts only
        for name, made_of in MADE_OF.items():
            if name in self.__dict__ and made_of.isdisjoint(read):
                made.__dict__[name] = self.__dict__[name]
        return made

    @classmethod
    def of(cls, parent: Json, observed: Observed, settings: Settings, now: datetime, **more: Any) -> Self:
        """With the parsed LLMService; `more` are further fields by name."""
        try:
            service, problems = LLMService.from_object(parent), ()
        except InvalidSpec as invalid:
            return cls(parent, None, tuple(invalid.problems), observed, settings, now, **more)
        return cls(parent, service, problems, observed, settings, now, **more)


_OF_ZERO = frozenset({"port_claim", "holding", "in_flight"})
_OF_SELECTION = _OF_ZERO | {"turn"}
_OF_FACTS = _OF_SELECTION | {"sibling_model"}
MADE_OF: Mapping[str, frozenset[str]] = {
    "zero": _OF_ZERO,
    "service": _OF_ZERO,
    "selection": _OF_SELECTION,
    "facts": _OF_FACTS,
    "facts_digest": _OF_FACTS,
}
"""The cached properties of `Inputs`, and the parts that each of them reads."""


def value_of(part: Part[T] | None, otherwise: D) -> T | D:
    """The value of a part, or what stands for one that was not read."""
    return otherwise if part is None else part.value
