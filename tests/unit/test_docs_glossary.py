"""The glossary is alphabetical, short, and names only modules that exist."""

from __future__ import annotations

import re

from tests.support.documents import DOCS, PACKAGE_FOLDERS, ROOT

_ROW = re.compile(r"^\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| (?P<where>[^|]+) \|$", re.MULTILINE)
ROWS = [row for row in _ROW.finditer((DOCS / "glossary.md").read_text(encoding="utf-8")) if row["term"] != "term"]


def test_terms_are_alphabetical_and_few() -> None:
    terms = [row["term"].lower() for row in ROWS]
    assert terms == sorted(set(terms))
    assert 40 <= len(terms) <= 65


def test_each_term_names_a_field_or_a_module_that_exists() -> None:
    missing = []
    for row in ROWS:
        places = re.findall(r"`([^`]+)`", row["where"])
        assert places, row["term"]
        for place in places:
            if "/" in place and not any((ROOT / folder / place).exists() for folder in (*PACKAGE_FOLDERS, ".")):
                missing.append(place)
    assert missing == []
