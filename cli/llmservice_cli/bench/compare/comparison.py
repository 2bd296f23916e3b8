"""Runs of several result files, side by side. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from llmservice_runtime.bounded_json import Reader, Refused, clean, read

from llmservice_cli.bench.result import KIND, VERSION
from llmservice_cli.bench.traffic import Discipline

# Reads a result file of `llmservice bench`, of this version or an earlier one, with bounds.

MAX_BYTES, MAX_PARTS = 256 << 20, 50_000_000
MOST_RUNS, MOST_PARAMETERS = 1000, 100
LONGEST_FACT = 200


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run, by its place in the file."""

    name: str
    place: tuple[str, ...]
    is_better_high: bool = False


FIGURES = (
    Figure("answered share", (), is_better_high=True),
    Figure("requests/s", ("summary", "requestsPerSecond"), is_better_high=True),
    Figure("goodput, requests/s", ("summary", "goodput"), is_better_high=True),
    Figure("output tokens/s", ("summary", "outputTokensPerSecond"), is_better_high=True),
    Figure("total tokens/s", ("vllmBenchServe", "total_token_throughput"), is_better_high=True),
    *(Figure(f"latency {percent}, s", ("summary", "latency", percent)) for percent in ("p50", "p95", "p99")),
    *(Figure(f"TTFT {percent}, s", ("summary", "timeToFirstToken", percent)) for percent in ("p50", "p95", "p99")),
    *(
        Figure(f"{what} {label}, ms", ("vllmBenchServe", f"{what.lower()}_{label.lower()}_ms"))
        for label in ("TPOT", "ITL")
        for what in ("Median", "P99")
    ),
)
"""Latency and TTFT count from arrival."""


class Load(NamedTuple):
    """What a run is named by."""

    discipline: str
    amount: str
    """As the table of a bench has it."""


@dataclass(frozen=True)
class Measured:
    """One file."""

    place: str
    is_partial: bool
    facts: Mapping[str, str]
    """Model, versions, and each parameter of the load, as text."""
    runs: Mapping[Load, Mapping[str, float]]
    """Figures by their names; those that the file does not have are absent."""

    @property
    def is_sweep(self) -> bool:
        return len({load.discipline for load in self.runs}) < len(self.runs)


def measured(path: Path) -> Measured:
    """Refused where it is no result; OSError where it cannot be read."""
    return measured_of(str(path), read(path, MAX_BYTES, max_items=MAX_PARTS))


def measured_of(place: str, document: object) -> Measured:
    """Raises Refused."""
    reader = Reader(document)
    if reader.word("kind", 64, default="") != KIND:
        raise Refused(f"it is no {KIND}")
    if reader.integer("version") != VERSION:
        raise Refused(f"its version is not {VERSION}")
    target, parameters = reader.within("target"), reader.within("parameters")
    facts = {"model": target.text("model", LONGEST_FACT, default="")}
    facts |= {"vLLM": target.text("vllmVersion", LONGEST_FACT, default="")}
    facts |= {"way": target.text("way", LONGEST_FACT, default="")}
    given = islice(reader.value("parameters").items(), MOST_PARAMETERS)
    facts |= {clean(name[:LONGEST_FACT]): json.dumps(value)[:LONGEST_FACT] for name, value in given}
    runs = dict(_run(Reader(one, "a run"), parameters) for one in reader.items("disciplines", MOST_RUNS))
    if not runs:
        raise Refused("it has no runs")
    return Measured(place, reader.flag("partial", default=False), facts, runs)


def _run(run: Reader, parameters: Reader) -> tuple[Load, Mapping[str, float]]:
    load = Load(str(run.one_of("discipline", Discipline)), _amount(run, parameters))
    summary = run.within("summary")
    figures = {FIGURES[0].name: summary.integer("answered") / max(1, summary.integer("planned"))}
    for figure in FIGURES[1:]:
        reader: Reader | None = run
        for part in figure.place[:-1]:
            reader = reader.within(part) if reader is not None and reader.has(part) else None
        if reader is not None and reader.has(figure.place[-1]):
            figures[figure.name] = reader.number(figure.place[-1])
    return load, figures


def _amount(run: Reader, parameters: Reader) -> str:
    """Files of earlier versions have the rate among the parameters only."""
    if run.has("concurrency"):
        return f"{run.integer('concurrency')} clients"
    return f"{(run if run.has('rate') else parameters).number('rate'):g}/s"


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
