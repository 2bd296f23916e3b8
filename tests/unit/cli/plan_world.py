"""Plans made by hand, for what is done with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from llmservice_api.service import LLMService
from llmservice_cli.plan.answers import Answer
from llmservice_cli.plan.questions import NAMELESS, Question
from llmservice_planner.plan import Device, Fit, Line, Plan, Remedy, Request

FIXTURES = Path(__file__).parents[1] / "fixtures" / "plan"
L4 = Device("NVIDIA-L4", 22.03, (8, 9))

FITS = Plan(
    verdict=Fit.FITS,
    reason="NVIDIA-L4: 4.01 GiB of KV cache on each GPU; one request of 8192 tokens needs 1.00 GiB.",
    gpu="NVIDIA-L4",
    memory_gib=22.03,
    budget_gib=20.2676,
    weights_gib=14.9889,
    non_torch_gib=0.3,
    activation_gib=0.444,
    graph_gib=0.5256,
    kv_cache_gib=4.0091,
    kv_bytes_per_token=131072.0,
    kv_cache_tokens=32832,
    block_size=16,
    num_blocks=2052,
    max_model_len=27760,
    requested_max_model_len=8192,
    max_concurrency=4.0078,
    recommended_max_num_seqs=16,
    error_band=0.15465,
    error_band_gib=0.62,
    margin_gib=3.0091,
    weights_total_gib=14.9889,
    kv_cache_total_gib=4.0091,
    naive_attention_gib=4.0,
    flash_attention_gib=0.0625,
    explanation=(
        Line("budget", 20.2676, "22.03 GiB x 0.92", "--gpu-memory-utilization"),
        Line("weights", 14.9889, "8,030,261,248 parameters x 2 bytes"),
        Line("KV tokens", None, "32832 tokens in 2052 blocks: 131072 bytes a token, blocks of 16"),
    ),
)
SHORTER = Remedy(
    change="set spec.batching.maxModelLen to 26624",
    patch=(("batching.maxModelLen", 26624),),
    gpu=None,
    verdict=Fit.FITS,
    max_model_len=27760,
    kv_cache_tokens=32832,
)
FP8 = Remedy(
    change="set spec.precision.weights to fp8, and set spec.precision.kvCache to fp8",
    patch=(("precision.weights", "fp8"), ("precision.kvCache", "fp8")),
    gpu=None,
    verdict=Fit.FITS,
    max_model_len=131072,
    kv_cache_tokens=171000,
)
INT4 = Remedy(
    change="name an int4 checkpoint of the model (AWQ or GPTQ) in spec.model.uri",
    patch=(),
    gpu=None,
    verdict=Fit.TIGHT,
    max_model_len=None,
    kv_cache_tokens=111000,
)
L40S = Remedy(
    change="take NVIDIA-L40S (spec.accelerator.products)",
    patch=(("accelerator.products", ("NVIDIA-L40S",)),),
    gpu="NVIDIA-L40S",
    verdict=Fit.FITS,
    max_model_len=131072,
    kv_cache_tokens=201000,
)
DOES_NOT_FIT = replace(
    FITS,
    verdict=Fit.DOES_NOT_FIT,
    reason="NVIDIA-L4: 4.01 GiB of KV cache on each GPU; one request of 131072 tokens needs 16.00 GiB. The longest "
    "request that fits has 27760 tokens.",
    gpus=2,
    requested_max_model_len=131072,
    max_concurrency=0.25,
    margin_gib=-11.9909,
    weights_total_gib=29.9778,
    kv_cache_total_gib=8.0182,
    remedies=(SHORTER, FP8, L40S),
)
NOTHING_LEFT = replace(
    FITS,
    verdict=Fit.DOES_NOT_FIT,
    reason="Tesla-T4: nothing is left for the KV cache: weights and overheads take 16.29 GiB of the 13.40 GiB.",
    gpu="Tesla-T4",
    memory_gib=14.56,
    budget_gib=13.3952,
    kv_cache_gib=-2.8948,
    kv_cache_tokens=0,
    num_blocks=0,
    max_model_len=0,
    max_concurrency=0.0,
    margin_gib=-18.8948,
    remedies=(INT4,),
)
UNKNOWN = Plan(
    verdict=Fit.UNKNOWN,
    reason="Not known: a GPU and its memory.",
    missing=("a GPU and its memory", "vocab_size"),
    gpus=2,
)


def answer(plan: Plan, *, service: str | None = None, namespace: str | None = None, **question: Any) -> Answer:
    """A plan as the answer to a question."""
    request = Request(architecture=None, device=L4)
    manifest = None if service is None else {"metadata": {"name": service, "namespace": namespace}}
    served = {**NAMELESS, "metadata": {"name": service or "planned", "namespace": "default"}}
    return Answer(Question(request, LLMService.from_object(served), manifest=manifest, **question), request, plan)
