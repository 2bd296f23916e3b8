"""Progress of a fetch: sent by the fetch process to the supervisor, and in /state to the operator."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from llmservice_runtime.bounded_json import Reader, parse
from llmservice_runtime.str_enum import StrEnum


class TransferStep(StrEnum):
    """What a fetch is doing."""

    LISTING = "Listing"
    WAITING = "Waiting"
    DOWNLOADING = "Downloading"
    VERIFYING = "Verifying"


@dataclass(frozen=True)
class Transfer:
    """Progress of one artifact's fetch. Bytes; None while unknown."""

    artifact: str
    step: TransferStep
    bytes_done: int = 0
    bytes_total: int | None = None
    bytes_per_second: float | None = None

    @property
    def percent(self) -> int | None:
        """Integer percent, rounded down; 100 only when complete."""
        return None if not self.bytes_total else min(100, self.bytes_done * 100 // self.bytes_total)

    @property
    def summary(self) -> str:
        """One line for people."""
        return f"{self.artifact}: {self.step}" + ("" if self.percent is None else f" {self.percent}%")

    @property
    def eta_seconds(self) -> int | None:
        """Estimated seconds left at the current rate; None without a rate."""
        if (
            self.step not in (TransferStep.DOWNLOADING, TransferStep.VERIFYING)
            or not self.bytes_total
            or (self.bytes_per_second or 0) < 1
        ):
            return None
        return round(max(0, self.bytes_total - self.bytes_done) / (self.bytes_per_second or 1))

    def to_document(self) -> dict[str, Any]:
        """As JSON, with the derived values."""
        document: dict[str, Any] = {
            "artifact": self.artifact,
            "step": str(self.step),
            "bytesDone": self.bytes_done,
            "bytesTotal": self.bytes_total,
            "bytesPerSecond": None if self.bytes_per_second is None else round(self.bytes_per_second),
            "percent": self.percent,
            "etaSeconds": self.eta_seconds,
        }
        return {key: value for key, value in document.items() if value is not None}

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_document(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Transfer:
        """The inverse of to_json. Refused, a ValueError, where the text is invalid."""
        return cls.from_document(parse(text))

    @classmethod
    def from_document(cls, document: object) -> Transfer:
        """The inverse of to_document. Refused where it is invalid."""
        given = Reader(document, "transfer")
        return cls(
            artifact=given.word("artifact"),
            step=given.one_of("step", TransferStep),
            bytes_done=given.integer("bytesDone", default=0),
            bytes_total=given.integer("bytesTotal") if given.has("bytesTotal") else None,
            bytes_per_second=given.number("bytesPerSecond") if given.has("bytesPerSecond") else None,
        )
