"""The glossary is alphabetical and short; each term leads to a field, module or package by its name, or says where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from llmservice_api.crd import schema

from tests.support.documents import DOCS, PACKAGE_FOLDERS, ROOT

_ROW = re.compile(r"^\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \|$", re.MULTILINE)
ROWS = [row for row in _ROW.finditer((DOCS / "glossary.md").read_text(encoding="utf-8")) if row["term"] != "term"]
_PLACE = re.compile(r"\(`([^`]+)`\)")
_PREFIX = "llmservice_"


def fields(part: Mapping[str, Any]) -> Iterator[str]:
    """Names of the LLMService's fields, as Python would write them."""
    for name, child in part.get("properties", {}).items():
        yield re.sub(r"(?=[A-Z])", "_", name).lower()
        yield from fields(child)
    yield from fields(part["items"]) if "items" in part else ()


def names() -> set[str]:
    """Of fields, modules and packages."""
    modules = [
        path
        for folder in (*PACKAGE_FOLDERS, "tests/support")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    ]
    packages = {path.parent.name.removeprefix(_PREFIX) for path in modules}
    return {path.stem for path in modules} | packages | set(fields(schema()))


def test_terms_are_alphabetical_and_few() -> None:
    terms = [row["term"].lower() for row in ROWS]
    assert terms == sorted(set(terms))
    assert 40 <= len(terms) <= 65


def test_places_exist() -> None:
    places = [place for row in ROWS for place in _PLACE.findall(row["meaning"])]
    files = [place for place in places if "/" in place]
    assert len(files) >= 20
    assert [place for place in files if not any((ROOT / folder / place).exists() for folder in PACKAGE_FOLDERS)] == []


def test_a_term_without_a_place_is_the_name_of_a_field_a_module_or_a_package() -> None:
    known = names()
    lost = []
    for row in ROWS:
        term = row["term"].replace(" ", "_").replace("-", "_")
        if not _PLACE.search(row["meaning"]) and not {term, f"{term}s"} & known:
            lost.append(row["term"])
    assert lost == []
