"""Numbers on the command line: what argparse calls for them, and what it then says of a wrong one."""

from __future__ import annotations

from argparse import ArgumentTypeError


def above_zero(text: str) -> float:
    """A rate, or seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"has to be a number above 0, not {text!r}")
    return value


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
