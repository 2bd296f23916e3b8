"""Kubernetes quantities: `500m`, `16Gi`, `1e3`. Different texts can mean the same amount."""

from __future__ import annotations

import re
from decimal import Decimal

_FORM = re.compile(r"^([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei))?$")
_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}

GIB = 1024**3


def amount(quantity: str | int | float) -> Decimal:
    """The number that a quantity stands for; ValueError where it is none."""
    form = _FORM.match(str(quantity))
    if form is None or form[1].count(".") > 1:
        raise ValueError(f"{quantity!r} is no quantity")
    number = Decimal(form[1] + (form[2] or ""))
    return number * _SUFFIXES[form[3]] if form[3] else number


def gibibytes(quantity: str | int) -> float:
    """A memory quantity in GiB."""
    return float(amount(quantity) / GIB)


def same_amount(one: object, other: object) -> bool:
    """Whether two quantities mean the same."""
    try:
        return amount(str(one)) == amount(str(other))
    except (ValueError, ArithmeticError):
        return False


def add_memory(quantity: str | int, added_gib: int) -> str:
    """A memory quantity plus whole GiB, written in GiB or MiB where that is exact."""
    total = amount(quantity) + added_gib * GIB
    for suffix in ("Gi", "Mi", "Ki"):
        if total % _SUFFIXES[suffix] == 0:
            return f"{int(total / _SUFFIXES[suffix])}{suffix}"
    return str(int(total))
