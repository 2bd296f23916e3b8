"""Which of vLLM's two model runners takes a model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from llmservice_planner.overheads import model_runner
from llmservice_planner.plan import Draft, Request

from tests.unit.planner.test_weights import EXPERTS
from tests.unit.planner_models import architecture

LLAMA_8B = architecture("llama-3.1-8b")

RUNNERS: dict[str, tuple[str | None, Request, bool, bool]] = {
    "the second runner takes all": ("0.32.0", Request(LLAMA_8B, None), True, True),
    "no version: the default": (None, Request(LLAMA_8B, None), True, True),
    "experts too": ("0.32.0", Request(EXPERTS, None), True, True),
    "quantized ones too": ("0.32.0", Request(LLAMA_8B, None, quantization="awq"), True, True),
    "0.33: all that it can draft": ("0.33.0", Request(LLAMA_8B, None, draft=Draft("ngram")), True, True),
    "but for Medusa": ("0.32.0", Request(LLAMA_8B, None, draft=Draft("medusa")), False, True),
    "to 0.31: dense ones, without graphs": ("0.31.2", Request(LLAMA_8B, None), True, False),
    "to 0.31: no Medusa": ("0.31.2", Request(LLAMA_8B, None, draft=Draft("medusa")), False, True),
    "to 0.31: no experts": ("0.28.0", Request(EXPERTS, None), False, True),
    "to 0.31: not quantized": ("0.28.0", Request(LLAMA_8B, None, weights="fp8"), False, True),
}


@pytest.mark.parametrize(("version", "request_", "bare", "graphs"), RUNNERS.values(), ids=RUNNERS)
def test_which_runner_takes_a_model(version: str | None, request_: Request, bare: bool, graphs: bool) -> None:
    assert request_.architecture is not None
    found = model_runner(replace(request_, vllm_version=version), request_.architecture)
    assert (found.has_bare_logits, found.graphs_in_budget) == (bare, graphs)
