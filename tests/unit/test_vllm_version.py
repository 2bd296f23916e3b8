"""One command adds a version of vLLM, and no file of the product states the newest one on its own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from llmservice_runtime.flags import table as tables
from llmservice_runtime.flags.table import flag_table, known_versions, newest_version

from scripts.add_vllm_version import FLAGS, PARSERS, PLACES, add, flags_text, order, with_table

ROOT = Path(__file__).parents[2]
FOLDERS = ("operator", "runtime", "fetch", "cli", "localcluster", "charts", "scripts", "examples", "docs")
DERIVED = {
    "charts/llmservice-operator/files/crd.yaml": "make crds",
    "docs/reference/fields.md": "make crds",
    "docs/reference/values.md": "make crds",
    "runtime/requirements-cpu.txt": "scripts/export_requirements.py",
}
STAND_IN = "localcluster/install.py"
"""It names the version that the stand-in was recorded from, the newest one or not."""
STATED = re.compile(r"(?:vllm(?:-[a-z-]+)?(?::v|==)|^ +version: )(\d+\.\d+\.\d+)", re.MULTILINE)
"""An image or a package of vLLM, and spec.runtime.version."""
DOCUMENT = json.loads((ROOT / FLAGS).read_text())


def full(series: str, document: dict[str, Any]) -> dict[str, Any]:
    """All flags of a series, by the documented rule."""
    held: dict[str, Any] = {}
    for name, difference in document.items():
        held = {flag: one for flag, one in held.items() if flag not in difference.get("gone", ())} | difference["flags"]
        if name == series:
            break
    return held


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for path in (FLAGS, PARSERS, *PLACES):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def found(version: str) -> dict[str, Any]:
    """A vLLM with one flag more, one less and one that takes another value than the newest known one."""
    flags = full(known_versions()[0], DOCUMENT)
    del flags["--enable-shm-tensor-arena"]
    flags |= {"--brand-new": {"kind": "int"}, "--mamba-cache-mode": {"choices": ["none"]}}
    return {"version": version, "flags": flags, "parsers": {"toolCall": ["a"], "reasoning": ["b", "c"]}}


def test_a_newer_version_becomes_the_default_everywhere(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = add(copy, found("0.99.1"))
    assert "2 new or changed, 1 gone" in said
    assert "pytest -m vllm tests/unit" in said
    document = json.loads((copy / FLAGS).read_text())
    assert document["0.99"] == {
        "version": "0.99.1",
        "gone": ["--enable-shm-tensor-arena"],
        "flags": {"--brand-new": {"kind": "int"}, "--mamba-cache-mode": {"choices": ["none"]}},
    }
    assert {series: one for series, one in document.items() if series != "0.99"} == DOCUMENT
    assert json.loads((copy / PARSERS).read_text()) == {"version": "0.99.1", "toolCall": ["a"], "reasoning": ["b", "c"]}
    for path in PLACES:
        assert newest_version() in STATED.findall((ROOT / path).read_text()), path
        assert set(STATED.findall((copy / path).read_text())) == {"0.99.1"}, path
    for cached in ("known_versions", "_made"):
        monkeypatch.setattr(tables, cached, getattr(tables, cached).__wrapped__)
    monkeypatch.setattr(tables, "_document", lambda: document)
    assert tables.newest_version() == "0.99.1"
    assert tables.flag_table("0.99").by_spelling["--brand-new"].kind == "int"


def test_an_older_version_changes_no_default_and_no_other_table(copy: Path) -> None:
    before = {path: (copy / path).read_text() for path in (PARSERS, *PLACES)}
    add(copy, found("0.29.9"))
    assert {path: (copy / path).read_text() for path in (PARSERS, *PLACES)} == before
    document = json.loads((copy / FLAGS).read_text())
    assert full("0.29", document) == found("0.29.9")["flags"]
    for series in set(known_versions()) - {"0.29"}:
        assert full(series, document) == full(series, DOCUMENT)


def test_the_same_version_again_changes_nothing() -> None:
    newest = known_versions()[0]
    again = with_table(DOCUMENT, newest_version(), full(newest, DOCUMENT))
    assert flags_text(again) == (ROOT / FLAGS).read_text()


def test_series_are_ordered_as_numbers() -> None:
    assert sorted(["0.100", "0.28", "0.9"], key=order) == ["0.9", "0.28", "0.100"]


@pytest.mark.parametrize("series", known_versions())
def test_tables_are_base_and_differences(series: str) -> None:
    entries = full(series, DOCUMENT)
    assert [flag.spellings for flag in flag_table(series).flags] == [
        (name, *entries[name].get("also", ())) for name in sorted(entries)
    ]
    for flag in flag_table(series).flags:
        stated = entries[flag.spellings[0]]
        assert flag.values == stated.get("values", 1)
        assert flag.kind == ("none" if flag.values == 0 else stated.get("kind", "text"))
        assert flag.choices == tuple(stated.get("choices", ()))


def test_no_other_file_names_an_image_of_the_newest_version() -> None:
    listing = ["git", "ls-files", *FOLDERS, "pyproject.toml"]
    tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {
        path: (ROOT / path).read_text(errors="replace") for path in tracked.stdout.split() if not path.endswith(".svg")
    }
    naming = {path for path, text in texts.items() if newest_version() in STATED.findall(text)}
    assert naming - {STAND_IN} == {str(path) for path in PLACES} | DERIVED.keys()
