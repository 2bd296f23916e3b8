"""Numbers from text of users, nodes and repositories: Kubernetes quantities (`500m`, `16Gi`, `1e3`) and counts.

All such texts are parsed here, in bounded time: texts have a maximum length, and numbers are clamped before any
arithmetic. `int(Decimal("1e9999999"))` would block the event loop for minutes.
"""

from __future__ import annotations

import functools
import re
from decimal import Decimal

_FORM = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]+)|(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei))?", re.ASCII
)
_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}

GIB = 1024**3
LONGEST = 64
"""Characters of a quantity."""
LARGEST = Decimal(2**63 - 1)
"""Kubernetes clamps quantities to this, and so does `amount`."""
LEAST = Decimal("1e-9")
"""Smaller ones are rounded away from zero to this, as in Kubernetes."""


def amount(quantity: str | int | float) -> Decimal:
    """The number of a quantity, between -LARGEST and LARGEST; ValueError if invalid."""
    text = str(quantity)
    if len(text) > LONGEST:
        raise ValueError(f"{text[:LONGEST]!r} is no quantity")
    return _amount(text)


@functools.lru_cache(maxsize=4096)
def _amount(text: str) -> Decimal:
    """Cached: pods and nodes of a cluster have few distinct quantities."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise ValueError(f"{text!r} is no quantity")
    number = Decimal(form[1])
    if not number:
        return Decimal(0)
    exponent = int(form[2] or 0)
    magnitude = number.adjusted() + exponent
    if magnitude > LARGEST.adjusted():
        return LARGEST.copy_sign(number)
    if magnitude < LEAST.adjusted():
        return LEAST.copy_sign(number)
    number = number.scaleb(exponent) * _SUFFIXES.get(form[3], 1)
    return min(max(abs(number), LEAST), LARGEST).copy_sign(number)


def count(text: str, most: int) -> int | None:
    """An integer from 0 on, clamped to `most`; None for other text."""
    if not (text.isascii() and text.isdecimal()):
        return None
    return most if len(text) > LONGEST else min(int(text), most)


def gibibytes(quantity: str | int) -> float:
    return float(amount(quantity) / GIB)


def same_amount(one: object, other: object) -> bool:
    try:
        return amount(str(one)) == amount(str(other))
    except ValueError:
        return False


def add_memory(quantity: str | int, added_gib: int) -> str:
    """A memory quantity plus whole GiB, in GiB or MiB if that is exact."""
    total = amount(quantity) + added_gib * GIB
    for suffix in ("Gi", "Mi", "Ki"):
        if total % _SUFFIXES[suffix] == 0:
            return f"{int(total / _SUFFIXES[suffix])}{suffix}"
    return str(int(total))
