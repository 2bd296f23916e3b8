"""The report of a probe, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from llmservice_cli.load.figures import Spread, in_words, spread_document
from llmservice_cli.text import duration, stamp, table

from .load import LoadOptions
from .row import Row
from .tally import Mark, Stretch, Tally, stretches, tally

VERSION = 1
LOSSES_SHOWN = 20


@dataclass(frozen=True)
class Report:
    """Everything that is known at the end. `is_partial`: it was ended before its time."""

    target: str
    way: str
    model: str
    load: LoadOptions
    retries: int
    timeout: float
    rows: Sequence[Row]
    marks: Sequence[Mark]
    is_partial: bool

    @property
    def lost(self) -> list[Row]:
        """In the order of their ends."""
        return sorted((row for row in self.rows if not row.is_complete), key=lambda row: row.ended)


def to_document(report: Report) -> dict[str, Any]:
    """Names are only ever added. Moments are UTC by the sender's clock; lengths of time are seconds."""
    whole, load = tally(report.rows), report.load
    return {
        "kind": "ProbeResult",
        "version": VERSION,
        "partial": report.is_partial,
        "target": {"name": report.target, "way": report.way, "model": report.model},
        "parameters": {
            "rate": load.rate,
            "concurrency": load.concurrency,
            "duration": load.duration,
            "modes": [str(mode) for mode in load.modes],
            "outputTokens": list(load.output_tokens),
            "retries": report.retries,
            "timeout": report.timeout,
        },
        "summary": {
            "sent": whole.sent,
            "complete": whole.complete,
            "lost": whole.lost,
            "retried": whole.retried,
            "lostByMode": dict(whole.by_mode),
            **_losses_and_latency(whole),
            "timeToFirstToken": spread_document(whole.first_token),
        },
        "marks": [_stretch(each) for each in stretches(report.rows, report.marks)],
        "losses": [_loss(row) for row in report.lost],
    }


def _stretch(stretch: Stretch) -> dict[str, Any]:
    return {
        "name": stretch.mark.name,
        "at": _stamp(stretch.mark.at),
        "until": _stamp(stretch.until),
        "inFlight": stretch.in_flight,
        "sent": stretch.sent,
        "lostInFlight": stretch.lost_in_flight,
        "lostLater": stretch.lost_later,
        **_losses_and_latency(stretch.ended),
    }


def _losses_and_latency(found: Tally) -> dict[str, Any]:
    return {
        "lostByKind": dict(found.by_kind),
        "firstLoss": _stamp(found.first_loss),
        "lastLoss": _stamp(found.last_loss),
        "longestGap": round(found.longest_gap, 3),
        "latency": spread_document(found.latency),
    }


def _loss(row: Row) -> dict[str, Any]:
    return {
        "index": row.index,
        "mode": str(row.mode),
        "kind": row.loss,
        "sent": _stamp(row.sent),
        "ended": _stamp(row.ended),
        "attempts": row.attempts,
        "reusedConnection": row.reused,
        "bytes": row.got,
        "error": row.error,
    }


def to_lines(report: Report) -> Iterator[str]:
    whole = tally(report.rows)
    yield f"{report.target} {report.way}, model {report.model}; {_shape(report)}"
    if report.is_partial:
        yield "ended early: the report covers the time until then"
    yield ""
    yield f"sent {whole.sent}, complete {whole.complete}, lost {whole.lost}" + (
        f", complete by a retry {whole.retried}" if report.retries else ""
    )
    if whole.lost:
        yield f"  by kind: {in_words(whole.by_kind)}"
        yield f"  by mode: {in_words(whole.by_mode)}"
        yield f"  first {clock(whole.first_loss)}, last {clock(whole.last_loss)} (UTC)"
    yield f"longest time without a complete answer: {whole.longest_gap:.2f} s"
    yield f"latency             {_spread(whole.latency)}"
    yield f"time to first token {_spread(whole.first_token)}"
    found = stretches(report.rows, report.marks)
    if found:
        yield ""
        yield from _marks_table(found)
    if report.lost:
        yield ""
        yield from _losses_table(report.lost)


def _shape(report: Report) -> str:
    load = report.load
    pace = f"{load.rate:g} requests a second" if load.rate is not None else f"{load.concurrency} at a time"
    tokens = ",".join(str(count) for count in load.output_tokens)
    retries = f"{report.retries} retries" if report.retries else "no retries"
    return f"{pace} for {duration(load.duration)}, {tokens} tokens each, {retries}; {', '.join(load.modes)}"


def _marks_table(found: Sequence[Stretch]) -> list[str]:
    header = ["MARK", "AT (UTC)", "IN FLIGHT", "LOST OF THEM", "SENT LATER", "LOST OF THEM", "LONGEST GAP", "P99"]
    rows = [
        [
            each.mark.name,
            clock(each.mark.at),
            str(each.in_flight),
            str(each.lost_in_flight),
            str(each.sent),
            str(each.lost_later),
            f"{each.ended.longest_gap:.2f} s",
            "-" if each.ended.latency is None else f"{each.ended.latency.percentiles[99]:.2f} s",
        ]
        for each in found
    ]
    return table(header, rows, right=frozenset(range(2, len(header))))


def _losses_table(lost: Sequence[Row]) -> Iterator[str]:
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
        yield f"and {len(lost) - LOSSES_SHOWN} more; --json has all of them"


def _stamp(moment: float | None) -> str | None:
    return None if moment is None else stamp(moment)


def clock(moment: float | None) -> str:
    """The time of day of a moment."""
    return "-" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S.%f")[:-3]


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    shares = ", ".join(f"p{percent} {value:.3f}" for percent, value in spread.percentiles.items())
    return f"{shares}, longest {spread.longest:.3f} s"
