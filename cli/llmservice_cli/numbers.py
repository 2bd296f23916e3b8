"""Numbers on the command line: parsers for typer, with the message for a wrong value."""

from __future__ import annotations

import re

from typer import BadParameter

_LENGTH = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smh]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def above_zero(text: str) -> float:
    """A number above 0, such as a rate or seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadParameter(f"must be a number above 0, not {text!r}")
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


def count(text: str) -> int:
    """An integer of at least 1."""
    return _whole(text, 1)


def count_or_none(text: str) -> int:
    """An integer of at least 0."""
    return _whole(text, 0)


def counts(text: str) -> tuple[int, ...]:
    """Integers of at least 1, separated by commas."""
    return tuple(count(part) for part in text.split(","))


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise BadParameter(f"must be an integer of at least {least}, not {text!r}")
    return value
