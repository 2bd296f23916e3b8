"""What a status needs beside observations: the service itself, and what was decided about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from llmservice_api.autoscaling import Autoscaling
from llmservice_api.conditions import ConditionStatus
from llmservice_api.errors import Problem
from llmservice_api.reasons import Reason

from llmservice_operator.observe.progress import Rolling

Json = Mapping[str, Any]
_EMPTY: Json = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Subject:
    """The LLMService as far as its status is concerned; there is one even where the spec is invalid."""

    name: str
    namespace: str
    uid: str
    generation: int
    previous: Json
    """The stored status."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why the children cannot be brought to what the spec asks for, though the spec itself is fine."""

    reason: Reason
    message: str
    is_final: bool = True
    remedy: str = ""
    """Where the message does not say it."""
    evidence: tuple[str, ...] = ()

    def sentence(self) -> str:
        """What happened and what to do about it, in one line."""
        return f"{self.message} {self.remedy}".strip()


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition that does not depend on pods: Fits, Autoscaled."""

    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided."""

    problems: tuple[Problem, ...] = ()
    """Why the spec is not accepted."""
    obstacle: Obstacle | None = None
    paused: bool = False
    is_pending: bool = False
    """A child is not what it should be: nothing counts as rolled out then, whatever the pods say."""
    replicas: int = 0
    revision: str = ""
    rolling: Rolling = field(default_factory=Rolling)
    selector: str = ""
    gpus: int = 0
    endpoint: Json = field(default_factory=lambda: _EMPTY)
    effective: Json = field(default_factory=lambda: _EMPTY)
    misplaced: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    """By the name of a pod that failed on another GPU than planned: why the model does not fit there."""
    where_pods_go: str = ""
    """What keeps its pods from nodes by their labels, and what to do about it."""
    fitness: Finding | None = None
    """None: the spec is not accepted, and there is no condition Fits."""
    plan: Json | None = None
    model: Json | None = None
    """What was read of the model."""
    adapters: tuple[str, ...] = ()
    """Names of the adapters that are to be served."""
    autoscaling: Autoscaling | None = None
    """Of the spec; None: it does not ask for autoscaling, or cannot be parsed."""
    autoscaled: Finding | None = None
    """None: there is no condition Autoscaled."""
    idle: bool | None = None
    """The 0 in spec.scaling.replicas is autoscaling's."""
    holding_port: int | None = None
    """Of the activators, where requests for this service are held; None: it is never without a replica."""
    held_seconds: int | None = None
    """How long a request would be held, where no replica is to run because none comes; None: it is not idle."""
    adapters_digest: str | None = None
    """Of their list, as pods report it; None while LoRA is off."""
