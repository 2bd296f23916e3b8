"""What became of the requests of a probe, one by one and in figures. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from llmservice_cli.load.figures import Spread, counted, spread

from .arguments import Mode


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


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to the service; `at` is by the sender's clock."""

    name: str
    at: float


@dataclass(frozen=True, slots=True)
class Tally:
    """Of some requests. Times are by the sender's clock; None of none."""

    sent: int
    complete: int
    retried: int  # complete, but not at the first attempt
    by_kind: Mapping[str, int]
    by_mode: Mapping[str, int]  # lost ones
    first_loss: float | None
    last_loss: float | None
    longest_gap: float  # seconds without a complete answer, from the first sending to the last end
    latency: Spread | None
    first_token: Spread | None

    @property
    def lost(self) -> int:
        return sum(self.by_kind.values())


@dataclass(frozen=True, slots=True)
class Stretch:
    """From one mark to the next.

    A request counts as sent in the stretch of its sending, and as lost in that of its end: one that was under way at a
    mark and came to nothing afterwards is a loss of what the mark stands for.
    """

    mark: Mark
    until: float
    in_flight: int  # sent before the mark, not ended then
    sent: int
    lost_in_flight: int
    ended: Tally
    """Of the requests that ended in it; its longest gap is from the mark to `until`."""

    @property
    def lost_later(self) -> int:
        """Sent after the mark."""
        return self.ended.lost - self.lost_in_flight


def tally(rows: Sequence[Row], span: tuple[float, float] | None = None) -> Tally:
    """Of all of them, in any order; gaps are counted from the first moment of `span` to the second."""
    lost = [row for row in rows if not row.is_complete]
    complete = [row for row in rows if row.is_complete]
    if span is None:
        span = min((row.sent for row in rows), default=0.0), max((row.ended for row in rows), default=0.0)
    moments = sorted([*span, *(row.ended for row in complete)])
    return Tally(
        sent=len(rows),
        complete=len(complete),
        retried=sum(1 for row in complete if row.attempts > 1),
        by_kind=counted(str(row.loss) for row in lost),
        by_mode=counted(str(row.mode) for row in lost),
        first_loss=min((row.ended for row in lost), default=None),
        last_loss=max((row.ended for row in lost), default=None),
        longest_gap=max(later - earlier for earlier, later in pairwise(moments)),
        latency=spread([row.ended - row.sent for row in complete]),
        first_token=spread([row.first_token - row.sent for row in complete if row.first_token is not None]),
    )


def stretches(rows: Sequence[Row], marks: Sequence[Mark]) -> Sequence[Stretch]:
    """One for each mark, in the order of time; what went on before the first belongs to none."""
    ordered = sorted(marks, key=lambda mark: mark.at)
    end = max([row.ended for row in rows] + [mark.at for mark in ordered], default=0.0)
    last = ordered[-1:]
    found = [_stretch(rows, mark, after.at) for mark, after in pairwise(ordered)]
    # The last one has what ended at the very end too.
    return [*found, *(_stretch(rows, mark, end, is_last=True) for mark in last)]


def _stretch(rows: Sequence[Row], mark: Mark, until: float, *, is_last: bool = False) -> Stretch:
    def within(moment: float) -> bool:
        return mark.at <= moment and (is_last or moment < until)

    ended = [row for row in rows if within(row.ended)]
    return Stretch(
        mark=mark,
        until=until,
        in_flight=sum(1 for row in rows if row.sent < mark.at <= row.ended),
        sent=sum(1 for row in rows if within(row.sent)),
        lost_in_flight=sum(1 for row in ended if not row.is_complete and row.sent < mark.at),
        ended=tally(ended, (mark.at, until)),
    )
