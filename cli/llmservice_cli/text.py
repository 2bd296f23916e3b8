"""Plain text: columns, lengths of time and moments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import inf, isinf

from click import BadParameter
from kubeloop.resources import rfc3339

# Numbers on the command line: parsers of options, with the message for a wrong value.

LONGEST_SHOWN = 60
"""Characters of a wrong value in a message."""
_LENGTH = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smh]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def above_zero(text: str, most: float = inf) -> float:
    """A finite number above 0, such as a rate or seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most or isinf(value):
        bound = f" and of at most {most:g}" if most < inf else ""
        raise BadParameter(f"must be a number above 0{bound}, not {shown(text)}")
    return value


def seconds(text: str) -> float:
    """Seconds above 0, written as `90`, `90s`, `5m` or `2h`."""
    value = seconds_or_none(text)
    if not value:
        raise BadParameter("is not a length of time such as 90, 90s, 5m or 2h")
    return value


def seconds_or_none(text: str) -> float:
    """Seconds from 0 on, written likewise."""
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise BadParameter("is not a length of time such as 90, 90s, 5m or 2h")
    return float(found[1]) * _UNITS[found[2]]


def count(text: str, most: float = inf) -> int:
    """An integer of at least 1."""
    return _whole(text, 1, most)


def count_or_none(text: str, most: float = inf) -> int:
    """An integer of at least 0."""
    return _whole(text, 0, most)


def shown(text: str) -> str:
    """A value that is wrong, quoted, of which the beginning is enough."""
    return repr(text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}...")


def _whole(text: str, least: int, most: float) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        bound = f" and at most {most}" if most < inf else ""
        raise BadParameter(f"must be an integer of at least {least}{bound}, not {shown(text)}")
    return value


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
