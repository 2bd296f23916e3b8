"""Why the planner counts no scores: naive attention stores them all, FlashAttention none; measured at each length."""

from __future__ import annotations

import pytest

from benchmarks.gpu.findings import Findings
from tests.support.measured import Record

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own


def test_naive_attention_stores_at_least_its_scores_and_flash_stores_its_result(
    findings: Findings, record: Record
) -> None:
    if not findings.attention:
        pytest.skip("; ".join(f"{skipped.what}: {skipped.why}" for skipped in findings.skipped))
    for one in findings.attention:
        at_most = 3.5 if one.way == "naive" else 1.5
        assert 0.9 * one.planned_bytes <= one.peak_bytes <= at_most * one.planned_bytes, one
    record(**{f"{one.way}_{one.tokens}": (round(one.seconds, 5), one.peak_bytes) for one in findings.attention})


def test_long_requests_are_faster_without_stored_scores(findings: Findings) -> None:
    longest = max(findings.pairs(), key=lambda pair: pair[0].tokens, default=None)
    if longest is None:
        pytest.skip("no length was measured both ways")
    naive, flash = longest
    assert naive.seconds > flash.seconds
