"""Results of a run: one JSON line each, on disk before the next step begins."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

COMMITTED = Path(__file__).parents[1] / "results"
"""Files of runs on GPUs: the page, the calibration and the choice of the next run's first step read them."""
CONFIGS: Mapping[str, Mapping[str, Any]] = json.loads((Path(__file__).parents[1] / "models.json").read_text("utf-8"))
"""config.json by model, as far as vLLM and the planner read it."""
MACHINE = "machine"
"""The step that says what the others ran on; the first line of a file."""


class Outcome(StrEnum):
    """How a step ended."""

    MEASURED = "measured"
    REPLAYED = "replayed"
    """Needs CUDA, and was given a recorded log instead of an engine."""
    FAILED = "failed"
    NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class Result:
    """One step."""

    step: str
    outcome: Outcome
    seconds: float
    """That it took."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """JSON."""
    why: str = ""
    """Why there are no values, or what they leave out."""
    log: Sequence[str] = ()
    """The last lines of what failed."""

    def to_json(self) -> str:
        """One line."""
        document = asdict(self)
        return json.dumps({key: value for key, value in document.items() if value not in ("", (), [], {})})

    @classmethod
    def from_json(cls, text: str) -> Result:
        """ValueError or TypeError for a line that is none."""
        document = json.loads(text)
        return cls(**document | {"outcome": Outcome(document["outcome"])})


def append(file: Path, result: Result) -> None:
    """At once: the machine may be taken away in the next second."""
    with file.open("a", encoding="utf-8") as out:
        out.write(result.to_json() + "\n")
        out.flush()
        os.fsync(out.fileno())


def read(file: Path) -> list[Result]:
    """The results of one run; empty without a file. A last line that was cut off is left out."""
    if not file.exists():
        return []
    return [Result.from_json(line) for line in file.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one file."""

    name: str
    machine: Mapping[str, Any]
    results: Sequence[Result]

    @property
    def is_gpu(self) -> bool:
        return bool(self.machine.get("product"))

    @property
    def measured(self) -> Iterator[Result]:
        return (one for one in self.results if one.outcome is Outcome.MEASURED)


def runs(folder: Path = COMMITTED) -> list[Run]:
    """Those of a folder, by the names of their files."""
    return [run_of(file) for file in sorted(folder.glob("*.jsonl"))]


def run_of(file: Path) -> Run:
    """ValueError where it does not begin with its machine."""
    found = read(file)
    if not found or found[0].step != MACHINE:
        raise ValueError(f"{file} does not begin with the line of its machine")
    return Run(file.stem, found[0].values, found[1:])


def measured_steps(some: Iterable[Run]) -> frozenset[str]:
    """Steps that a GPU has been measured with; the next run leaves them out."""
    return frozenset(result.step for run in some if run.is_gpu for result in run.measured)
