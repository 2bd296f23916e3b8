"""Runs of several result files, side by side. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from .reading import FIGURES, Figure, Load, Measured

_OF_THE_LOAD = {"rate", "rates", "concurrency"}


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure in each file; the first file is what the others are compared with."""

    figure: Figure
    values: Sequence[float | None]

    @property
    def ratios(self) -> Sequence[float | None]:
        """Of the other files to the first; None where there is none."""
        first, *others = self.values
        return [None if value is None or not first else value / first for value in others]

    @property
    def worst(self) -> float:
        """By which share the worst of the others is worse than the first; 0 where none is, infinite of nothing."""
        if self.values[0] == 0 and not self.figure.is_better_high and any(self.values[1:]):
            return inf
        ratios = [ratio for ratio in self.ratios if ratio is not None]
        return max([0.0, *(1 - ratio if self.figure.is_better_high else ratio - 1 for ratio in ratios)])


@dataclass(frozen=True)
class Comparison:
    files: Sequence[Measured]
    runs: Mapping[Load, Sequence[Compared]]
    notes: Sequence[str]

    def regressions(self, most: float | None) -> Sequence[tuple[Load, Compared]]:
        """Figures that are worse by more than this share; none without one."""
        if most is None:
            return []
        return [(load, one) for load, compared in self.runs.items() for one in compared if one.worst > most]


def compare(files: Sequence[Measured]) -> Comparison:
    """Runs that all files have, by discipline and load; of files of one load each, which differ, by discipline."""
    is_by_load = any(file.is_sweep for file in files) or len({load.amount for file in files for load in file.runs}) == 1

    def by_name(file: Measured) -> Mapping[Load, Mapping[str, float]]:
        return {load if is_by_load else Load(load.discipline, ""): figures for load, figures in file.runs.items()}

    found = [by_name(file) for file in files]
    common = [load for load in found[0] if all(load in runs for runs in found)]
    runs = {load: _compared([each[load] for each in found]) for load in common}
    return Comparison(files, runs, [*_notes(files, is_by_load), *_left_out(files, found, common)])


def _compared(runs: Sequence[Mapping[str, float]]) -> Sequence[Compared]:
    rows = [Compared(figure, [run.get(figure.name) for run in runs]) for figure in FIGURES]
    return [row for row in rows if any(value is not None for value in row.values)]


def _notes(files: Sequence[Measured], is_by_load: bool) -> Iterator[str]:
    """Why the figures may differ for another reason than the server's speed."""
    for name in dict.fromkeys(name for file in files for name in file.facts):
        values = [file.facts.get(name) or "unknown" for file in files]
        is_new = any(name not in file.facts for file in files)
        if len({*values}) > 1 and not is_new and not (is_by_load and name in _OF_THE_LOAD):
            yield f"{name} differs: {', '.join(values)}"
    yield from (f"{file.place} was interrupted" for file in files if file.is_partial)


def _left_out(files: Sequence[Measured], found: Sequence[Mapping[Load, Any]], common: Sequence[Load]) -> Iterator[str]:
    for file, runs in zip(files, found, strict=True):
        if alone := [" ".join(load).strip() for load in runs if load not in common]:
            yield f"not in every file: {', '.join(alone)} of {file.place}"
