"""What became of one request, as a value and as a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any


class Mode(StrEnum):
    """How a request is sent: whether its answer is streamed, and whether its connection comes from a pool."""

    STREAM_POOLED = "stream-pooled"
    STREAM_FRESH = "stream-fresh"
    WHOLE_POOLED = "whole-pooled"
    WHOLE_FRESH = "whole-fresh"

    @property
    def is_streamed(self) -> bool:
        return self in (Mode.STREAM_POOLED, Mode.STREAM_FRESH)

    @property
    def is_pooled(self) -> bool:
        return self in (Mode.STREAM_POOLED, Mode.WHOLE_POOLED)


@dataclass(frozen=True, slots=True)
class Row:
    """One request. Times are seconds of the sender's wall clock since 1970, and never step back."""

    index: int
    mode: Mode
    sent: float
    ended: float
    loss: str | None  # None: it was answered whole; else a Loss or `http-STATUS`
    first_token: float | None = None
    attempts: int = 1
    reused: bool | None = None  # whether the last attempt's connection had served before; None: there was none
    got: int = 0  # bytes of the body of the last answer
    error: str | None = None

    @property
    def is_complete(self) -> bool:
        return self.loss is None

    def to_line(self) -> str:
        """A line of JSON, without what is not known."""
        return json.dumps({key: value for key, value in asdict(self).items() if value is not None})

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Row:
        """What `to_line` wrote. ValueError or KeyError for anything else; names of a later version are skipped."""
        known = {each.name for each in fields(cls)}
        given = {key: value for key, value in document.items() if key in known}
        return cls(**{"loss": None, **given, "mode": Mode(document["mode"])})


def in_turn(modes: Sequence[Mode], tokens: Sequence[int], index: int) -> tuple[Mode, int]:
    """Mode and length of the request number `index`: every mode with every length, in the same order each time."""
    return modes[index % len(modes)], tokens[index // len(modes) % len(tokens)]
