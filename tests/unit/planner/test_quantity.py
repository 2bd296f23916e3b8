"""Quantities: different texts, same amount."""

from __future__ import annotations

import pytest
from llmservice_planner.quantity import add_memory, amount, same_amount


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1000m", "1", True),
        ("0.5", "500m", True),
        ("1024Mi", "1Gi", True),
        ("1e3", "1k", True),
        ("1E", "1000P", True),
        ("1G", "1Gi", False),
        ("1", "2", False),
        ("1Gi", None, False),
        ("x", "x", False),
    ],
)
def test_same_amount(one: str, other: str | None, same: bool) -> None:
    assert same_amount(one, other) is same


@pytest.mark.parametrize("text", ["", "Gi", "1.2.3", "1Kib", "--1"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        amount(text)


@pytest.mark.parametrize(
    ("quantity", "gib", "total"), [("20Gi", 2, "22Gi"), ("512Mi", 2, "2560Mi"), ("1000", 1, "1073742824")]
)
def test_adding_memory(quantity: str, gib: int, total: str) -> None:
    assert add_memory(quantity, gib) == total
