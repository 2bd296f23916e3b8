"""Plain text: columns, lengths of time and moments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from llmservice_operator.api.timestamps import rfc3339


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Lines with aligned columns; those whose index is in `right` are flush right, as figures are."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def duration(seconds: float) -> str:
    """As kubectl writes an age: its two largest units at most."""
    left = max(0, round(seconds))
    for size, unit, smaller, smaller_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if left >= size:
            rest = left % size // smaller
            return f"{left // size}{unit}{f'{rest}{smaller_unit}' if rest else ''}"
    return f"{left}s"


def age(stamp: str, now: datetime) -> str:
    """The length of time since a moment that the API server wrote; `-` where it is none."""
    try:
        return duration((now - datetime.fromisoformat(stamp)).total_seconds())
    except ValueError:
        return "-"


def stamp(moment: float, timespec: str = "milliseconds") -> str:
    """RFC 3339 in UTC, of seconds since 1970."""
    return rfc3339(datetime.fromtimestamp(moment, UTC), timespec)


def listed(names: Iterable[str], most: int) -> str:
    """The first `most` of them in their order, each once, and how many more there are."""
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
