"""From the times and kinds of a load to figures, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from pydantic.alias_generators import to_camel

_in_camel_case = cache(to_camel)


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


def spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    ordered = sorted(values)
    p50, p95, p99 = (percentile(ordered, percent) for percent in (50, 95, 99))
    return Spread(sum(ordered) / len(ordered), p50, p95, p99, ordered[-1])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of sorted values, between neighbours in proportion (as numpy's default and `vllm bench` do)."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def counted(words: Iterable[str]) -> Mapping[str, int]:
    """How often each word occurs, in the order of the alphabet."""
    return dict(sorted(Counter(words).items()))


def in_words(counts: Mapping[str, int]) -> str:
    """`1 × cut, 6 × not-connected`."""
    return ", ".join(f"{count} × {word}" for word, count in counts.items())


def document(value: Any) -> Any:
    """As the result files have it: a dataclass by its names in camel case, numbers with four decimal places."""
    if is_dataclass(value):
        return {_in_camel_case(field.name): document(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: document(each) for name, each in value.items()}
    return round(value, 4) if isinstance(value, float) else value
