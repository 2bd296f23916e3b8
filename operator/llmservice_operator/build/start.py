"""The start budget of a new revision, from its plan and from the earlier starts in the status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmservice_operator.api.service import LLMService
from llmservice_operator.build.sources import fetched
from llmservice_operator.planner import start
from llmservice_operator.planner.start import Starting

Json = Mapping[str, Any]


def start_plan(llm: LLMService, plan: Json | None) -> dict[str, Any]:
    """Start budget and steps, recorded with the revision and used by its template. `plan` is status.plan."""
    budget = start.plan(_starting(llm, plan))
    steps = [{"name": step.name, "seconds": step.seconds, "formula": step.formula} for step in budget.steps]
    usual = {} if budget.usual_seconds is None else {"usualSeconds": budget.usual_seconds}
    return {"budgetSeconds": budget.budget_seconds, **usual, "steps": steps}


def _starting(llm: LLMService, plan: Json | None) -> Starting:
    """The inputs of the budget."""
    spec, weights = llm.spec, (plan or {}).get("weightsGiB")
    return Starting(
        bytes_to_read=None if weights is None else round(weights * 2**30),
        is_cpu=spec.accelerator.type == "cpu",
        compiles=not spec.compilation.enforce_eager,
        ranks=spec.parallelism.accelerators,
        measured_seconds=_measured(llm) if _is_comparable(llm, plan or {}) else None,
    )


def _is_comparable(llm: LLMService, plan: Json) -> bool:
    """Whether status.measured is of weights of this size, on this hardware, compiled alike."""
    previous, effective = llm.status.get("plan") or {}, llm.status.get("effective") or {}
    return (
        previous.get("weightsGiB") == plan.get("weightsGiB")
        and previous.get("gpu") == plan.get("gpu")
        and (effective.get("accelerator") or {}).get("type") == llm.spec.accelerator.type
        and (effective.get("compilation") or {}).get("enforceEager") == llm.spec.compilation.enforce_eager
        and (effective.get("model") or {}).get("servedModelNames") == list(llm.served_model_names)
    )


def _measured(llm: LLMService) -> float | None:
    """Seconds of the earlier start without its fetch, which the budget does not cover."""
    measured: Json = llm.status.get("measured") or {}
    if measured.get("startCache") == "Reused":
        return None  # a start that compiles takes longer
    if not fetched(llm.spec):
        return measured.get("startSeconds")
    parts = [measured.get("modelLoadSeconds"), measured.get("engineInitSeconds")]
    return None if None in parts else start.ENGINE_SECONDS + sum(part for part in parts if part is not None)
