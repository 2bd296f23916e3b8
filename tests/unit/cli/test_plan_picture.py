"""`llmservice plan --picture` and the grid as CSV."""

from __future__ import annotations

import csv
import importlib.util
import io
from pathlib import Path

import pytest

from tests.unit.cli_world import Command, manifest

DRAWN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "a plan": (("--gpu", "L4"), ("DoesNotFit on 1 x NVIDIA-L4", "weights: 14.9", "KV cache:", "max concurrency")),
    "nothing left": (("--gpu", "T4"), ("DoesNotFit on 1 x Tesla-T4",)),
    "unknown": ((), ("Unknown",)),
    "a grid": (("--compare", "--gpu", "T4,L4"), ("T4", "L4", "fp8, auto KV", "not served", "GPUs needed")),
}


@pytest.mark.parametrize(("words", "texts"), DRAWN.values(), ids=DRAWN.keys())
def test_a_picture_has_the_plan(words: tuple[str, ...], texts: tuple[str, ...], llmservice: Command) -> None:
    path = llmservice.folder / "plan.svg"
    llmservice("plan", "--config", llmservice.config(), *words, "--picture", str(path))
    drawn = path.read_text()
    assert [text for text in texts if text not in drawn] == []
    again = llmservice.folder / "again.svg"
    llmservice("plan", "--config", llmservice.config(), *words, "--picture", str(again))
    assert again.read_text() == drawn, "the same plan is the same file"


def test_several_services_are_one_picture(llmservice: Command) -> None:
    path = llmservice.folder / "plan.png"
    file = llmservice.manifest(manifest("a"), manifest("b"))
    assert llmservice("plan", "-f", file, "--gpu", "H100", "--picture", str(path)).code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


REFUSED = {
    "a suffix": ("plan.gif", "plan.gif is no kind of picture that is known here. Write .svg or .png."),
    "a folder that is not there": ("none/plan.svg", "cannot be written: No such file or directory"),
}


@pytest.mark.parametrize(("name", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_drawn_is_refused(name: str, message: str, llmservice: Command, tmp_path: Path) -> None:
    ran = llmservice("plan", "--config", llmservice.config(), "--gpu", "H100", "--picture", str(tmp_path / name))
    assert (ran.code, message in ran.err) == (2, True), ran.err


def test_without_matplotlib_nothing_is_planned(llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ran = llmservice("plan", "--config", llmservice.config(), "--gpu", "H100", "--picture", "x.svg")
    assert (ran.code, ran.out, "a picture needs matplotlib. Install it" in ran.err) == (2, "", True)


def test_a_grid_is_a_line_for_each_cell(llmservice: Command) -> None:
    ran = llmservice("plan", "--config", llmservice.config(), "--compare", "--gpu", "T4,L4", "-o", "csv")
    cells = list(csv.DictReader(io.StringIO(ran.out)))
    document = llmservice("plan", "--config", llmservice.config(), "--compare", "--gpu", "T4,L4", "-o", "json").json
    assert [cell["verdict"] for cell in cells] == [each["verdict"] or "" for each in document["cells"]]
    assert {cell["product"]: cell["gpusNeeded"] for cell in cells} == {
        name: str(count) for name, count in document["gpusNeeded"].items()
    }
    assert document["version"] == 1


def test_csv_is_of_a_grid(llmservice: Command) -> None:
    ran = llmservice("plan", "--config", llmservice.config(), "--gpu", "L4", "-o", "csv")
    assert (ran.code, "Add --compare" in ran.err) == (2, True)
