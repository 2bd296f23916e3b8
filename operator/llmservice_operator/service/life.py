"""The stage that the process is in, and whether it is ready: it acts now, or would as soon as it gets a Lease."""

from __future__ import annotations

import enum
from collections.abc import Callable

from kubeloop.health import Readiness
from kubeloop.sync_state import SyncState


class Stage(enum.StrEnum):
    """In this order, each once."""

    STARTED = "started"
    SYNCED = "synced"
    """Its caches are warm; another process may hold the Lease."""
    ACTING = "acting"
    STOPPING = "stopping"


class Life:
    """One value for the whole process, and what /readyz makes of it."""

    def __init__(self, sync: SyncState, lease_problem: Callable[[], str | None]) -> None:
        self.stage = Stage.STARTED
        """The stage that was reached last; `reach` sets it."""
        self._sync = sync
        self._lease_problem = lease_problem

    def reach(self, stage: Stage) -> None:
        """Go on to a later stage; one that is passed already is not gone back to."""
        if list(Stage).index(stage) > list(Stage).index(self.stage):
            self.stage = stage

    @property
    def is_acting(self) -> bool:
        """Whether services are worked on, where the Lease is held."""
        return self.stage is Stage.ACTING

    def readiness(self) -> Readiness:
        """Ready: synced, nothing that lasts in the way of one namespace at least, and the Leases can be asked for."""
        lease = self._lease_problem()
        is_ready = self.stage in (Stage.SYNCED, Stage.ACTING) and lease is None and bool(self._sync.working())
        found = [*self._sync.problems(), *([lease] if lease else [])]
        lines = [f"warning: {line}" for line in found] if is_ready else found
        return Readiness(is_ready, (f"stage: {self.stage}", *lines))
