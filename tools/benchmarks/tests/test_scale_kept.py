"""Kept runs of the scale benchmark are read whichever benchmark wrote them, and none is taken for another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale.figures import Figures, goals
from benchmarks.scale.kept import FOLDER, Kept, compared, kept, plain, read

WHOLE = Figures(1000).to_json()


@pytest.mark.parametrize(
    ("said", "value"),
    [
        pytest.param({"machine": "2 cores, 24 GiB"}, "2 cores, 24 GiB", id="of another benchmark"),
        pytest.param({"shards": 1, "machine": None}, "", id="null"),
        pytest.param({"colour": "blue"}, "", id="a key that nobody knows"),
    ],
)
def test_what_a_file_may_say(said: Mapping[str, Any], value: str) -> None:
    found = kept("1000", {**WHOLE, **said})
    assert found.figures.machine == value
    assert found.figures.services == 1000


def test_what_was_not_measured_meets_no_goal() -> None:
    """A figure that an older benchmark did not take would else be a zero, and better than any."""
    found = kept("1000", {"services": 1000})
    assert [goal.what for goal in goals(found.figures) if goal.is_met] == []
    told = (found.figures.floor_seconds, found.figures.stolen_percent, found.control_plane_seconds)
    assert all(isnan(value) for value in told)


def test_a_zero_that_was_measured_stays_one() -> None:
    found = kept("1000", {**WHOLE, "edits_ms": {"p50": 1.0, "p99": 2.0}, "stolen_percent": 0.0})
    assert (found.figures.idle_writes, found.figures.stolen_percent) == (0, 0.0)
    assert all(goal.is_met for goal in goals(found.figures))


@pytest.mark.parametrize(
    ("name", "said", "title", "words"),
    [
        pytest.param("1000", {}, "1,000", "--services 1000", id="plain"),
        pytest.param("1000-faults", {"faults": True}, "1,000, 1% faults", "--services 1000 --faults", id="faults"),
        pytest.param("1000-rate", {"rate": 2.5}, "1,000, 2.5 a second", "--services 1000 --rate 2.5", id="arrivals"),
        pytest.param("1000", {"faults": True}, "1,000, 1% faults", "--services 1000 --faults", id="a wrong name"),
        pytest.param("1000-again", {}, "1,000, 1000-again", "--services 1000", id="a second plain run"),
    ],
)
def test_each_run_is_called_by_what_it_was(name: str, said: Mapping[str, Any], title: str, words: str) -> None:
    found = kept(name, {**WHOLE, **said})
    assert found.title == title
    assert found.command == f"python -m benchmarks.scale {words} --json {FOLDER}/{name}.json"
    assert found.is_plain == (title == "1,000")


def runs(root: Path, *names: str) -> list[Kept]:
    """Of files that were written so."""
    (root / FOLDER).mkdir(parents=True)
    for name in names:
        services, _, special = name.partition("-")
        said = {**WHOLE, "services": int(services), "faults": special == "faults"}
        (root / FOLDER / f"{name}.json").write_text(json.dumps(said))
    return read(root)


def test_each_special_run_stands_beside_the_plain_one(tmp_path: Path) -> None:
    found = runs(tmp_path, "1000-faults", "100", "5000", "1000", "500-faults")
    assert [run.name for run in found] == ["100", "500-faults", "1000", "1000-faults", "5000"]
    assert [run.name for run in plain(found)] == ["100", "1000", "5000"]
    assert [run.name for run in compared(found)] == ["500-faults", "1000", "1000-faults"]


def test_no_run_is_kept(tmp_path: Path) -> None:
    assert read(tmp_path) == []
