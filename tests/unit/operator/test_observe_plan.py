"""A plan as status.plan and the Fits condition show it."""

from __future__ import annotations

import json

import pytest
from llmservice_api.status import PlanStatus
from llmservice_operator.observe.verdict import document, fitness
from llmservice_planner.plan import Fit, Line, Plan, Remedy

SHORTER = Remedy("set spec.batching.maxModelLen to 4096", (("batching.maxModelLen", 4096),), None, Fit.FITS, 4096, 9000)
NO_CHANGE = "Too large. No change of the spec that was tried makes it fit."
REMEDY = "What would fit: set spec.batching.maxModelLen to 4096 (Fits). status.plan.remedies has them as patches."
CONDITIONS: list[tuple[Plan, str, str, str]] = [
    (Plan(Fit.FITS, "It fits."), "True", "Fits", "It fits."),
    (Plan(Fit.TIGHT, "It is tight.", remedies=(SHORTER,)), "True", "Tight", f"It is tight. {REMEDY}"),
    (Plan(Fit.DOES_NOT_FIT, "Too large.", margin_gib=-3.0), "False", "DoesNotFit", NO_CHANGE),
    (Plan(Fit.DOES_NOT_FIT, "T4 cannot do FP8."), "False", "DoesNotFit", "T4 cannot do FP8."),
    (
        Plan(Fit.UNKNOWN, "Not known: hidden_size.", ("hidden_size",)),
        "Unknown",
        "FactsMissing",
        "Not known: hidden_size.",
    ),
]


@pytest.mark.parametrize(("plan", "status", "reason", "message"), CONDITIONS)
def test_the_condition_fits(plan: Plan, status: str, reason: str, message: str) -> None:
    found = fitness(document(plan))
    assert (found.status, found.reason, found.message) == (status, reason, message)


def test_figures_are_rounded_and_what_is_not_known_is_left_out() -> None:
    plan = Plan(Fit.FITS, "", weights_gib=14.18734, weights_total_gib=28.37468, error_band=0.01849, kv_cache_gib=-0.004)
    assert document(plan, "abc") == {
        "verdict": "Fits",
        "reason": "",
        "facts": "abc",
        "gpus": 1,
        "weightsGiB": 28.37,
        "errorBand": 0.018,
        "perGPU": {"weightsGiB": 14.19, "kvCacheGiB": 0},
    }


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (-0.0, "0"), (-0.001, "0"), (0.5, "0.5"), (2.999, "3")])
def test_figures_are_written_as_the_api_server_gives_them_back(value: float, text: str) -> None:
    found = document(Plan(Fit.FITS, "", weights_total_gib=value, error_band=value, max_concurrency=value))
    assert json.dumps(found["weightsGiB"]) == json.dumps(found["maxConcurrency"]) == text


def test_no_text_of_a_plan_is_longer_than_the_crd_allows() -> None:
    line = Line("x" * 2000, 1.0, "y" * 2000, "z" * 2000)
    remedy = Remedy("c" * 9000, (("batching.maxModelLen", 1),), "g", Fit.FITS, 1, 1)
    long = Plan(Fit.DOES_NOT_FIT, "r" * 9000, ("m" * 9000,) * 99, explanation=(line,) * 99, remedies=(remedy,) * 99)
    found = document(long)
    assert PlanStatus.model_validate(found).verdict == "DoesNotFit"
    assert len(json.dumps(found)) < 150_000


def test_a_patch_has_the_shape_of_the_spec() -> None:
    remedy = Remedy("", (("batching.maxModelLen", 4096), ("precision.kvCache", "fp8")), None, Fit.FITS, 1, 1)
    other = Remedy("", (), "NVIDIA-L4", Fit.FITS, 1, 1)
    words = Remedy("buy another checkpoint", (), None, Fit.FITS, 1, 1)
    found = document(Plan(Fit.DOES_NOT_FIT, "", remedies=(remedy, other, words)))["remedies"]
    assert [json.loads(each["patch"])["spec"] if "patch" in each else None for each in found] == [
        {"batching": {"maxModelLen": 4096}, "precision": {"kvCache": "fp8"}},
        {"accelerator": {"products": ["NVIDIA-L4"]}},
        None,
    ]
