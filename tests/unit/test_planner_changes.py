"""Which changes are thought of for a request, and which can do nothing for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from llmservice_operator.planner import changes
from llmservice_operator.planner.changes import Alternatives, ChangeKind
from llmservice_operator.planner.plan import Draft, Fit, Plan, Request

from tests.unit.test_planner_remedies import ON_CPUS, OTHERS, asked, remedied

HOPEFUL = Plan(
    Fit.DOES_NOT_FIT,
    "",
    memory_gib=24.0,
    budget_gib=20.0,
    weights_gib=16.0,
    activation_gib=2.0,
    graph_gib=1.0,
    kv_cache_gib=4.0,
    margin_gib=-0.1,
    error_band_gib=0.1,
    max_model_len=9000,
    requested_max_model_len=32768,
)
"""So little is missing that every change may do."""
R1 = asked("deepseek-r1", "NVIDIA-H100-80GB-HBM3")

POSSIBLE = {
    "a shorter length": (asked("llama-3.1-8b", "NVIDIA-L4"), changes.shorter),
    "smaller batches": (asked("llama-3.1-8b", "NVIDIA-H100-80GB-HBM3"), changes.smaller_batches),
    "more of the GPU": (asked("llama-3.1-8b", "NVIDIA-L4"), changes.more_of_the_gpu),
    "an fp8 cache on Ampere": (asked("llama-3.1-8b", "NVIDIA-A40"), changes.fp8_cache),
    "an fp8 cache of latent attention on Ada": (asked("deepseek-v2-lite", "NVIDIA-L40S"), changes.fp8_cache),
    "an fp8 cache on an MI300X": (asked("llama-3.1-8b", "MI300X"), changes.fp8_cache),
    "an fp8 cache on CPUs": (ON_CPUS, changes.fp8_cache),
    "no graphs": (asked("llama-3.1-8b", "NVIDIA-L4"), changes.without_graphs),
    "fp8 weights on Turing": (asked("qwen2.5-7b", "Tesla-T4"), changes.fp8_weights),
    "fp8 weights on an MI300X": (asked("qwen2.5-7b", "MI300X"), changes.fp8_weights),
    "another checkpoint": (asked("qwen2.5-7b", "Tesla-T4"), changes.int4_checkpoint),
    "ranks": (asked("llama-3.1-8b", "NVIDIA-L4"), changes.more_ranks),
    "stages": (asked("llama-3.1-8b", "NVIDIA-L4"), changes.more_stages),
    "stages of a compiled engine on CPUs": (ON_CPUS, changes.more_stages),
    "another GPU": (asked("llama-3.1-8b", "NVIDIA-L4"), changes.another_gpu),
}
IMPOSSIBLE = {
    "a shorter length than what is chosen by itself": (
        asked("llama-3.1-8b", "NVIDIA-L4", max_model_len="auto"),
        changes.shorter,
    ),
    "smaller batches than small ones": (
        asked("llama-3.1-8b", "NVIDIA-L4", max_num_seqs=16, max_num_batched_tokens=512),
        changes.smaller_batches,
    ),
    "batches that are too small for guesses": (
        *(asked("llama-3.1-8b", "NVIDIA-L4", max_num_seqs=256, draft=Draft("ngram", 40)),),
        changes.smaller_batches,
    ),
    "more than nearly all of the GPU": (
        replace(asked("llama-3.1-8b", "NVIDIA-L4", kv_cache_memory_bytes=2**30)),
        changes.more_of_the_gpu,
    ),
    "a share of a CPU": (ON_CPUS, changes.more_of_the_gpu),
    "an fp8 cache on Turing": (asked("llama-3.1-8b", "Tesla-T4"), changes.fp8_cache),
    "an fp8 cache of latent attention on Ampere": (asked("deepseek-v2-lite", "NVIDIA-A40"), changes.fp8_cache),
    "an fp8 cache on an MI200": (asked("llama-3.1-8b", "MI210"), changes.fp8_cache),
    "an fp8 cache twice": (asked("llama-3.1-8b", "NVIDIA-L4", kv_cache_dtype="fp8"), changes.fp8_cache),
    "graphs that are off": (asked("llama-3.1-8b", "NVIDIA-L4", enforce_eager=True), changes.without_graphs),
    "graphs that were asked for": (asked("llama-3.1-8b", "NVIDIA-L4", cuda_graphs="full"), changes.without_graphs),
    "fp8 weights on Volta": (asked("qwen2.5-7b", "Tesla-V100-SXM2-16GB"), changes.fp8_weights),
    "fp8 weights on an MI200": (asked("qwen2.5-7b", "MI210"), changes.fp8_weights),
    "fp8 weights of a quantized checkpoint": (R1, changes.fp8_weights),
    "fp8 weights beside a method": (
        asked("qwen2.5-7b", "Tesla-T4", quantization="fp8_per_tensor"),
        changes.fp8_weights,
    ),
    "fp8 weights twice": (asked("qwen2.5-7b", "Tesla-T4", weights="fp8"), changes.fp8_weights),
    "another checkpoint of a quantized one": (R1, changes.int4_checkpoint),
    "another checkpoint on Volta": (asked("qwen2.5-7b", "Tesla-V100-SXM2-16GB"), changes.int4_checkpoint),
    "ranks on slices": (asked("llama-3.1-8b", "NVIDIA-H100-80GB-HBM3-MIG-1g.20gb"), changes.more_ranks),
    "ranks that heads do not divide among": (
        asked("qwen2.5-7b", "NVIDIA-L4", tensor_parallel_size=4),
        changes.more_ranks,
    ),
    "stages of an eager engine on CPUs": (replace(ON_CPUS, enforce_eager=True), changes.more_stages),
    "more stages than layers": (asked("qwen2.5-7b", "NVIDIA-L4", pipeline_parallel_size=16), changes.more_stages),
    "another GPU for CPUs": (ON_CPUS, changes.another_gpu),
    "NVIDIA's for AMD's": (asked("llama-3.1-8b", "MI210"), changes.another_gpu),
    "a smaller GPU": (asked("llama-3.1-8b", "NVIDIA-B200"), changes.another_gpu),
}


@pytest.mark.parametrize(("request_", "kind"), POSSIBLE.values(), ids=POSSIBLE)
def test_what_can_work_is_thought_of(request_: Request, kind: ChangeKind) -> None:
    assert next(kind(request_, HOPEFUL, Alternatives(OTHERS, 64)), None) is not None


@pytest.mark.parametrize(("request_", "kind"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_work_is_not(request_: Request, kind: ChangeKind) -> None:
    assert next(kind(request_, HOPEFUL, Alternatives(OTHERS, 64)), None) is None


@pytest.mark.parametrize("most", [1, 2, 4])
def test_a_replica_has_no_more_gpus_than_can_be_had(most: int) -> None:
    for remedy in remedied(asked("llama-3.1-70b", "NVIDIA-L40S"), most_gpus=most).remedies:
        sizes = [value for path, value in remedy.patch if path.startswith("parallelism.")]
        assert not sizes or (isinstance(sizes[0], int) and sizes[0] <= most)
