"""The scheduler's limits by device, and how far ahead it works."""

from __future__ import annotations

import pytest
from llmservice_planner.batching import Batching, batching, steps_in_flight
from llmservice_planner.model.architecture import Architecture
from llmservice_planner.plan import Device, Draft, Request
from llmservice_planner.splits import layers_of_stages

MODEL = Architecture("LlamaForCausalLM", 64, 64, (), max_position_embeddings=8192)
T4, A100 = Device("Tesla T4", 14.6, (7, 5)), Device("NVIDIA A100-SXM4-80GB", 79.2, (8, 0))
H100, B200 = Device("NVIDIA H100 80GB HBM3", 79.1, (9, 0)), Device("NVIDIA B200", 178.4, (10, 0))
GB10 = Device("NVIDIA GB10", 119.7, (12, 1))
CPU = Device("cpu", 4, is_cpu=True)

LIMITS: dict[str, tuple[Request, Batching]] = {
    "no device": (Request(MODEL, None), Batching(256, 2048)),
    "a small GPU": (Request(MODEL, T4), Batching(256, 2048)),
    "an A100, for all its memory": (Request(MODEL, A100), Batching(256, 2048)),
    "an H100": (Request(MODEL, H100), Batching(1024, 8192)),
    "a GB10, for all its memory": (Request(MODEL, GB10, vllm_version="0.33.0"), Batching(256, 2048)),
    "a GB10 before that": (Request(MODEL, GB10, vllm_version="0.32.0"), Batching(1024, 8192)),
    "a B200": (Request(MODEL, B200), Batching(1024, 16384)),
    "a CPU": (Request(MODEL, CPU), Batching(128, 2048)),
    "CPUs in parallel": (Request(MODEL, CPU, tensor_parallel_size=2, pipeline_parallel_size=2), Batching(512, 8192)),
    "whole prompts": (Request(MODEL, CPU, chunked_prefill=False), Batching(128, 8192)),
    "asked for": (Request(MODEL, H100, max_num_seqs=8, max_num_batched_tokens=512), Batching(8, 512)),
    "no more than all sequences have": (Request(MODEL, H100, max_num_seqs=4, max_model_len=1024), Batching(4, 4096)),
    "auto: the model's own length": (Request(MODEL, B200, max_num_seqs=1, max_model_len="auto"), Batching(1, 8192)),
    "a model without a limit": (Request(None, H100, max_num_seqs=1), Batching(1, 8192)),
}


@pytest.mark.parametrize(("request_", "expected"), LIMITS.values(), ids=LIMITS)
def test_limits(request_: Request, expected: Batching) -> None:
    assert batching(request_) == expected


STEPS: dict[str, tuple[Request, int]] = {
    "a GPU": (Request(MODEL, H100), 2),
    "stages": (Request(MODEL, H100, pipeline_parallel_size=4), 5),
    "a CPU": (Request(MODEL, CPU), 1),
    "stages on CPUs": (Request(MODEL, CPU, pipeline_parallel_size=2), 2),
    "guesses that only the CPU can make": (Request(MODEL, H100, draft=Draft("ngram", 3)), 1),
    "the same, made ahead": (Request(MODEL, H100, draft=Draft("ngram", 3), vllm_version="0.33.0"), 2),
    "guesses of a model": (Request(MODEL, H100, draft=Draft("eagle3", 3)), 2),
}


@pytest.mark.parametrize(("request_", "expected"), STEPS.values(), ids=STEPS)
def test_steps_in_flight(request_: Request, expected: int) -> None:
    assert steps_in_flight(request_) == expected


SHARES: dict[tuple[int, int], tuple[int, ...]] = {
    (32, 1): (32,),
    (32, 4): (8, 8, 8, 8),
    (5, 2): (3, 2),
    (7, 3): (2, 3, 2),
    (62, 4): (15, 16, 16, 15),
    (61, 8): (7, 7, 8, 8, 8, 8, 8, 7),
    (63, 4): (16, 16, 16, 15),
}


@pytest.mark.parametrize(("layers", "stages", "expected"), [(*asked, shares) for asked, shares in SHARES.items()])
def test_the_last_stage_has_the_fewest_layers(layers: int, stages: int, expected: tuple[int, ...]) -> None:
    assert layers_of_stages(layers, stages) == expected
