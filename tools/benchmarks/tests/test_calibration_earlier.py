"""Start-ups of earlier vLLM versions as questions to today's planner."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llmservice_planner import memory
from llmservice_planner.batching import Batching, batching
from llmservice_planner.kv_cache import layout
from llmservice_planner.model import config_json
from llmservice_planner.plan import GIB, Device, Draft, Fit, Plan, Request
from llmservice_planner.weights import weigh

from benchmarks.calibration.earlier import ALL, as_today, constants_of, generation, packed_tokens, printed
from benchmarks.calibration.records import HERE, config
from tests.unit.planner.test_kv_cache import DEEPSEEK, GEMMA_27B, ask, latent, model
from tests.unit.planner_models import architecture, gpu

LITE = model(27, latent(16))
LLAMA = architecture("llama-3.1-8b")
L4 = Device("NVIDIA-L4", 22.03, (8, 9))


def plan(request: Request, version: str) -> Plan:
    made = as_today(request, version)
    return printed(memory.plan(made, constants_of(ALL, version, made)), version)


GENERATIONS: dict[str, tuple[str | None, ...]] = {
    "V1, 0.32 on": (None, "0.32.0", "v0.32.0", "1.0.0", "nightly", "2026"),
    "V1, 0.27 to 0.31": ("2026-08-16",),
    "V1, 0.23 to 0.26": ("0.26.1rc1.dev608",),
    "V1, 0.21 to 0.22": ("2026 (>=0.21)", "June 2026 (>=0.22)"),
    "V1, 0.20": ("0.20.0 (V1)",),
    "V1, 0.19": ("commit bfde49e28 (~0.19)",),
    "V1, 0.10 to 0.18": ("0.10.x (Aug 2025)", "2026-02, V1 (version not stated)", "Mar 2026 (~0.18)"),
    "V1, 0.9.2": ("0.9.2",),
    "V1, 0.8.5 to 0.9.1": ("0.8.5.dev22 (V1)", "0.9.x (Jul 2025, V1)"),
    "V1, 0.8.0 to 0.8.4": ("0.8.3 (V1)", "0.7.1 dev (V1)"),
    "V0, 0.7 on": ("0.7.4.dev382", "0.8.3 (V0)"),
    "V0, 0.6": ("0.6.4.post1",),
    "V0, 0.5.3 to 0.5.5": ("0.5.3 (24 Jul 2024)",),
    "V0, 0.3 to 0.5.2": ("0.3.x (Mar 2024)", "0.4.3-0.5.0 (Jun 2024)"),
    "V0, to 0.2": ("0.2.3 / 0.2.4",),
}


@pytest.mark.parametrize("name", GENERATIONS)
def test_generation(name: str) -> None:
    assert {generation(version).name for version in GENERATIONS[name]} == {name}


LIMITS: dict[str, tuple[str, float, dict[str, Any], Batching]] = {
    "B200 before 0.21": ("0.20", 178.4, {}, Batching(1024, 8192)),
    "the first V1 engines": ("0.8.3 (V1)", 22.03, {}, Batching(1024, 2048)),
    "V0: the longest request": ("0.6", 22.03, {"max_model_len": 20000}, Batching(256, 20000)),
    "V0: at least 2,048": ("0.6", 22.03, {"max_model_len": 512}, Batching(256, 2048)),
    "V0: chunked above 32k": ("0.6", 22.03, {}, Batching(256, 512)),
    "V0 0.7: chunked above 32k": ("0.7", 22.03, {}, Batching(256, 2048)),
    "V0 0.4: never chunked by itself": ("0.4", 22.03, {"max_model_len": 40000}, Batching(256, 40000)),
}


@pytest.mark.parametrize(("version", "gib", "more", "expected"), LIMITS.values(), ids=LIMITS)
def test_limits(version: str, gib: float, more: dict[str, Any], expected: Batching) -> None:
    request = Request(LLAMA, Device("a GPU", gib), **more)
    assert batching(as_today(request, version)) == expected


PER_TOKEN: dict[str, tuple[Request, str, int]] = {
    "DeepSeek-R1 with 0.7: 640 values": (ask(DEEPSEEK), "0.7.3", 61 * 640 * 2),
    "DeepSeek-Coder-V2-Lite with 0.7": (ask(LITE), "0.7.3", 34_560),
    "the same with 0.5, which had no MLA, 2 GPUs": (ask(LITE, tensor_parallel_size=2), "0.5.1", 27 * 8 * 2 * 256 * 2),
    "Gemma-3-27B with 0.8: everything": (ask(GEMMA_27B), "0.8.2", 62 * 16 * 2 * 128 * 2),
}


@pytest.mark.parametrize(("request_", "version", "expected"), PER_TOKEN.values(), ids=PER_TOKEN)
def test_bytes_of_a_token(request_: Request, version: str, expected: int) -> None:
    request = replace(request_, weights_gib=1.0) if version == "0.7.3" else request_
    assert layout(as_today(request, version)).bytes_per_token == expected


MEASURED = [
    pytest.param(facts, id=facts["id"])
    for facts in map(json.loads, (HERE / "startups.jsonl").read_text().splitlines())
    if facts.get("kv_cache_gib") is not None
    and facts.get("kv_cache_tokens") is not None
    # There every rank prints its own memory, and the smallest of four decides.
    and facts["id"] != "vllm21348-qwen3-235b-fp8-4xH100"
]
"""Start-ups that print their cache in GiB and in tokens."""


@pytest.mark.parametrize("facts", MEASURED)
def test_tokens_follow_from_the_printed_memory(facts: dict[str, Any]) -> None:
    """To the rounding of the GiB, which are printed with two places."""
    models = json.loads((HERE / "models.json").read_text())
    length = facts["max_model_len"]
    request = Request(
        config_json.read(models[facts["model"]]),
        Device(facts.get("gpu") or "GPU", facts.get("gpu_memory_gib_reported") or 24.0),
        dtype=facts.get("dtype") or "auto",
        kv_cache_dtype=facts.get("kv_cache_dtype") or "auto",
        tensor_parallel_size=facts.get("tp") or 1,
        pipeline_parallel_size=facts.get("pp") or 1,
        max_model_len=length,
    )
    made = layout(as_today(request, facts.get("vllm_version")))
    least, most = (int((facts["kv_cache_gib"] + rounding) * GIB) for rounding in (-0.005, 0.005))
    assert made.capacity(least, length).tokens <= facts["kv_cache_tokens"] <= made.capacity(most, length).tokens
    if facts.get("estimated_max_len") is not None:
        # Before 0.26 no block was left out of the check (vLLM PR 47272).
        spare = made.bytes_per_block
        assert made.longest(least + spare, length) <= facts["estimated_max_len"] <= made.longest(most + spare, length)


PACKED = {
    # Two H20 (vllm#51041): the longest request, GiB, steps of 8,192 tokens in flight, and the tokens that were printed.
    "0731": (121_344, 7.71, 2, 150_992),
    "preview": (912_128, 7.01, 1, 1_009_661),
}


@pytest.mark.parametrize(("length", "gib", "steps", "tokens"), PACKED.values(), ids=PACKED)
def test_packed_groups_counted_by_their_own_bytes(length: int, gib: float, steps: int, tokens: int) -> None:
    """To the rounding of the GiB."""
    flash = config_json.read(config("deepseek-ai/DeepSeek-V4-Flash"))
    device = Device("NVIDIA-H20", 95.0, (9, 0))
    # A plan takes two steps for granted.
    request = Request(flash, device, max_model_len=length, max_num_batched_tokens=4096 * steps, draft=Draft("mtp", 1))
    least, most = (packed_tokens(request, int((gib + rounding) * GIB)) for rounding in (-0.005, 0.005))
    assert least <= tokens <= most


def test_blocks_were_divided_evenly_among_groups() -> None:
    made = Plan(Fit.FITS, "", kv_cache_tokens=159_961, num_blocks=10_000, kv_groups=2, block_size=16)
    assert [printed(made, version).kv_cache_tokens for version in ("0.19.0", "0.20.0")] == [80_000, 159_961]


@pytest.mark.parametrize(
    ("version", "length", "gib", "share"),
    # 8B at 20,000 and at 29,000 tokens (vllm#10517), and the sampler's floor (vllm#10511)
    [("0.6", 20000, 2.07, 0.08), ("0.6", 29000, 2.99, 0.08), ("0.6.5", 8192, 1.26, 0.15)],
)
def test_activation_peaks_that_were_printed(version: str, length: int, gib: float, share: float) -> None:
    found = plan(Request(LLAMA, L4, max_model_len=length), version)
    assert found.activation_gib == pytest.approx(gib, rel=share)


def test_before_021_graphs_came_on_top_and_the_share_was_smaller() -> None:
    found = plan(Request(LLAMA, L4), "0.20.0")
    parts = (found.weights_gib, found.non_torch_gib, found.activation_gib, found.kv_cache_gib)
    assert sum(part for part in parts if part is not None) == pytest.approx(22.03 * 0.9)


def test_v0_did_not_ask_what_is_free_and_old_images_served_old_gpus() -> None:
    """A 22 GB A10 served with 0.98."""
    request = Request(LLAMA, Device("NVIDIA-A10", 22.03, (8, 6)), max_model_len=2048)
    assert plan(replace(request, gpu_memory_utilization=0.98), "0.7.3").verdict is Fit.FITS
    old = replace(request, device=gpu("Tesla-V100-SXM2-32GB"))
    assert plan(old, "0.18.0").verdict is Fit.FITS
    assert "compute capability" in plan(old, "0.32.0").reason


@pytest.mark.parametrize(("version", "gib"), [("0.7.3", 4.05), ("0.8.4 (V1)", 0.0), (None, 0.0)])
def test_v0_multiplied_mla_out(version: str | None, gib: float) -> None:
    """671B in fp8 on 8 GPUs took 83.88 GiB each with such an engine, of which 79.6 are the checkpoint's."""
    request = Request(
        architecture("deepseek-r1"), Device("H200", 140.0, (9, 0)), quantization="fp8", tensor_parallel_size=8
    )
    added = weigh(as_today(request, version)).per_gpu - weigh(request).per_gpu
    assert added / GIB == pytest.approx(gib, abs=0.05)
