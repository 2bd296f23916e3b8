"""What the kernel's memory controller did to this container: cgroup v2, and v1 where that is what the node has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MemoryEvents:
    """Counts since the container began; 0 where they cannot be known."""

    kills: int = 0
    """Processes that were killed for memory: for the container's limit or for the node's lack of it."""
    limit_hits: int | None = None
    """How often the limit itself left the kernel no choice; None where it does not say (cgroup v1)."""

    def since(self, before: MemoryEvents) -> MemoryEvents:
        """What came to it after an earlier look."""
        hits = None if self.limit_hits is None else self.limit_hits - (before.limit_hits or 0)
        return MemoryEvents(max(0, self.kills - before.kills), hits)


NO_EVENTS = MemoryEvents()


def read(root: Path) -> MemoryEvents:
    """The container's own group: what is mounted there belongs to it."""
    if events := _counts(root / "memory.events"):
        return MemoryEvents(events.get("oom_kill", 0), events.get("oom"))
    return MemoryEvents(_counts(root / "memory" / "memory.oom_control").get("oom_kill", 0))


def _counts(path: Path) -> Mapping[str, int]:
    try:
        rows = (line.split() for line in path.read_text(encoding="ascii").splitlines())
        return {name: int(value) for name, value in rows}
    except (OSError, ValueError):
        return {}
