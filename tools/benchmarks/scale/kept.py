"""The runs that are kept beside the code: one file each, as `--json` wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import nan
from pathlib import Path
from typing import Any

from benchmarks.scale.figures import Figures

FOLDER = "tools/benchmarks/scale/results"
EDITS = dict.fromkeys(("p50", "p90", "p99", "max"), nan)


@dataclass(frozen=True)
class Kept:
    """One run. What an older or newer benchmark wrote is read too: NaN is a missing figure."""

    name: str
    """Of the file."""
    figures: Figures

    @property
    def is_plain(self) -> bool:
        """Whether it stands in the first table: services that are there before one operator, and nothing else."""
        return self.name == str(self.figures.services) and not self.special

    @property
    def special(self) -> list[tuple[str, str]]:
        """What makes it another run than the plain one: in words, and as an option."""
        found = self.figures
        every = [
            (found.faults, "1% faults", "--faults"),
            (found.inspected, "models inspected", "--inspect"),
            (found.rate, f"{found.rate or 0:g} a second", f"--rate {found.rate or 0:g}"),
        ]
        return [(words, option) for is_so, words, option in every if is_so]

    @property
    def title(self) -> str:
        words = [words for words, _ in self.special]
        return ", ".join([f"{self.figures.services:,}", *(words or ([] if self.is_plain else [self.name]))])

    @property
    def command(self) -> str:
        """What measures it again, into the same file."""
        options = [f"--services {self.figures.services}", *(option for _, option in self.special)]
        return f"python -m benchmarks.scale {' '.join(options)} --json {FOLDER}/{self.name}.json"

    @property
    def control_plane_seconds(self) -> float:
        """CPU of all that every operator shares."""
        return sum(self.figures.control_plane_cpu_seconds.values()) or nan

    @property
    def api_server_ms(self) -> float:
        """CPU of the API server alone, for each service."""
        return self.figures.control_plane_cpu_seconds.get("kube-apiserver", nan) * 1000 / self.figures.services

    @property
    def operator_seconds(self) -> float:
        """CPU of the operator until all are Ready, its start included."""
        return self.figures.cpu_ms_per_service * self.figures.services / 1000 + self.figures.start_cpu_seconds


def read(root: Path) -> list[Kept]:
    """All of a checkout: the fewest services first, the plain run before those that are compared with it."""
    found = [kept(path.stem, json.loads(path.read_text())) for path in (root / FOLDER).glob("*.json")]
    return sorted(found, key=lambda one: (one.figures.services, not one.is_plain, one.name))


def kept(name: str, written: Mapping[str, Any]) -> Kept:
    known = {field.name: field.default for field in fields(Figures)}
    # What was not measured is no zero, which would meet every goal.
    unmeasured = {key: nan for key, default in known.items() if default == 0 and not isinstance(default, bool)}
    values = {**unmeasured, **{key: value for key, value in written.items() if key in known and value is not None}}
    values["edits_ms"] = {**EDITS, **(written.get("edits_ms") or {})}
    return Kept(name, Figures(**values))


def plain(runs: Iterable[Kept]) -> list[Kept]:
    return [run for run in runs if run.is_plain]


def compared(runs: Iterable[Kept]) -> list[Kept]:
    """Of the second: each special run, after the plain one of as many services where that is kept."""
    runs = list(runs)
    special = {run.figures.services for run in runs if not run.is_plain}
    return [run for run in runs if run.figures.services in special]
