"""What is in a bundle before secrets are taken out, as values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

Read = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: an object, written as YAML, or a text. `path` is below the bundle's folder."""

    path: str
    what: str
    content: Any


@dataclass(frozen=True, slots=True)
class Planned:
    """A text that is read once it is known that a bundle is written."""

    namespace: str
    """In which it needs a right."""
    path: str
    what: str
    read: Read


@dataclass(frozen=True, slots=True)
class Gap:
    """What could not be read, or was left out, and why."""

    what: str
    why: str


@dataclass(slots=True)
class Material:
    """Filled while it is collected."""

    entries: list[Entry] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
