"""The planner against start-ups that people measured: with constants that each model had no part in."""

from __future__ import annotations

from pathlib import Path

import pytest
from llmservice_planner.constants import FITTED
from llmservice_planner.plan import Fit, Plan

from benchmarks.calibration import __main__ as calibration
from benchmarks.calibration import earlier, judge, report
from benchmarks.calibration.judge import Judged, leave_one_model_out
from benchmarks.calibration.records import Startup, as_case, others, startups

RECORDS = list(startups())
OTHERS = [judge.judged(one) for one in others() if one.request is not None]


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return leave_one_model_out(RECORDS)


def test_planned_tokens_and_verdicts_are_right(judged: list[Judged]) -> None:
    found = report.summary(judged)
    assert (found.starts >= 30, found.verdicts >= 35) == (True, True), "enough take part"
    assert (found.tokens_median <= 0.05, found.tokens_quantile <= 0.15) == (True, True), found
    assert (found.right_share >= 0.95, found.tight_share <= 0.15) == (True, True), found
    assert found.wrongly_fits == ()


def test_start_ups_that_nothing_was_fitted_to() -> None:
    """A version's defaults or a model's storage that the planner gets wrong shows here first."""
    found = report.summary(OTHERS)
    assert found.starts >= 15
    assert (found.tokens_median <= 0.05, found.tokens_quantile <= 0.15) == (True, True), found
    assert found.right_share >= 0.95
    assert found.wrongly_fits == ()


def test_constants_are_those_of_the_records() -> None:
    assert calibration.fitted() == FITTED | earlier.FITTED, "run: python -m benchmarks.calibration --write"


def test_the_page_is_fresh(judged: list[Judged]) -> None:
    assert calibration.PAGE.read_text() == report.page(judged, OTHERS), "run: python -m benchmarks.calibration --write"


def test_every_record_has_a_source() -> None:
    assert all(record.facts["source"] for record in RECORDS)
    names = [record.id for record in (*RECORDS, *others())]
    assert len(names) == len(set(names))
    assert Path(calibration.PAGE).name == "planner-accuracy.md"


VERDICTS: dict[str, tuple[Fit, str | None, float, float, bool | None]] = {
    # verdict, outcome, margin, error, is it right
    "fits and served": (Fit.FITS, "served", 3.0, 0.1, True),
    "fits and failed": (Fit.FITS, "too_long", 3.0, 0.1, False),
    "does not fit and failed": (Fit.DOES_NOT_FIT, "oom", -3.0, 0.1, True),
    "does not fit and served": (Fit.DOES_NOT_FIT, "served", -3.0, 0.1, False),
    "tight, and so it was": (Fit.TIGHT, "served", 0.2, 0.1, True),
    "tight, and it was far from it": (Fit.TIGHT, "too_long", 0.4, 1.0, False),
    "stopped by something else": (Fit.FITS, None, 3.0, 0.1, None),
    "unknown": (Fit.UNKNOWN, "served", 3.0, 0.1, None),
}


@pytest.mark.parametrize(("verdict", "outcome", "margin", "error", "right"), VERDICTS.values(), ids=VERDICTS)
def test_what_counts_as_right(
    verdict: Fit, outcome: str | None, margin: float, error: float, right: bool | None
) -> None:
    facts = {"id": "x", "model": "m", "gpu": "NVIDIA L4", "outcome": outcome, "source": "s", "vllm_version": "0.32"}
    plan = Plan(verdict, "", kv_cache_gib=4.0 + error, margin_gib=margin, error_band_gib=0.5)
    assert Judged(Startup(facts | {"kv_cache_gib": 4.0}, as_case(facts, None)), plan).verdict_is_right is right
