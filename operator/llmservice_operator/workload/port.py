"""The interface of workloads, independent of their kind.

Only modules of this package name a kind, its fields or its controller. Another kind is a module beside `deployment.py`
and a line in `kinds.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from llmservice_api.service import LLMService

from llmservice_operator.facts.children import ChildFacts
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.meta import Manifest

Strategy = Literal["Surge", "Replace", "Recreate"]
"""How pods of a new template replace the old ones: one more first, one less first, or none first."""
DEFAULT_STRATEGY: Strategy = "Surge"


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a service, which serves requests as a whole."""

    pods: tuple[PodFacts, ...]
    """One or more."""

    @property
    def first(self) -> PodFacts:
        return self.pods[0]

    @property
    def answering(self) -> tuple[PodFacts, ...]:
        """Its pods that receive requests."""
        return tuple(pod for pod in self.pods if pod.has_api) or self.pods[:1]

    @property
    def revision(self) -> str:
        return self.first.revision

    @property
    def is_terminating(self) -> bool:
        """Whether one of its pods is being deleted."""
        return any(pod.deleting for pod in self.pods)

    @property
    def has_ended(self) -> bool:
        """Whether one of its pods has ended, and will be recreated."""
        return any(pod.phase in ("Failed", "Succeeded") for pod in self.pods)

    @property
    def ready(self) -> bool:
        return all(pod.ready for pod in self.pods)

    @property
    def is_placed(self) -> bool:
        """Whether one of its pods has a node."""
        return any(pod.node for pod in self.pods)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts(ChildFacts, ABC):
    """The projection of a workload. Numbers are of replicas, by its controller."""

    generation: int
    observed_generation: int
    revision: str
    """Revision label of the pod template."""
    nodes: int = 1
    """Pods of one replica."""
    spec_replicas: int
    replicas: int
    updated: int
    ready: int
    available: int
    deadline_exceeded: bool
    """The rollout made no progress for `deadline_seconds`."""
    deadline_seconds: float
    """Seconds without progress after which the controller reports it."""
    keeps_deadline: bool = True
    """Whether the controller does: else a pod is late that was not ready so long after it was created."""
    changed_at: str = ""
    """Where it does not: when this operator last changed it, or it was made."""
    deadline_message: str
    """The controller's message about it, or ""."""
    strategy: str | None
    """The strategy that Auto resolved to for this template; None: Surge."""
    replica_failure: str | None
    """Why pods cannot be created (a quota, an admission policy), without changing numbers."""

    @abstractmethod
    def strategy_in_force(self) -> Strategy:
        """The strategy of its live spec. Parsed at each call."""

    def template(self) -> Manifest:
        """The live pod template. Parsed at each call."""
        found: Manifest = self.live()["spec"].get("template") or {}
        return found


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of object that runs replicas."""

    facts: type[WorkloadFacts]
    """Its projection."""
    manifest: Callable[[LLMService, Manifest, Strategy], Manifest]
    """The manifest for a service, from the recorded pod template, which changes that need no restart leave as it is."""

    replicas: Callable[[Iterable[PodFacts]], Iterable[Replica]]
    """Groups pods of a service into replicas, in order."""

    @property
    def kind(self) -> str:
        return self.facts.kind
