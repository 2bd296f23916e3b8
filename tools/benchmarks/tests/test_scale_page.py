"""The page and the picture of the scale benchmark say what its kept runs say."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import nan
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages
from benchmarks.scale import page, picture
from benchmarks.scale.figures import Figures
from benchmarks.scale.kept import FOLDER, Kept, kept, plain, read
from benchmarks.scale.peers import PEERS

ROOT = Path(__file__).parents[3]


def test_fresh() -> None:
    # Not by ==, whose explanation of two long texts takes longer than all of these tests.
    assert pages.stale(ROOT, page.generated(ROOT)) == [], "run `python -m benchmarks.scale.page`"


# Nobody measured these: they are made up for the tests below.
MADE_UP: dict[str, Any] = {
    **asdict(Figures(services=1000)),
    "children_seconds": 41.04,
    "ready_seconds": 1234.5,
    "service_seconds": {"p50": 51.5, "p99": 99.25},
    "start_cpu_seconds": 1.5,
    "cpu_ms_per_service": 7.0,
    "peak_mib": 150.0,
    "control_plane_cpu_seconds": {"etcd": 20.0, "kube-apiserver": 100.0},
    "requests_per_service": {"patch deployments": 1.0, "create events": 0.5, "patch events": 0.25},
    "writes_per_service": 5.0,
    "events_per_service": 0.75,
    "edits_ms": {"p50": 14.0, "p90": 20.0, "p99": 160.0, "max": 171.0},
    "floor_seconds": 61.0,
    "stolen_percent": 3.25,
    "machine": "9 cores, 1 GiB",
}


def made_up(name: str = "1000", **other: Any) -> Kept:
    """A run that was none."""
    return kept(name, {**MADE_UP, **other})


LINES = {
    "a column for each number of services": "| figure | goal | 100 | 1,000 |",
    "a goal for each number": "| all children, s | ≤ 4 / 45 | 3.5 | 41 |",
    "a goal that was missed": "| all Ready, s | ≤ 7 / 95 | 6 | **1,234** missed |",
    "one that was missed by little": "| writes a service, Events apart | ≤ 5 | 5 | **5.002** missed |",
    "one goal, and what was not measured": "| operator memory, peak, MiB | ≤ 200 | - | 150 |",
    "a figure without a goal": "| a service Ready, 99 of 100, s |  | 99.2 | 99.2 |",
    "the floor": "| floor: all CPU seconds until Ready ÷ cores |  | 61 | 61 |",
    "the special runs apart": "| figure | goal | 1,000 | 1,000, 10 a second |",
    "arrivals have no such goal": "| all Ready, s | ≤ 95 | **1,234** missed | - |",
    "requests by verb and resource": "| `events` | 0.5 | 0.25 | 0.75 |",
    "their sums": "| all | 0.5 | 1.25 | 1.75 |",
    "a process of the control plane": "| kube-apiserver | 100 | 100 |",
    "all of them": "| all of them, for each 1,000 services | 1,200 | 120 |",
    "the operator beside them": "| the operator, its start included | 2.2 | 8.5 |",
    "beside the others": "| this operator | 41 | 1,234 | 8.5 | 150 | 5, Events 0.75 | 0 | 14 |",
    "another": "| Hearth | 247 | 247 | 25.4 | 104 | 16 | 0 | 25 |",
    "its command and its machine": f"| 100 | `python -m benchmarks.scale --services 100 --json {FOLDER}/100.json`"
    " | 9 cores, 1 GiB |",
}


def test_rows() -> None:
    small = made_up("100", services=100, children_seconds=3.5, ready_seconds=6, peak_mib=None)
    lines = page.page([small, made_up(), made_up("1000-rate", rate=10.0, writes_per_service=5.002)]).splitlines()
    assert {name: line for name, line in LINES.items() if line not in lines} == {}


def test_how_fast_the_machines_are_is_said_beside_the_others() -> None:
    assert "took 137 CPU seconds for 1,000 services, that of the kept run 120. " in page.page([made_up()])


def test_a_run_stands_beside_those_of_as_many_services() -> None:
    _, hundred, thousand = page.page([made_up(), made_up("5000", services=5000)]).split("| operator | all children")
    assert (hundred.count(page.OURS), thousand.count(page.OURS)) == (0, 1)


def test_without_a_run_the_page_says_so_and_shows_the_others() -> None:
    text = page.page([])
    assert page.NONE in text
    assert all(peer.name in text for peer in PEERS)
    assert page.OURS not in text
    assert page.NONE not in page.page([made_up()])


@pytest.mark.parametrize(
    ("value", "text"), [(nan, "-"), (0, "0"), (0.0004, "0.0004"), (7.04, "7.04"), (99.96, "100"), (1234.5, "1,234")]
)
def test_numbers(value: float, text: str) -> None:
    assert pages.number(value) == text


def test_the_picture_shows_what_was_measured_and_nothing_else() -> None:
    of_two = picture.panels([made_up(), made_up("5000", services=5000, peak_mib=None, floor_seconds=None)])
    assert of_two["seconds until all are Ready"][picture.OURS] == {1000: 1234.5, 5000: 1234.5}
    assert of_two["seconds until all are Ready"][picture.FLOOR] == {1000: 61.0}
    assert of_two[picture.MEMORY][picture.OURS] == {1000: 150.0}
    assert all(picture.OURS not in lines for lines in picture.panels([]).values())


def test_the_picture_is_the_same_twice_and_names_every_line() -> None:
    drawn = picture.draw([made_up()])
    assert drawn == picture.draw([made_up()])
    for name in picture.STYLES:
        assert f">{name}<" in drawn, name


def main(argv: list[str]) -> int:
    return pages.main("benchmarks.scale.page", page.__doc__, page.generated, argv)


def test_check_names_stale_files_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path), "--check"]) == 0
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "1000.json").write_text(json.dumps(MADE_UP))
    assert [run.name for run in plain(read(tmp_path))] == ["1000"]
    before = (tmp_path / page.PAGE).read_text()
    assert main([str(tmp_path), "--check"]) == 1
    told = "".join(f"{name} is stale: run `python -m benchmarks.scale.page`\n" for name in (page.PAGE, page.PICTURE))
    assert capsys.readouterr().err == told
    assert (tmp_path / page.PAGE).read_text() == before
