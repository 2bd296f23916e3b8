"""The stage of the process, and its readiness: it acts, or would as soon as it gets the Lease."""

from __future__ import annotations

import enum
from collections.abc import Callable

from kubeloop.cache import SyncState
from kubeloop.health import Readiness


class Stage(enum.StrEnum):
    """In this order, each at most once."""

    STARTED = "started"
    SYNCED = "synced"
    """Its caches are up to date; another process may hold the Lease."""
    ACTING = "acting"
    STOPPING = "stopping"


class Life:
    """The stage of the process, with the answer of /readyz."""

    def __init__(self, sync: SyncState, lease_problem: Callable[[], str | None]) -> None:
        self.stage = Stage.STARTED
        """The last reached stage."""
        self._sync = sync
        self._lease_problem = lease_problem

    def reach(self, stage: Stage) -> None:
        """Enter a later stage; no effect if it is passed already."""
        if list(Stage).index(stage) > list(Stage).index(self.stage):
            self.stage = stage

    @property
    def is_acting(self) -> bool:
        """Whether services are reconciled."""
        return self.stage is Stage.ACTING

    def readiness(self) -> Readiness:
        """Ready: synced, at least one namespace without a lasting problem, and the Lease can be requested."""
        lease = self._lease_problem()
        is_ready = self.stage in (Stage.SYNCED, Stage.ACTING) and lease is None and bool(self._sync.working())
        found = [*self._sync.problems(), *([lease] if lease else [])]
        lines = [f"warning: {line}" for line in found] if is_ready else found
        return Readiness(is_ready, (f"stage: {self.stage}", *lines))
