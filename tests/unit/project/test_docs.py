"""Pages lead where they say, every field has its page, and every page of fields has a manifest with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from llmservice_api.spec import LLMServiceSpec

from tests.support.documents import (
    DOCS,
    PAGES,
    SERVING,
    anchors,
    code_of,
    holding,
    links,
    manifests_of,
    name_of,
    named_files,
    prose_of,
)

_ROW = re.compile(r"^\| \[.*?\]\((?P<page>[\w-]+\.md)\) \| (?P<fields>.*?) \|", re.MULTILINE)
_FIELD = re.compile(r"^\| `spec\.([\w.\[\]]+)`", re.MULTILINE)


def groups_of_pages() -> Mapping[Path, set[str]]:
    """The table of docs/serving/index.md: which parts of the spec each page is about."""
    index = (SERVING / "index.md").read_text(encoding="utf-8")
    return {SERVING / row["page"]: set(re.findall(r"`([\w.]+)`", row["fields"])) for row in _ROW.finditer(index)}


GROUPS = groups_of_pages()
# The reference is generated from the models, and tests/unit/project/test_generated_fresh.py holds it against them.
FIELDS = _FIELD.findall((DOCS / "reference" / "fields.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for place, anchor in links(page):
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{place}#{anchor}")
    assert broken == []


# vllm-messages.md names the files of vLLM.
@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in ("glossary.md", "vllm-messages.md")], ids=name_of)
def test_files_and_tests_that_are_named_exist(page: Path) -> None:
    missing = []
    for file, test in named_files(page):
        texts = [path.read_text(encoding="utf-8") for path in holding(file)]
        if not any(f"def {test}(" in text if test else True for text in texts):
            missing.append(f"{file}::{test}")
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_begins_with_its_only_title(page: Path) -> None:
    """The site and its search name a page by it."""
    first, _, rest = re.sub(r"\A(<!--.*?-->\s*)+", "", prose_of(page)).partition("\n")
    assert first.startswith("# ")
    assert re.findall(r"^# .*$", rest, re.MULTILINE) == []


def test_every_page_of_fields_is_in_the_index() -> None:
    assert set(GROUPS) == set(SERVING.glob("*.md")) - {SERVING / "index.md"}


def test_every_part_of_the_spec_has_its_page() -> None:
    parts = {field.alias for field in LLMServiceSpec.model_fields.values()}
    assert {group.split(".")[0] for groups in GROUPS.values() for group in groups} == parts


def page_of(field: str) -> Path | None:
    """The page with the longest group that the field belongs to."""
    found = [
        (len(group), page) for page, groups in GROUPS.items() for group in groups if f"{field}.".startswith(f"{group}.")
    ]
    return max(found)[1] if found else None


def test_every_field_is_named_on_its_page() -> None:
    unnamed = []
    for field in FIELDS:
        page, name = page_of(field.replace("[]", "")), field.rpartition(".")[2]
        if page is None or not re.search(rf"\b{name}\b", code_of(page)):
            unnamed.append((field, page and name_of(page)))
    assert unnamed == []


def holds(manifest: Mapping[str, Any], group: str) -> bool:
    """Whether a manifest sets something of a part of the spec."""
    place: Any = manifest["spec"]
    for part in group.split("."):
        if not isinstance(place, dict) or part not in place:
            return False
        place = place[part]
    return True


@pytest.mark.parametrize("page", GROUPS, ids=name_of)
def test_every_page_of_fields_shows_them_in_a_manifest(page: Path) -> None:
    manifests = manifests_of(page)
    missing = {group for group in GROUPS[page] if not any(holds(manifest, group) for manifest in manifests)}
    assert missing == set()
