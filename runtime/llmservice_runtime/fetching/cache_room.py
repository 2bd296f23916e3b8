"""Usage of the model cache, as the fetch process reports it; part of /state and of the pod's metrics."""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_runtime.bounded_json import Reader


@dataclass(frozen=True)
class CacheRoom:
    """Bytes, when a fetch began."""

    used: int = 0
    """By model files, complete and partial."""
    available: int = 0
    freed: int = 0
    """By pruning at this start."""

    def to_document(self) -> dict[str, int]:
        """As JSON."""
        return {"usedBytes": self.used, "availableBytes": self.available, "freedBytes": self.freed}

    @classmethod
    def from_document(cls, document: object) -> CacheRoom:
        """The inverse. Refused where the document is invalid."""
        given = Reader(document, "cache")
        return cls(given.integer("usedBytes"), given.integer("availableBytes"), given.integer("freedBytes"))
