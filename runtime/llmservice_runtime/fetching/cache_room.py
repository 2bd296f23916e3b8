"""How full the model cache is, as the process that fetches told it, and as the pod's metrics tell it."""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_runtime.bounded_json import Reader


@dataclass(frozen=True)
class CacheRoom:
    """When a fetch began. Bytes."""

    used: int = 0
    """By files of models, whole and partial."""
    available: int = 0
    freed: int = 0
    """By the pruning of this start."""

    def to_document(self) -> dict[str, int]:
        """As JSON."""
        return {"usedBytes": self.used, "availableBytes": self.available, "freedBytes": self.freed}

    @classmethod
    def from_document(cls, document: object) -> CacheRoom:
        """The reverse. Refused where it is none."""
        given = Reader(document, "cache")
        return cls(given.integer("usedBytes"), given.integer("availableBytes"), given.integer("freedBytes"))
