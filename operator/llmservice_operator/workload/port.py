"""How the replicas of a service are run: what others know of a workload, whatever kind of object it is.

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
"""How pods of a new template take the place of the old ones: first one more, first one less, or first none."""
USUAL: Strategy = "Surge"


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a service, which answers requests as a whole."""

    pods: tuple[PodFacts, ...]
    """One or more; the first one is sent the requests."""

    @property
    def first(self) -> PodFacts:
        return self.pods[0]

    @property
    def revision(self) -> str:
        return self.first.revision

    @property
    def is_going(self) -> bool:
        """On its way out, as far as one of its pods is."""
        return any(pod.deleting for pod in self.pods)

    @property
    def is_over(self) -> bool:
        """One of its pods has ended, and is to be made again."""
        return any(pod.phase in ("Failed", "Succeeded") for pod in self.pods)

    @property
    def ready(self) -> bool:
        return all(pod.ready for pod in self.pods)

    @property
    def is_placed(self) -> bool:
        """One of its pods has a node."""
        return any(pod.node for pod in self.pods)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts(ChildFacts, ABC):
    """What decisions read of a workload. Numbers are of replicas, by its controller."""

    generation: int
    observed_generation: int
    revision: str
    """Revision label of the pod template."""
    spec_replicas: int
    replicas: int
    updated: int
    ready: int
    available: int
    deadline_exceeded: bool
    """The rollout made no progress for so long."""
    deadline_seconds: float
    """Seconds without progress after which its controller says so."""
    deadline_message: str
    """What its controller says of that; empty as long as it is not so."""
    strategy: str | None
    """What Auto was found to be when its template was put in; None: the usual one."""
    replica_failure: str | None
    """Why pods cannot even be created (a quota, an admission policy), without moving numbers."""

    @abstractmethod
    def strategy_in_force(self) -> Strategy:
        """How its spec replaces pods now. Parsed each time."""

    def template(self) -> Manifest:
        """The live pod template. Parsed each time."""
        found: Manifest = self.live()["spec"].get("template") or {}
        return found


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of object that runs replicas."""

    facts: type[WorkloadFacts]
    """Its projection."""
    manifest: Callable[[LLMService, Manifest, Strategy], Manifest]
    """Of a service, from the recorded pod template: what needs no restart leaves that as it is."""

    replicas: Callable[[Iterable[PodFacts]], Iterable[Replica]]
    """Of a service's pods, in their order: those that belong together."""

    @property
    def kind(self) -> str:
        """As manifests write it."""
        return self.facts.kind
