"""`llmservice bench compare`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llmservice_api.errors import Problem
from llmservice_runtime.bounded_json import Refused

from llmservice_cli.bench.arguments import COMPARE, Options
from llmservice_cli.bench.unused import named
from llmservice_cli.documents import show
from llmservice_cli.errors import BadInput, ExitCode, WrongUsage, say
from llmservice_cli.text import table

from .comparison import Compared, Comparison, Load, Measured, compare, measured

_REMEDY = "Name files that `llmservice bench --out FILE.json` wrote."
_USED = frozenset({"name", "files", "max_regression", "output", "quiet"})
"""Of the options of a bench; all others are a measurement's."""


def run(options: Options, paths: Sequence[Path]) -> ExitCode:
    """Prints the comparison; FAILED where something is worse by more than --max-regression."""
    _check(options, paths)
    comparison = compare(_read(paths))
    if not comparison.runs:
        raise BadInput.of("FILE", f"the files have no run in common: {'; '.join(comparison.notes)}.", _REMEDY)
    show(
        options.output,
        lambda: lines(comparison, options.max_regression),
        lambda: document(comparison, options.max_regression),
    )
    worse = comparison.regressions(options.max_regression)
    if worse:
        worst = ", ".join(f"{one.figure.name} by {one.worst:.1%} ({_named(load)})" for load, one in worse)
        say(f"error: worse by more than {options.max_regression * 100:g}%: {worst}")
    return ExitCode.FAILED if worse else ExitCode.DONE


def _check(options: Options, paths: Sequence[Path]) -> None:
    if len(paths) < 2:
        raise WrongUsage(f"{COMPARE} needs at least two files", f"llmservice bench {COMPARE} FILE FILE")
    if unused := named(options.given - _USED):
        raise WrongUsage(
            f"{COMPARE} measures nothing: {unused}", "leave it out; of the options it takes --max-regression and -o"
        )


def _read(paths: Sequence[Path]) -> Sequence[Measured]:
    """BadInput names every file that cannot be used."""
    found: list[Measured] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            found.append(measured(path))
        except Refused as why:
            problems.append(Problem("FILE", f"{path} cannot be used: {why}.", _REMEDY))
        except OSError as error:
            problems.append(Problem("FILE", f"{path} cannot be read: {error.strerror or error}.", _REMEDY))
    if problems:
        raise BadInput(problems)
    return found


def lines(comparison: Comparison, most: float | None) -> Iterator[str]:
    """The files by letters, then a table for each run."""
    letters = [_letter(number) for number in range(len(comparison.files))]
    for letter, file in zip(letters, comparison.files, strict=True):
        yield f"{letter}  {file.place}"
    yield from (f"note: {note}" for note in comparison.notes)
    header = ["FIGURE", *letters, *(f"{letter}/{letters[0]}" for letter in letters[1:]), ""]
    for load, compared in comparison.runs.items():
        yield ""
        yield _named(load)
        rows = [[one.figure.name, *map(_number, [*one.values, *one.ratios]), _worse(one, most)] for one in compared]
        yield from table(header, rows, right=frozenset(range(1, len(header) - 1)))


def _letter(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"F{number + 1}"


def _named(load: Load) -> str:
    return ", ".join(word for word in load if word)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _worse(one: Compared, most: float | None) -> str:
    return f"worse by {one.worst:.1%}" if most is not None and one.worst > most else ""


def document(comparison: Comparison, most: float | None) -> dict[str, Any]:
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
                        "isWorse": most is not None and one.worst > most,
                    }
                    for one in compared
                ],
            }
            for load, compared in comparison.runs.items()
        ],
    }
