"""Which of vLLM's two model runners takes a model: they profile themselves differently before they size the KV cache.

From 0.32 on the second one (vllm/v1/worker/gpu/model_runner.py) takes every model; from 0.28 to 0.31 dense text models
that are not quantized.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_vllm.facts import facts

from llmservice_operator.planner.constants import Constant, Constants
from llmservice_operator.planner.model.architecture import Architecture, Kind
from llmservice_operator.planner.plan import Request


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """How a runner profiles itself."""

    has_bare_logits: bool
    """Whether its dummy step asks for no sampling parameters (_dummy_sampler_run), so that logits are not copied."""
    graphs_in_budget: bool
    """Whether CUDA graphs are estimated and taken out of the budget before the KV cache is sized."""

    def sampler_bytes(self, constants: Constants) -> Constant:
        """Bytes per sequence and token of the vocabulary while it samples."""
        return constants.sampler_bytes_bare if self.has_bare_logits else constants.sampler_bytes_plain


_FIRST = ModelRunner(has_bare_logits=False, graphs_in_budget=True)
_SECOND_BEFORE_032 = ModelRunner(has_bare_logits=True, graphs_in_budget=False)
_SECOND = ModelRunner(has_bare_logits=True, graphs_in_budget=True)


def model_runner(request: Request, model: Architecture) -> ModelRunner:
    """The runner that the request's vLLM chooses for the model."""
    known = facts(request.vllm_version)
    if request.draft is not None and request.draft.method in known.first_runner_methods:
        return _FIRST
    if known.second_runner_takes_all:
        return _SECOND
    return _SECOND_BEFORE_032 if _is_dense_text(model) and not _is_quantized(request, model) else _FIRST


def _is_quantized(request: Request, model: Architecture) -> bool:
    is_stated = request.quantization is not None or request.weights in ("fp8", "int8", "int4")
    return is_stated or model.quantization is not None


def _is_dense_text(model: Architecture) -> bool:
    return not model.encoder.values and all(
        layer.attention.kind is not Kind.STATE and not layer.feed_forward.experts for layer, _ in model.distinct_layers
    )
