"""tools/scripts/test, which make test runs: a failure stops nothing else, and the end says what to run again."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PYTEST = """#!{python}
import json, os, pathlib, sys
plan = json.loads(pathlib.Path("plan").read_text())
given = sys.argv[1:]
with open("ran", "a") as ran:
    ran.write(json.dumps(given) + "\\n")
cache = next((each.partition("=")[2] for each in given if each.startswith("cache_dir=")), ".pytest_cache")
kept = pathlib.Path(cache, "v/cache/lastfailed")
known = json.loads(kept.read_text()) if kept.exists() else {{}}
alone = [each for each in given if "::" in each]
where = next((each for each in given if each in plan["fails"]), None)
names = [name for name in alone if name in plan["alone"]] if alone else plan["fails"].get(where, [])
known = {{name: True for name in (*(set(known) - set(alone)), *names)}}
kept.parent.mkdir(parents=True, exist_ok=True)
kept.write_text(json.dumps(known))
sys.exit(1 if names else 0)
"""
CLUSTER = """
import pathlib, sys
with open("cluster", "a") as said:
    said.write(sys.argv[1] + "\\n")
if sys.argv[1] in pathlib.Path("broken").read_text().split():
    sys.exit("no disk for " + sys.argv[1])
sys.exit(sys.argv[1] == "status")
"""


@dataclass
class Ran:
    """What one run of the script did."""

    code: int
    out: str
    pytest: list[list[str]]
    cluster: list[str]


def run(
    folder: Path,
    fails: dict[str, list[str]],
    *words: str,
    alone: tuple[str, ...] = (),
    broken: str = "",
    lint: str = "true",
) -> Ran:
    """`fails`: tests that fail in the stage with this argument; `alone`: those that do so once more."""
    (folder / "tools" / "scripts").mkdir(parents=True)
    (folder / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "scripts" / "test", folder / "tools" / "scripts" / "test")
    (folder / "Makefile").write_text(f"lint:\n\t{lint}\n")
    (folder / "localcluster.py").write_text(CLUSTER)
    (folder / "broken").write_text(broken)
    (folder / "plan").write_text(json.dumps({"fails": fails, "alone": alone}))
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / ".venv" / "bin" / "pytest").write_text(PYTEST.format(python=sys.executable))
    (folder / ".venv" / "bin" / "pytest").chmod(0o755)
    environment: dict[str, Any] = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        ["tools/scripts/test", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    ran, cluster = ((folder / name).read_text() if (folder / name).exists() else "" for name in ("ran", "cluster"))
    return Ran(done.returncode, done.stdout, [json.loads(line) for line in ran.splitlines()], cluster.split())


def stages(ran: Ran) -> int:
    return len([given for given in ran.pytest if not any("::" in each for each in given)])


def test_all_pass(tmp_path: Path) -> None:
    ran = run(tmp_path, {})
    assert (ran.code, stages(ran)) == (0, 6)
    assert "all passed" in ran.out
    assert sorted(ran.cluster) == ["down", "install", "keda", "lws", "status", "up"], ran.out
    assert any("or (autoscaling" in each for given in ran.pytest for each in given)
    assert re.search(r"^disk: \d+ MiB above the start at most, -?\d+ MiB at the end$", ran.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("parts", "number", "asked_of_the_cluster"),
    [
        pytest.param((), 7, ["down", "install", "keda", "status", "up"], id="all"),
        pytest.param(("engines",), 2, ["down", "install", "status", "up"], id="engines"),
        pytest.param(("zero",), 1, ["down", "install", "keda", "status", "up"], id="zero"),
        pytest.param(("stories",), 2, ["down", "install", "keda", "status", "up"], id="stories"),
        pytest.param(("unit",), 2, ["down", "status"], id="unit"),
        pytest.param(("oldest",), 0, ["down", "oldest", "status"], id="oldest"),
    ],
)
def test_parts_of_what_takes_minutes(
    tmp_path: Path, parts: tuple[str, ...], number: int, asked_of_the_cluster: list[str]
) -> None:
    ran = run(tmp_path, {}, "--full", *parts)
    wanted = asked_of_the_cluster if parts else sorted([*asked_of_the_cluster, "oldest"])
    assert (ran.code, stages(ran), sorted(ran.cluster)) == (0, number, wanted), ran.out


def test_the_parts_have_each_test_that_takes_minutes_once(tmp_path: Path) -> None:
    """A file that is no more ends a part with an error; one that came is a story."""
    ran = run(tmp_path, {}, "--full", "engines", "zero", "stories")
    of_parts = [each for given in ran.pytest[:3] for each in given if each.startswith("tests/e2e/")]
    assert len(of_parts) == len(set(of_parts)) > 10
    left_out = [
        [each.removeprefix("--ignore=") for each in given if each.startswith("--ignore=")] for given in ran.pytest
    ]
    assert left_out[-2:] == [of_parts, of_parts]


def test_a_part_that_is_none_is_an_error_with_the_parts_that_are(tmp_path: Path) -> None:
    ran = run(tmp_path, {}, "--full", "zeros")
    assert (ran.code, ran.pytest, ran.cluster) == (2, [], [])
    assert ran.out.startswith("no part is called zeros\n")
    assert "make test-full PART=" in ran.out


def test_what_fails_keeps_nothing_from_running_and_is_named(tmp_path: Path) -> None:
    fails = {
        "tests/unit": ["tests/unit/test_a.py::test_of_time[a b]"],
        "tests/scale": ["tests/scale/test_b.py::test_b"],
    }
    ran = run(tmp_path, fails, alone=("tests/scale/test_b.py::test_b",))
    assert (ran.code, stages(ran)) == (1, 6)
    assert ran.pytest[-1] == ["tests/scale/test_b.py::test_b", "tests/unit/test_a.py::test_of_time[a b]"]
    assert "  tests/unit/test_a.py::test_of_time[a b] (passes alone)\n" in ran.out
    assert "  tests/scale/test_b.py::test_b\n" in ran.out
    assert ".venv/bin/pytest tests/scale/test_b.py::test_b tests/unit/test_a.py::test_of_time\\[a\\ b\\]\n" in ran.out
    assert ran.cluster[-1] == "down", "after what runs once more"


@pytest.mark.parametrize(
    ("broken", "number", "named"),
    [("up", 1, "the cluster and its images"), ("install", 1, "the cluster and its images"), ("keda", 6, "keda")],
)
def test_what_cannot_run_without_another_is_left_out(tmp_path: Path, broken: str, number: int, named: str) -> None:
    ran = run(tmp_path, {}, broken=broken)
    assert (ran.code, stages(ran)) == (1, number)
    assert f"no disk for {broken}\n" in ran.out.partition(f"failed: {named}")[2], "what a reader of the end alone needs"
    assert "Run just these again" not in ran.out
    assert not any("or (autoscaling" in each for given in ran.pytest for each in given)


def test_lint_that_fails_is_said_at_the_end(tmp_path: Path) -> None:
    ran = run(tmp_path, {}, lint="false")
    assert (ran.code, stages(ran)) == (1, 6)
    assert "failed: lint, types, layers, generated files" in ran.out


def test_failures_of_an_earlier_run_are_none_of_this_one(tmp_path: Path) -> None:
    kept = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"tests/unit/test_old.py::test_old": True}))
    ran = run(tmp_path, {"tests/scale": ["tests/scale/test_b.py::test_b"]})
    assert ran.code == 1
    assert "test_old" not in ran.out


def test_a_hundred_failures_are_not_tried_again(tmp_path: Path) -> None:
    """One cause has them all, and each end-to-end test may take minutes to fail."""
    names = [f"tests/unit/test_a.py::test_{number}" for number in range(100)]
    ran = run(tmp_path, {"tests/unit": names})
    assert (ran.code, stages(ran), len(ran.pytest)) == (1, 6, 6)
    assert "passes alone" not in ran.out
    assert names[99] in ran.out
