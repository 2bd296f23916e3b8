"""Which changes are thought of for a request, and which can do nothing for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_planner import changes
from llmservice_planner.changes import Alternatives, ChangeKind
from llmservice_planner.plan import Draft, Fit, Plan, Request

from tests.unit.planner.test_remedies import ON_CPUS, OTHERS, asked, remedied

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
T4, V100, L4, H100 = "Tesla-T4", "Tesla-V100-SXM2-16GB", "NVIDIA-L4", "NVIDIA-H100-80GB-HBM3"
MIG = "NVIDIA-H100-80GB-HBM3-MIG-1g.20gb"
LITE = "deepseek-v2-lite"
R1 = asked("deepseek-r1", H100)


def llama(gpu: str = L4, **settings: Any) -> Request:
    return asked("llama-3.1-8b", gpu, **settings)


def qwen(gpu: str = T4, **settings: Any) -> Request:
    return asked("qwen2.5-7b", gpu, **settings)


Cases = dict[str, Request]
KINDS: dict[ChangeKind, tuple[Cases, Cases]] = {
    # where it can help, and where it cannot
    changes.shorter_length: ({"": llama()}, {"what is chosen by itself": llama(max_model_len="auto")}),
    changes.smaller_batches: (
        {"": llama(H100)},
        {
            "small ones": llama(max_num_seqs=16, max_num_batched_tokens=512),
            "too small for guesses": llama(max_num_seqs=256, draft=Draft("ngram", 40)),
        },
    ),
    changes.higher_utilization: (
        {"": llama()},
        {"a given cache": llama(kv_cache_memory_bytes=2**30), "a CPU": ON_CPUS},
    ),
    changes.fp8_cache: (
        {
            "Ampere": llama("NVIDIA-A40"),
            "latent, Ada": asked(LITE, "NVIDIA-L40S"),
            "MI300X": llama("MI300X"),
            "CPU": ON_CPUS,
        },
        {
            "Turing": llama(T4),
            "latent, Ampere": asked(LITE, "NVIDIA-A40"),
            "MI200": llama("MI210"),
            "twice": llama(kv_cache_dtype="fp8"),
        },
    ),
    changes.without_graphs: ({"": llama()}, {"off": llama(enforce_eager=True), "stated": llama(cuda_graphs="full")}),
    changes.fp8_weights: (
        {"Turing": qwen(), "MI300X": qwen("MI300X")},
        {
            "Volta": qwen(V100),
            "MI200": qwen("MI210"),
            "quantized": R1,
            "beside a method": qwen(quantization="fp8_per_tensor"),
            "twice": qwen(weights="fp8"),
        },
    ),
    changes.int4_checkpoint: ({"": qwen()}, {"quantized": R1, "Volta": qwen(V100)}),
    changes.more_ranks: ({"": llama()}, {"slices": llama(MIG), "heads": qwen(L4, tensor_parallel_size=4)}),
    changes.more_stages: (
        {"": llama(), "CPU": ON_CPUS},
        {"eager CPU": replace(ON_CPUS, enforce_eager=True), "layers": qwen(L4, pipeline_parallel_size=16)},
    ),
    changes.another_gpu: (
        {"": llama()},
        {"CPU": ON_CPUS, "AMD": llama("MI210"), "a smaller one": llama("NVIDIA-B200")},
    ),
}
CASES = [
    pytest.param(kind, request, is_possible, id=f"{kind.__name__} {name}".strip())
    for kind, both in KINDS.items()
    for is_possible, some in zip((True, False), both, strict=True)
    for name, request in some.items()
]


@pytest.mark.parametrize(("kind", "request_", "is_possible"), CASES)
def test_only_changes_that_can_help_are_tried(kind: ChangeKind, request_: Request, is_possible: bool) -> None:
    found = next(kind(request_, HOPEFUL, Alternatives(OTHERS, 64)), None)
    assert (found is not None) is is_possible


@pytest.mark.parametrize("most", [1, 2, 4])
def test_a_replica_has_no_more_gpus_than_can_be_had(most: int) -> None:
    for remedy in remedied(asked("llama-3.1-70b", "NVIDIA-L40S"), most_gpus=most).remedies:
        sizes = [value for path, value in remedy.patch if path.startswith("parallelism.")]
        assert not sizes or (isinstance(sizes[0], int) and sizes[0] <= most)
