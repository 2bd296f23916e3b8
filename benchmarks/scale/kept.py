"""The runs that are kept beside the code: one file each, as `--json` wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import nan
from pathlib import Path
from typing import Any

from benchmarks.scale.figures import Figures

FOLDER = "benchmarks/scale/results"
EDITS = dict.fromkeys(("p50", "p90", "p99", "max"), nan)


@dataclass(frozen=True)
class Kept:
    """One run. What an older or newer benchmark wrote is read too: NaN is what it did not say."""

    name: str
    """Of the file."""
    figures: Figures

    @property
    def is_plain(self) -> bool:
        """Whether it stands in the first table: services that are there before one operator, and nothing else."""
        found = self.figures
        is_special = found.faults or found.rate or found.inspected or found.shards > 1
        return self.name == str(found.services) and not is_special

    @property
    def title(self) -> str:
        """Over its column."""
        found = self.figures
        words = [f"{found.services:,}"]
        if found.faults:
            words.append("1% faults")
        if found.inspected:
            words.append("models inspected")
        if found.rate:
            words.append(f"{found.rate:g} a second")
        if found.shards > 1:
            words.append(f"{found.shards} shards")
        return ", ".join(words if self.is_plain or len(words) > 1 else [*words, self.name])

    @property
    def command(self) -> str:
        """What measures it again, into the same file."""
        found = self.figures
        words = [f"python -m benchmarks.scale --services {found.services}"]
        if found.faults:
            words.append("--faults")
        if found.inspected:
            words.append("--inspect")
        if found.rate:
            words.append(f"--rate {found.rate:g}")
        if found.shards > 1:
            words.append(f"--shards {found.shards}")
        return " ".join([*words, f"--json {FOLDER}/{self.name}.json"])

    @property
    def control_plane_seconds(self) -> float:
        """CPU of all that every operator shares."""
        return sum(self.figures.control_plane_cpu_seconds.values()) or nan

    @property
    def operator_seconds(self) -> float:
        """CPU of the operator until all are Ready, its start included."""
        return self.figures.cpu_ms_per_service * self.figures.services / 1000 + self.figures.start_cpu_seconds


def read(root: Path) -> list[Kept]:
    """All of a checkout: the fewest services first, the plain run before those that are compared with it."""
    found = [kept(path.stem, json.loads(path.read_text())) for path in (root / FOLDER).glob("*.json")]
    return sorted(found, key=lambda one: (one.figures.services, not one.is_plain, one.name))


def kept(name: str, said: Mapping[str, Any]) -> Kept:
    """From a file's content."""
    known = {field.name: field.default for field in fields(Figures)}
    # What was not measured is no zero, which would meet every goal.
    unsaid = {key: nan for key, default in known.items() if default == 0 and not isinstance(default, bool)}
    values = {**unsaid, **{key: value for key, value in said.items() if key in known and value is not None}}
    values["edits_ms"] = {**EDITS, **(said.get("edits_ms") or {})}
    return Kept(name, Figures(**values))


def plain(runs: Iterable[Kept]) -> list[Kept]:
    """Of the first table."""
    return [run for run in runs if run.is_plain]


def compared(runs: Iterable[Kept]) -> list[Kept]:
    """Of the second: each special run, after the plain one of as many services where that is kept."""
    runs = list(runs)
    special = {run.figures.services for run in runs if not run.is_plain}
    return [run for run in runs if run.figures.services in special]
