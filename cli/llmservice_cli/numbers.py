"""Numbers on the command line: what argparse calls for them, and what it then says of a wrong one."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

_LENGTH = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smh]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def above_zero(text: str) -> float:
    """A rate, or seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"has to be a number above 0, not {text!r}")
    return value


def seconds(text: str) -> float:
    """A length of time: `90`, `90s`, `5m`, `2h`."""
    value = seconds_or_none(text)
    if not value:
        raise ArgumentTypeError("is no length of time such as 90, 90s, 5m or 2h")
    return value


def seconds_or_none(text: str) -> float:
    """A length of time, perhaps 0."""
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise ArgumentTypeError("is no length of time such as 90, 90s, 5m or 2h")
    return float(found[1]) * _UNITS[found[2]]


def count(text: str) -> int:
    """How many, of what there has to be one at least."""
    return _whole(text, 1)


def count_or_none(text: str) -> int:
    """How many, perhaps none."""
    return _whole(text, 0)


def counts(text: str) -> tuple[int, ...]:
    """Several, with commas between them."""
    return tuple(count(part) for part in text.split(","))


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ArgumentTypeError(f"has to be a whole number from {least} on, not {text!r}")
    return value
