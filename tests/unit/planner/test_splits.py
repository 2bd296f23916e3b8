"""How a model is split: by experts, which only some models have, and over nodes."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_planner import memory
from llmservice_planner.plan import Fit

from tests.unit.planner.test_remedies import asked

H200 = "NVIDIA-H200"
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "copies of a model without experts": (
        "llama-3.1-8b", {"data_parallel_size": 2},
        "remove parallelism.expertParallel, and set scaling.replicas in place of dataParallelSize.",
    ),
    "slices of it": ("llama-3.1-8b", {"tensor_parallel_size": 2}, "remove parallelism.expertParallel."),
    "another class, by extraArgs": ("llama-3.1-8b", {"tensor_parallel_size": 2, "own_class": False}, ""),
    "experts": ("deepseek-r1", {"data_parallel_size": 16}, ""),
}  # fmt: skip


@pytest.mark.parametrize(("model", "how", "remedy"), CASES.values(), ids=CASES.keys())
def test_models_without_experts_are_not_spread_by_them(model: str, how: dict[str, Any], remedy: str) -> None:
    plan = memory.plan(asked(model, H200, enable_expert_parallel=True, **how))
    assert plan.reason.startswith("The model has no experts to spread") is bool(remedy)
    assert plan.reason.endswith(remedy)
    assert not remedy or plan.verdict is Fit.DOES_NOT_FIT


@pytest.mark.parametrize(("nodes", "is_said"), [(1, False), (2, True)])
def test_what_was_not_measured_between_nodes_is_said(nodes: int, is_said: bool) -> None:
    plan = memory.plan(asked("llama-3.1-8b", H200, tensor_parallel_size=2, nodes=nodes))
    assert any("NCCL" in line.formula for line in plan.explanation) is is_said
