"""One measured figure beside the planner's, and what was left out with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value; `planned` is the planner's, `within` how far the planner says that it may be off."""

    what: str
    measured: float
    unit: str
    planned: float | None = None
    within: float | None = None

    @property
    def agrees(self) -> bool | None:
        """Whether it lies where the planner expects it; None where the planner says nothing."""
        if self.planned is None or self.within is None:
            return None
        return abs(self.measured - self.planned) <= self.within


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was not measured, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Attention:
    """One sequence through one layer's attention."""

    tokens: int
    way: str
    """naive: all scores are stored; flash: they are not."""
    seconds: float
    peak_bytes: int
    """What it takes beside its inputs."""
    planned_bytes: int
    """By llmservice_planner/memory.py: the scores of naive attention, what FlashAttention stores."""


@dataclass(slots=True)
class Findings:
    device: str
    software: str
    date: str
    figures: list[Figure] = field(default_factory=list)
    attention: list[Attention] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def figure(self, what: str) -> Figure:
        """KeyError where it was not measured."""
        found = next((figure for figure in self.figures if figure.what == what), None)
        if found is None:
            raise KeyError(what)
        return found

    def pairs(self) -> Iterator[tuple[Attention, Attention]]:
        """(naive, flash) of the lengths that both were measured at."""
        for naive in (one for one in self.attention if one.way == "naive"):
            for flash in (one for one in self.attention if one.way == "flash" and one.tokens == naive.tokens):
                yield naive, flash
