"""Inputs of a status beside observations: the service, and decisions about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from llmservice_api.autoscaling import Autoscaling
from llmservice_api.conditions import ConditionStatus
from llmservice_api.errors import Problem
from llmservice_api.reasons import Reason

from llmservice_operator.observe.progress import RolloutDecision

Json = Mapping[str, Any]
_EMPTY: Json = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Subject:
    """The LLMService for its status; it exists even where the spec is invalid."""

    name: str
    namespace: str
    uid: str
    generation: int
    previous: Json
    """The stored status."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why the children cannot be as the spec requires, though the spec is valid."""

    reason: Reason
    message: str
    is_final: bool = True
    remedy: str = ""
    """If the message lacks it."""
    evidence: tuple[str, ...] = ()

    def sentence(self) -> str:
        """What happened and what to do, in one line."""
        return f"{self.message} {self.remedy}".strip()


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition that does not depend on pods: Fits, Autoscaled."""

    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decisions about the service."""

    problems: tuple[Problem, ...] = ()
    """Why the spec is not accepted."""
    obstacle: Obstacle | None = None
    paused: bool = False
    is_pending: bool = False
    """A child is not as desired: nothing counts as rolled out, whatever the pods show."""
    replicas: int = 0
    revision: str = ""
    rolling: RolloutDecision = field(default_factory=RolloutDecision)
    selector: str = ""
    gpus: int = 0
    endpoint: Json = field(default_factory=lambda: _EMPTY)
    effective: Json = field(default_factory=lambda: _EMPTY)
    misplaced: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    """By pod that failed on another GPU than planned: why the model does not fit there."""
    where_pods_go: str = ""
    """Which labels keep its pods from nodes, and the remedy."""
    fitness: Finding | None = None
    """None: the spec is not accepted, and there is no condition Fits."""
    plan: Json | None = None
    model: Json | None = None
    """The value of status.model."""
    adapters: tuple[str, ...] = ()
    """Names of the desired adapters."""
    autoscaling: Autoscaling | None = None
    """The spec's; None: it has none, or cannot be parsed."""
    autoscaled: Finding | None = None
    """None: there is no condition Autoscaled."""
    idle: bool | None = None
    """Autoscaling and not a user set spec.scaling.replicas to 0."""
    holding_port: int | None = None
    """Port of the activators for the service's requests; None: it always has a replica."""
    held_seconds: int | None = None
    """Seconds that a request would be held, where no replica is to run for lack of requests; None: it is not idle."""
    adapters_digest: str | None = None
    """Digest of their list, which pods report; None without LoRA."""
