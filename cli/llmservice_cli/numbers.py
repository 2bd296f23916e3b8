"""Numbers on the command line: parsers for typer, with the message for a wrong value."""

from __future__ import annotations

import re
from math import inf, isinf

from typer import BadParameter

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


def count_or_none(text: str) -> int:
    """An integer of at least 0."""
    return _whole(text, 0, inf)


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
