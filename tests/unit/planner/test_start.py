"""How long a start takes, from what there is to read, to compile, and from what was measured before."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_api.service import LLMService
from llmservice_operator.manifests.pod_template import pod_template
from llmservice_operator.manifests.revision import RevisionChoices, StartInputs, StartPlan, start_plan
from llmservice_operator.manifests.revision import expected_start as plan

from tests.unit.decide_world import an_llmservice, spec
from tests.unit.operator.test_build_deployment import SETTINGS

Json = dict[str, Any]
GIB = 2**30


STARTS: dict[str, tuple[StartInputs, int, int | None]] = {
    "a tiny model on a CPU, eager": (StartInputs(0, is_cpu=True, compiles=False), 600, 45),
    "a tiny model on a CPU, compiled": (StartInputs(0, is_cpu=True), 600, 90),
    "7B": (StartInputs(15 * GIB), 760, 190),
    "70B on four GPUs": (StartInputs(131 * GIB, ranks=4), 3790, 685),
    "more than a pod may take": (StartInputs(700 * GIB, ranks=8), 7200, 3015),
    "nothing is known": (StartInputs(None), 3600, None),
    "only what was measured": (StartInputs(None, measured_seconds=77.3), 3600, 80),
    "measured, and slow": (StartInputs(None, measured_seconds=1500), 4500, 1500),
    "measured, and quick": (StartInputs(15 * GIB, measured_seconds=61.2), 760, 65),
    "measured, and slower than estimated": (StartInputs(15 * GIB, measured_seconds=500), 1500, 500),
}


@pytest.mark.parametrize(("starting", "budget", "usual"), STARTS.values(), ids=STARTS)
def test_plan(starting: StartInputs, budget: int, usual: int | None) -> None:
    found = plan(starting)
    assert (found.budget_seconds, found.usual_seconds) == (budget, usual)


def test_each_step_is_explained() -> None:
    found = plan(StartInputs(15 * GIB, ranks=2, measured_seconds=100))
    steps = {step.name: step.seconds for step in found.steps}
    assert steps == {"engine": 45, "ranks": 20, "compilation": 80, "weights": 61, "measured": 100}
    assert "15.00 GiB to read; 250 MiB/s is usual, 40 MiB/s is allowed for" in found.steps[3].formula


def test_more_to_read_never_shortens_a_budget() -> None:
    def budgets(**more: Any) -> list[StartPlan]:
        return [plan(StartInputs(gib * GIB, **more)) for gib in range(0, 800, 80)]

    for found in (budgets(), budgets(measured_seconds=900)):
        seconds = [each.budget_seconds for each in found]
        assert seconds == sorted(seconds)
        assert all((each.usual_seconds or 0) <= each.budget_seconds for each in found)


PLAN: Json = {"weightsGiB": 15.0, "gpu": "H100"}
MEASURED: Json = {
    "plan": PLAN,
    "measured": {"startSeconds": 400.0, "modelLoadSeconds": 100.0, "engineInitSeconds": 55.0},
    "effective": {"accelerator": {"type": "nvidia"}, "compilation": {"enforceEager": False}},
}


def usual(status: Json, plan: Json | None = PLAN, **sections: object) -> int | None:
    """Of a revision that is made now, of a service with this status."""
    body = an_llmservice(spec(**sections))
    names = list(LLMService.from_object(body).served_model_names)
    effective = {**status.get("effective", {}), "model": {"servedModelNames": names}}
    llm = LLMService.from_object(body | {"status": status | {"effective": effective}})
    seconds = start_plan(llm, plan).get("usualSeconds")
    return None if seconds is None else int(seconds)


MOUNTED: Json = {"uri": "pvc://models/m"}
CASES: list[tuple[str, Json, Json | None, Json, int | None]] = [
    ("the first start", {}, PLAN, {"model": MOUNTED}, 190),
    ("as it was", MEASURED, PLAN, {"model": MOUNTED}, 400),
    ("the fetch does not count", MEASURED, PLAN, {}, 200),
    ("a larger model", MEASURED, PLAN | {"weightsGiB": 131.0}, {"model": MOUNTED}, 665),
    ("another GPU", MEASURED, PLAN | {"gpu": "L4"}, {"model": MOUNTED}, 190),
    ("now eager", MEASURED, PLAN, {"model": MOUNTED, "compilation": {"enforceEager": True}}, 110),
    ("now on CPUs", MEASURED, PLAN, {"model": MOUNTED, "accelerator": {"type": "cpu"}}, 155),
    ("nothing was planned", {}, None, {"model": MOUNTED}, None),
]


@pytest.mark.parametrize(
    ("status", "plan", "sections", "seconds"), [row[1:] for row in CASES], ids=[r[0] for r in CASES]
)
def test_what_was_measured_counts_where_it_is_of_the_same_start(
    status: Json, plan: Json | None, sections: Json, seconds: int | None
) -> None:
    assert usual(status, plan, **sections) == seconds


def arguments(chosen: RevisionChoices) -> list[str]:
    """Of the server, rendered with what was chosen."""
    template = pod_template(LLMService.from_object(an_llmservice(spec())), SETTINGS, chosen)
    return list(template["spec"]["containers"][0]["args"])


def test_it_is_recorded_and_the_record_renders_the_same() -> None:
    chosen = RevisionChoices(start={"budgetSeconds": 760, "usualSeconds": 190, "steps": []})
    assert {"--start-seconds=760", "--usual-seconds=190"} <= set(arguments(chosen))
    assert arguments(RevisionChoices.from_document(chosen.to_document())) == arguments(chosen)


def test_a_record_of_an_earlier_release_renders_as_it_did() -> None:
    args = arguments(RevisionChoices.from_document({"gpu": "H100"}))
    assert not [arg for arg in args if arg.startswith(("--start-seconds", "--usual-seconds"))]
