"""OOM events of this container from its cgroup, v2 or v1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MemoryEvents:
    """Counts since the container's start; 0 where unknown."""

    kills: int = 0
    """Processes killed for memory, by the container's limit or by the node."""
    limit_hits: int | None = None
    """How often the container's own limit was the cause; None with cgroup v1."""

    def since(self, before: MemoryEvents) -> MemoryEvents:
        """The difference to earlier counts."""
        hits = None if self.limit_hits is None else self.limit_hits - (before.limit_hits or 0)
        return MemoryEvents(max(0, self.kills - before.kills), hits)


NO_EVENTS = MemoryEvents()


def read(root: Path) -> MemoryEvents:
    """Read the container's own cgroup, mounted at `root`."""
    if events := _counts(root / "memory.events"):
        return MemoryEvents(events.get("oom_kill", 0), events.get("oom"))
    return MemoryEvents(_counts(root / "memory" / "memory.oom_control").get("oom_kill", 0))


def _counts(path: Path) -> Mapping[str, int]:
    try:
        rows = (line.split() for line in path.read_text(encoding="ascii").splitlines())
        return {name: int(value) for name, value in rows}
    except (OSError, ValueError):
        return {}
