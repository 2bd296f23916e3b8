"""Optional fields that a first manifest mentions in comments, with the figures of the plan where there is one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from llmservice_operator.planner.plan import Fit

from llmservice_cli.plan.answers import Answer, plan_of
from llmservice_cli.plan.compare import refusal
from llmservice_cli.plan.models import REMOTE

from .choice import Choice
from .written import Hint

ON_TOP = 1.25
"""Of the weights: what a cache has room for."""


def hints(choice: Choice) -> tuple[Hint, ...]:
    """None about a field that the manifest has; each is admitted once it is uncommented alone."""
    return tuple(_hints(choice))


def _hints(choice: Choice) -> Iterator[Hint]:
    spec, found = choice.manifest["spec"], choice.answer
    model = spec["model"]
    if "hfTokenSecretRef" not in model and str(model["uri"]).startswith("hf://"):
        yield Hint("model.hfTokenSecretRef", {"name": "hf-token", "key": "token"}, "For a gated or private model.")
    if "cache" not in model and str(model["uri"]).startswith(REMOTE):
        size = math.ceil(found.plan.weights_total_gib * ON_TOP) if found and found.plan.weights_total_gib else 50
        yield Hint(
            "model.cache.size", f"{max(1, size)}Gi", "Keeps the model's files in a volume: later starts load no more."
        )
    if found is not None and "precision" not in spec:
        yield from _fp8(found)
    sequences = found.plan.recommended_max_num_seqs if found and found.plan.verdict is Fit.FITS else None
    if sequences and "maxNumSeqs" not in (spec.get("batching") or {}):
        why = "Requests that are computed at once; by default vLLM decides."
        yield Hint("batching.maxNumSeqs", sequences, why)
    if "scaling" not in spec:
        why = "Replicas by the load, and none without requests; scaling.replicas is for a fixed number."
        yield Hint("scaling.autoscaling", {"minReplicas": 0, "maxReplicas": 2}, why)
    if "endpoint" not in spec:
        why = "Clients then need one of the keys of this Secret."
        yield Hint("endpoint.apiKeySecretRef", {"name": "api-keys", "key": "api-key"}, why)


def _fp8(found: Answer) -> Iterator[Hint]:
    """Half of the weights' memory, where they are whole and the GPU computes with fp8."""
    request, plan = found.request, found.plan
    model = request.architecture
    if model is None or model.quantization is not None or request.device is None or request.device.is_cpu:
        return
    asked = replace(request, weights="fp8")
    if refusal(asked) is not None:
        return
    smaller = plan_of(found.question, asked)
    if plan.weights_gib and smaller.weights_gib and smaller.kv_cache_tokens:
        why = (
            f"Weights of {smaller.weights_gib:.1f} instead of {plan.weights_gib:.1f} GiB on each GPU, and a KV cache "
            f"of {smaller.kv_cache_tokens:,} instead of {plan.kv_cache_tokens or 0:,} tokens; answers may get worse."
        )
        yield Hint("precision.weights", "fp8", why)
