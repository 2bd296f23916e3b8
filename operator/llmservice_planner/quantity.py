"""Numbers that users, nodes and repositories write as text: Kubernetes quantities (`500m`, `16Gi`, `1e3`) and counts.

This is the one place where such a text becomes a number. Reading it takes the same time whatever it says: texts have a
longest length, and numbers are clamped before anything is computed with them. `int(Decimal("1e9999999"))` would take
minutes, and the event loop with it.
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
"""And rounds what is finer away from zero to this."""


def amount(quantity: str | int | float) -> Decimal:
    """The number that a quantity stands for, between -LARGEST and LARGEST; ValueError where it is none."""
    text = str(quantity)
    if len(text) > LONGEST:
        raise ValueError(f"{text[:LONGEST]!r} is no quantity")
    return _amount(text)


@functools.lru_cache(maxsize=4096)
def _amount(text: str) -> Decimal:
    """Cached: all pods and nodes of a cluster say the same few."""
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
    """A whole number from 0 on, clamped to `most`; None where the text is none."""
    if not (text.isascii() and text.isdecimal()):
        return None
    return most if len(text) > LONGEST else min(int(text), most)


def gibibytes(quantity: str | int) -> float:
    """A memory quantity in GiB."""
    return float(amount(quantity) / GIB)


def same_amount(one: object, other: object) -> bool:
    """Whether two quantities mean the same."""
    try:
        return amount(str(one)) == amount(str(other))
    except ValueError:
        return False


def add_memory(quantity: str | int, added_gib: int) -> str:
    """A memory quantity plus whole GiB, written in GiB or MiB where that is exact."""
    total = amount(quantity) + added_gib * GIB
    for suffix in ("Gi", "Mi", "Ki"):
        if total % _SUFFIXES[suffix] == 0:
            return f"{int(total / _SUFFIXES[suffix])}{suffix}"
    return str(int(total))
