"""`llmservice bench compare`: runs of several result files side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from llmservice_api.errors import Problem
from llmservice_runtime.bounded_json import Reader, Refused, clean, read

from llmservice_cli.bench import COMPARE, Options
from llmservice_cli.documents import show
from llmservice_cli.errors import BadInput, ExitCode, WrongUsage, say
from llmservice_cli.text import table

from .result import KIND, VERSION
from .traffic import Discipline

MAX_BYTES, MAX_PARTS = 256 << 20, 50_000_000
MOST_RUNS, MOST_PARAMETERS = 1000, 100
LONGEST_FACT = 200
"""Characters."""
_REMEDY = "Name files that `llmservice bench --out FILE.json` wrote."
_USED = frozenset({"name", "files", "max_regression", "output", "quiet"})
"""Of the options of a bench; all others are a measurement's."""
_OF_THE_LOAD = {"rate", "rates", "concurrency"}


class Figure(NamedTuple):
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
    *(
        Figure(f"{label} {percent}, s", ("summary", name, percent))
        for label, name in (("latency", "latency"), ("TTFT", "timeToFirstToken"))
        for percent in ("p50", "p95", "p99")
    ),
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

    def __str__(self) -> str:
        return ", ".join(filter(None, self))


Figures = Mapping[str, float]
"""By their names; those that the file does not have are absent."""


@dataclass(frozen=True)
class Measured:
    """One file."""

    place: str
    is_partial: bool
    facts: Mapping[str, str]
    """Model, versions, and each parameter of the load, as text."""
    runs: Mapping[Load, Figures]


class Compared(NamedTuple):
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

    def is_worse(self, most: float | None) -> bool:
        """By more than this share; None: nothing is too much."""
        return most is not None and self.worst > most


class Comparison(NamedTuple):
    files: Sequence[Measured]
    runs: Mapping[Load, Sequence[Compared]]
    notes: Sequence[str]


def run(options: Options, paths: Sequence[Path]) -> ExitCode:
    """Prints the comparison; FAILED where something is worse by more than --max-regression."""
    if len(paths) < 2:
        raise WrongUsage(f"{COMPARE} needs at least two files", f"llmservice bench {COMPARE} FILE FILE")
    if unused := ", ".join(sorted(f"--{field.replace('_', '-')}" for field in options.given - _USED)):
        raise WrongUsage(
            f"{COMPARE} measures nothing: {unused}", "leave it out; of the options it takes --max-regression and -o"
        )
    comparison, most = compare(_read(paths)), options.max_regression
    if not comparison.runs:
        raise BadInput.of("FILE", f"the files have no run in common: {'; '.join(comparison.notes)}.", _REMEDY)
    show(options.output, lambda: _lines(comparison, most), lambda: _document(comparison, most))
    worse = [(load, one) for load, compared in comparison.runs.items() for one in compared if one.is_worse(most)]
    if worse:
        worst = ", ".join(f"{one.figure.name} by {one.worst:.1%} ({load})" for load, one in worse)
        say(f"error: worse by more than {most * 100:g}%: {worst}")
    return ExitCode.FAILED if worse else ExitCode.DONE


def _read(paths: Sequence[Path]) -> Sequence[Measured]:
    """BadInput names every file that cannot be used."""
    found: list[Measured] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            found.append(measured_of(str(path), read(path, MAX_BYTES, max_items=MAX_PARTS)))
        except Refused as why:
            problems.append(Problem("FILE", f"{path} cannot be used: {why}.", _REMEDY))
        except OSError as error:
            problems.append(Problem("FILE", f"{path} cannot be read: {error.strerror or error}.", _REMEDY))
    if problems:
        raise BadInput(problems)
    return found


def measured_of(place: str, document: object) -> Measured:
    """A result file of this version or an earlier one, with bounds; Refused."""
    reader = Reader(document)
    if reader.word("kind", 64, default="") != KIND:
        raise Refused(f"it is no {KIND}")
    if reader.integer("version") != VERSION:
        raise Refused(f"its version is not {VERSION}")
    target, parameters = reader.within("target"), reader.within("parameters")
    named = {"model": "model", "vLLM": "vllmVersion", "way": "way"}
    facts = {name: target.text(key, LONGEST_FACT, default="") for name, key in named.items()}
    given = islice(reader.value("parameters").items(), MOST_PARAMETERS)
    facts |= {clean(name[:LONGEST_FACT]): json.dumps(value)[:LONGEST_FACT] for name, value in given}
    runs = dict(_run(Reader(one, "a run"), parameters) for one in reader.items("disciplines", MOST_RUNS))
    if not runs:
        raise Refused("it has no runs")
    return Measured(place, reader.flag("partial", default=False), facts, runs)


def _run(run: Reader, parameters: Reader) -> tuple[Load, Figures]:
    if run.has("concurrency"):
        amount = f"{run.integer('concurrency')} clients"
    else:  # files of earlier versions have the rate among the parameters only
        amount = f"{(run if run.has('rate') else parameters).number('rate'):g}/s"
    load, summary = Load(str(run.one_of("discipline", Discipline)), amount), run.within("summary")
    answered, *others = FIGURES
    figures = {answered.name: summary.integer("answered") / max(1, summary.integer("planned"))}
    numbers = {figure.name: _number(run, *figure.place) for figure in others}
    return load, figures | {name: number for name, number in numbers.items() if number is not None}


def _number(reader: Reader, name: str, *within: str) -> float | None:
    """None where it is absent."""
    if not reader.has(name):
        return None
    return _number(reader.within(name), *within) if within else reader.number(name)


def compare(files: Sequence[Measured]) -> Comparison:
    """Runs that all files have, by discipline and load; of files of one load each, which differ, by discipline."""
    is_sweep = any(len({load.discipline for load in file.runs}) < len(file.runs) for file in files)
    is_by_load = is_sweep or len({load.amount for file in files for load in file.runs}) == 1
    found = [
        {load if is_by_load else Load(load.discipline, ""): figures for load, figures in file.runs.items()}
        for file in files
    ]
    common = [load for load in found[0] if all(load in runs for runs in found)]
    rows = {
        load: [Compared(figure, [runs[load].get(figure.name) for runs in found]) for figure in FIGURES]
        for load in common
    }
    known = {load: [row for row in each if row.values.count(None) < len(files)] for load, each in rows.items()}
    return Comparison(files, known, [*_notes(files, is_by_load), *_left_out(files, found, common)])


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


def _lines(comparison: Comparison, most: float | None) -> Iterator[str]:
    """The files by letters, then a table for each run."""
    letters = [chr(ord("A") + number) if number < 26 else f"F{number + 1}" for number in range(len(comparison.files))]
    yield from (f"{letter}  {file.place}" for letter, file in zip(letters, comparison.files, strict=True))
    yield from (f"note: {note}" for note in comparison.notes)
    header = ["FIGURE", *letters, *(f"{letter}/{letters[0]}" for letter in letters[1:]), ""]
    for load, compared in comparison.runs.items():
        yield from ("", str(load))
        rows = [
            [
                one.figure.name,
                *("-" if value is None else f"{value:.3f}" for value in (*one.values, *one.ratios)),
                f"worse by {one.worst:.1%}" if one.is_worse(most) else "",
            ]
            for one in compared
        ]
        yield from table(header, rows, right=frozenset(range(1, len(header) - 1)))


def _document(comparison: Comparison, most: float | None) -> dict[str, Any]:
    """For programs."""
    return {
        "kind": "BenchComparison",
        "version": 1,
        "files": [file.place for file in comparison.files],
        "notes": list(comparison.notes),
        "maxRegression": most,
        "runs": [
            {
                "discipline": load.discipline,
                "load": load.amount or None,
                "figures": [
                    {
                        "name": one.figure.name,
                        "better": "higher" if one.figure.is_better_high else "lower",
                        "values": list(one.values),
                        "ratios": list(one.ratios),
                        "isWorse": one.is_worse(most),
                    }
                    for one in compared
                ],
            }
            for load, compared in comparison.runs.items()
        ],
    }
