"""What became of the requests of a probe: lines while it runs, and at the end a report, as text and as JSON. Pure."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TextIO

from llmservice_runtime.bounded_json import clean

from llmservice_cli.load.figures import Spread, counted, document, in_words, spread
from llmservice_cli.probe import Mode, Options
from llmservice_cli.text import duration, stamp, table


@dataclass(frozen=True, slots=True)
class ProbedRequest:
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
    def from_document(cls, document: dict[str, Any]) -> ProbedRequest:
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


def tally(rows: Sequence[ProbedRequest], span: tuple[float, float] | None = None) -> Tally:
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


def stretches(rows: Sequence[ProbedRequest], marks: Sequence[Mark]) -> Sequence[Stretch]:
    """One for each mark, in the order of time; what went on before the first belongs to none."""
    ordered = sorted(marks, key=lambda mark: mark.at)
    end = max([row.ended for row in rows] + [mark.at for mark in ordered], default=0.0)
    last = ordered[-1:]
    found = [_sent_stretch(rows, mark, after.at) for mark, after in pairwise(ordered)]
    # The last one has what ended at the very end too.
    return [*found, *(_sent_stretch(rows, mark, end, is_last=True) for mark in last)]


def _sent_stretch(rows: Sequence[ProbedRequest], mark: Mark, until: float, *, is_last: bool = False) -> Stretch:
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


LOSSES_PRINTED = 20
LOSSES_SHOWN = 20


@dataclass
class Gathered:
    """Rows and marks; it grows while requests end.

    `out` gets a line for each mark and each loss at once; `lines` gets every row as JSON.
    """

    out: TextIO | None
    lines: TextIO | None = None
    now: Callable[[], float] = time.time
    rows: dict[int, ProbedRequest] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    lost: int = 0
    _behind: float | None = None

    def observe_clock(self, moment: float) -> None:
        """`moment` is by the sender's clock, and not after now: the smallest difference seen is that of the clocks."""
        behind = self.now() - moment
        self._behind = behind if self._behind is None else min(behind, self._behind)

    def begin(self, moment: float) -> None:
        """The sender's clock, before the first request."""
        self.observe_clock(moment)
        _write(self.lines, json.dumps({"begin": moment}))
        self.write_line(f"{clock(moment)} the first request is sent")

    def end(self) -> None:
        _write(self.lines, json.dumps({"end": len(self.rows)}))

    def take(self, row: ProbedRequest) -> None:
        """One more; a row that is there already changes nothing."""
        if row.index in self.rows:
            return
        self.rows[row.index] = row
        self.observe_clock(row.ended)
        _write(self.lines, row.to_line())
        if not row.is_complete:
            self.lost += 1
            if self.lost <= LOSSES_PRINTED:
                self.write_line(f"{clock(row.ended)} lost: {row.loss} ({row.mode}): {row.error}")

    def mark(self, name: str) -> None:
        """Now, by the sender's clock."""
        self.marks.append(Mark(name, self.now() - (self._behind or 0.0)))
        self.write_line(f"{clock(self.marks[-1].at)} mark {name}: {self}")

    def write_line(self, line: str) -> None:
        _write(self.out, clean(line))

    def __str__(self) -> str:
        return f"{len(self.rows)} ended, {self.lost} lost"


def _write(to: TextIO | None, line: str) -> None:
    if to is not None:
        to.write(f"{line}\n")
        to.flush()


def mark_by_lines(gathered: Gathered, loop: asyncio.AbstractEventLoop) -> None:
    """Every line of standard input is a mark, until its end or ours.

    A thread, since regular files cannot be awaited; on the bare descriptor, since a thread that waits in sys.stdin
    would keep Python from ending.
    """

    def read() -> None:
        rest = b""
        with suppress(OSError):  # it is closed, or no input
            while piece := os.read(sys.stdin.fileno(), 4096):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    name = line.decode(errors="replace").strip() or f"mark {len(gathered.marks) + 1}"
                    with suppress(RuntimeError):  # the loop has ended meanwhile
                        loop.call_soon_threadsafe(gathered.mark, name)

    threading.Thread(target=read, name="marks", daemon=True).start()


@dataclass(frozen=True)
class Report:
    """Everything that is known at the end. `is_partial`: it was ended before its time."""

    target: str
    way: str
    model: str
    options: Options
    rows: Sequence[ProbedRequest]
    marks: Sequence[Mark]
    is_partial: bool

    @property
    def lost(self) -> list[ProbedRequest]:
        """In the order of their ends."""
        return sorted((row for row in self.rows if not row.is_complete), key=lambda row: row.ended)


def to_document(report: Report) -> dict[str, Any]:
    """Names are only ever added. Moments are UTC by the sender's clock; lengths of time are seconds."""
    whole, options = tally(report.rows), report.options
    return {
        "kind": "ProbeResult",
        "version": 1,
        "partial": report.is_partial,
        "target": {"name": report.target, "way": report.way, "model": report.model},
        "parameters": {
            "rate": options.paced,
            "concurrency": options.concurrency,
            "duration": options.duration,
            "modes": [str(mode) for mode in options.modes],
            "outputTokens": list(options.output_tokens),
            "retries": options.retries,
            "timeout": options.timeout,
        },
        "summary": {
            "sent": whole.sent,
            "complete": whole.complete,
            "lost": whole.lost,
            "retried": whole.retried,
            "lostByMode": whole.by_mode,
            **_losses_and_latency(whole),
            "timeToFirstToken": document(whole.first_token),
        },
        "marks": [_stretch(each) for each in stretches(report.rows, report.marks)],
        "losses": [_loss(row) for row in report.lost],
    }


def _stretch(stretch: Stretch) -> dict[str, Any]:
    return {
        "name": stretch.mark.name,
        "at": stamp(stretch.mark.at),
        "until": stamp(stretch.until),
        "inFlight": stretch.in_flight,
        "sent": stretch.sent,
        "lostInFlight": stretch.lost_in_flight,
        "lostLater": stretch.lost_later,
        **_losses_and_latency(stretch.ended),
    }


def _losses_and_latency(found: Tally) -> dict[str, Any]:
    first, last = (None if moment is None else stamp(moment) for moment in (found.first_loss, found.last_loss))
    return {
        "lostByKind": found.by_kind,
        "firstLoss": first,
        "lastLoss": last,
        "longestGap": round(found.longest_gap, 3),
        "latency": document(found.latency),
    }


def _loss(row: ProbedRequest) -> dict[str, Any]:
    return {
        "index": row.index,
        "mode": str(row.mode),
        "kind": row.loss,
        "sent": stamp(row.sent),
        "ended": stamp(row.ended),
        "attempts": row.attempts,
        "reusedConnection": row.reused,
        "bytes": row.got,
        "error": row.error,
    }


def to_lines(report: Report) -> Iterator[str]:
    whole, retries = tally(report.rows), report.options.retries
    yield f"{report.target} {report.way}, model {report.model}; {_shape(report.options)}"
    if report.is_partial:
        yield "ended early: the report covers the time until then"
    yield ""
    by_a_retry = f", complete by a retry {whole.retried}" if retries else ""
    yield f"sent {whole.sent}, complete {whole.complete}, lost {whole.lost}{by_a_retry}"
    if whole.lost:
        yield f"  by kind: {in_words(whole.by_kind)}"
        yield f"  by mode: {in_words(whole.by_mode)}"
        yield f"  first {clock(whole.first_loss)}, last {clock(whole.last_loss)} (UTC)"
    yield f"longest time without a complete answer: {whole.longest_gap:.2f} s"
    yield f"latency             {_spread(whole.latency)}"
    yield f"time to first token {_spread(whole.first_token)}"
    if found := stretches(report.rows, report.marks):
        yield from ("", *_marks_table(found))
    if report.lost:
        yield from ("", *_losses_table(report.lost))


def _shape(options: Options) -> str:
    rate = options.paced
    pace = f"{options.concurrency} at a time" if rate is None else f"{rate:g} requests a second"
    tokens = ",".join(map(str, options.output_tokens))
    retries = f"{options.retries} retries" if options.retries else "no retries"
    return f"{pace} for {duration(options.duration)}, {tokens} tokens each, {retries}; {', '.join(options.modes)}"


def _marks_table(found: Sequence[Stretch]) -> list[str]:
    header = ["MARK", "AT (UTC)", "IN FLIGHT", "LOST OF THEM", "SENT LATER", "LOST OF THEM", "LONGEST GAP", "P99"]
    rows = [
        [
            each.mark.name,
            clock(each.mark.at),
            *map(str, (each.in_flight, each.lost_in_flight, each.sent, each.lost_later)),
            f"{each.ended.longest_gap:.2f} s",
            "-" if each.ended.latency is None else f"{each.ended.latency.p99:.2f} s",
        ]
        for each in found
    ]
    return table(header, rows, right=frozenset(range(2, len(header))))


def _losses_table(lost: Sequence[ProbedRequest]) -> Iterator[str]:
    rows = [
        [
            clock(row.ended),
            str(row.loss),
            str(row.mode),
            f"{row.ended - row.sent:.3f} s",
            {True: "reused", False: "new", None: "none"}[row.reused],
            str(row.got),
            row.error or "",
        ]
        for row in lost[:LOSSES_SHOWN]
    ]
    yield from table(["LOST AT (UTC)", "KIND", "MODE", "AFTER", "CONNECTION", "BYTES", "WHY"], rows)
    if len(lost) > LOSSES_SHOWN:
        yield f"and {len(lost) - LOSSES_SHOWN} more; -o json has all of them"


def clock(moment: float | None) -> str:
    """The time of day of a moment."""
    return "-" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S.%f")[:-3]


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"p50 {spread.p50:.3f}, p95 {spread.p95:.3f}, p99 {spread.p99:.3f}, longest {spread.max:.3f} s"
