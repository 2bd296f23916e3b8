"""How the replicas of a service are run: what others know of a workload, whatever kind of object it is.

Only modules of this package name a kind, its fields or its controller. Another kind is a module beside `deployment.py`
and a line in `kinds.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from llmservice_api.service import LLMService

from llmservice_operator.facts.children import ChildFacts
from llmservice_operator.manifests.meta import Manifest

Strategy = Literal["Surge", "Replace", "Recreate"]
"""How pods of a new template take the place of the old ones: first one more, first one less, or first none."""
USUAL: Strategy = "Surge"


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

    @property
    def kind(self) -> str:
        """As manifests write it."""
        return self.facts.kind
