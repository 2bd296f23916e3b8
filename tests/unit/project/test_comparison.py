"""The comparison says of each project which version was looked at, when, and where; nothing is dated in the future."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date

import pytest

from tests.support.documents import DOCS

PAGE = DOCS / "comparison.md"
PROJECTS = ("KServe", "KubeAI", "vLLM production-stack", "AIBrix", "KAITO", "llm-d", "NVIDIA Dynamo")
AS_OF = date(2026, 11, 30)
"""The page says November 2026."""


def rows() -> Mapping[str, list[str]]:
    """Cells of the table of what was looked at, by project."""
    section = PAGE.read_text(encoding="utf-8").partition("## What was looked at")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "](http" in line]
    return {re.sub(r"\[(.+?)\]\(.*", r"\1", row[0]): row for row in cells}


def test_each_project_has_its_row_and_no_other() -> None:
    assert tuple(rows()) == PROJECTS


@pytest.mark.parametrize("project", PROJECTS)
def test_a_row_has_version_date_and_source(project: str) -> None:
    _, version, read, source = rows()[project]
    assert re.search(r"\b(v?\d+\.\d+|[0-9a-f]{7}\b|no version named)", version)
    assert date(2026, 1, 1) <= date.fromisoformat(read) <= AS_OF
    assert re.search(r"\]\(https://[^)]+\)", source)


def test_what_they_have_comes_first() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    theirs, ours = (
        "What they have and this operator lacks",
        "What this operator has, and was not found in what was looked at",
    )
    assert headings.index(theirs) < headings.index(ours)


def test_what_is_ours_names_what_shows_it() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## What this operator has")[2].partition("\n## ")[0]
    shown = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ") and "shown by" not in line]
    assert shown
    assert [cell for cell in shown if "](" not in cell and "tests/" not in cell] == []
