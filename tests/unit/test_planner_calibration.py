"""The planner against start-ups that people measured: with constants that each model had no part in."""

from __future__ import annotations

from pathlib import Path

import pytest
from llmservice_operator.planner.constants import FITTED
from llmservice_operator.planner.plan import Fit

from benchmarks.calibration import __main__ as calibration
from benchmarks.calibration import earlier, judge, report
from benchmarks.calibration.judge import Judged, leave_one_model_out
from benchmarks.calibration.records import Startup, as_case, others, startups

RECORDS = list(startups())
OTHERS = [judge.judged(one) for one in others() if one.request is not None]


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return leave_one_model_out(RECORDS)


@pytest.fixture(scope="module")
def summary(judged: list[Judged]) -> report.Summary:
    return report.summary(judged)


def test_enough_start_ups_take_part(summary: report.Summary) -> None:
    assert summary.starts >= 30
    assert summary.verdicts >= 35


def test_kv_tokens_are_met(summary: report.Summary) -> None:
    assert summary.tokens_median <= 0.05
    assert summary.tokens_quantile <= 0.15


def test_verdicts_are_right(summary: report.Summary) -> None:
    assert summary.right_share >= 0.95
    assert summary.tight_share <= 0.15


def test_nothing_fits_that_did_not_start(summary: report.Summary) -> None:
    assert summary.wrongly_fits == ()


def test_start_ups_that_nothing_was_fitted_to() -> None:
    """A version's defaults or a model's storage that the planner gets wrong shows here first."""
    found = report.summary(OTHERS)
    assert found.starts >= 15
    assert found.tokens_median <= 0.05
    assert found.tokens_quantile <= 0.15
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


def _judged(verdict: Fit, outcome: str | None, *, margin: float, error: float, band: float) -> bool | None:
    facts = {"id": "x", "model": "m", "gpu": "NVIDIA L4", "outcome": outcome, "source": "s", "vllm_version": "0.32"}
    startup = Startup(facts | {"kv_cache_gib": 4.0}, as_case(facts, None))
    from llmservice_operator.planner.plan import Plan

    plan = Plan(verdict, "", kv_cache_gib=4.0 + error, margin_gib=margin, error_band_gib=band)
    return Judged(startup, plan).verdict_is_right


@pytest.mark.parametrize(
    ("verdict", "outcome", "margin", "error", "band", "right"),
    [
        pytest.param(Fit.FITS, "served", 3.0, 0.1, 0.5, True, id="fits and served"),
        pytest.param(Fit.FITS, "too_long", 3.0, 0.1, 0.5, False, id="fits and failed"),
        pytest.param(Fit.DOES_NOT_FIT, "oom", -3.0, 0.1, 0.5, True, id="does not fit and failed"),
        pytest.param(Fit.DOES_NOT_FIT, "served", -3.0, 0.1, 0.5, False, id="does not fit and served"),
        pytest.param(Fit.TIGHT, "served", 0.2, 0.1, 0.5, True, id="tight, and so it was"),
        pytest.param(Fit.TIGHT, "too_long", 0.4, 1.0, 0.5, False, id="tight, and it was far from it"),
        pytest.param(Fit.FITS, None, 3.0, 0.1, 0.5, None, id="stopped by something else"),
        pytest.param(Fit.UNKNOWN, "served", 3.0, 0.1, 0.5, None, id="unknown"),
    ],
)
def test_what_counts_as_right(
    verdict: Fit, outcome: str | None, margin: float, error: float, band: float, right: bool | None
) -> None:
    assert _judged(verdict, outcome, margin=margin, error=error, band=band) is right
