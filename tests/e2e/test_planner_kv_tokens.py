"""The planned KV cache against what vLLM's engine prints when it starts: the same tokens, to the block.

The engine is a process of its own beside the tests, with weights of noise; no cluster takes part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from llmservice_planner.kv_cache import Layout, layout
from llmservice_planner.model import config_json
from llmservice_planner.plan import GIB, Device, Draft, Request

from tests.support.engines import EngineEndedError, printed_kv_cache
from tests.support.host import need_cpu
from tests.support.kv_models import CONFIGS, LENGTH
from tests.support.measured import Record

# torch warns while it is imported; that is its own.
pytestmark = [pytest.mark.full, pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

# No multiple of anything.
MEMORY = 123_456_789
ESTIMATE = re.compile(r"estimated maximum model length is (\d+)")


@dataclass(frozen=True)
class Start:
    """How one model is started."""

    model: str
    arguments: tuple[str, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The same in the planner's words."""
    draft: str = ""
    cpu: tuple[str, ...] = ()
    """Features of the CPU, one of which vLLM needs for it."""


STARTS = {
    "states beside attention": Start("gated delta net"),
    "windows between, two stages": Start(
        "sliding and full",
        ("--pipeline-parallel-size", "2", "--max-num-batched-tokens", "512"),
        {"pipeline_parallel_size": 2, "max_num_batched_tokens": 512},
    ),
    "one key/value head for two ranks, fp8": Start(
        "mqa",
        ("--tensor-parallel-size", "2", "--kv-cache-dtype", "fp8"),
        {"tensor_parallel_size": 2, "kv_cache_dtype": "fp8"},
        cpu=("avx512f", "amx_tile"),
    ),
    "multi-head attention in blocks of 64": Start("mha", ("--block-size", "64"), {"block_size": 64}),
    "multi-query attention": Start("mqa"),
    "grouped queries": Start("gqa"),
    "grouped queries in float32": Start("gqa", ("--dtype", "float32"), {"dtype": "float32"}),
    "five layers on two stages": Start("five layers", ("--pipeline-parallel-size", "2"), {"pipeline_parallel_size": 2}),
    "wide heads, tied embeddings": Start("wide heads, tied"),
    "a sliding window": Start("sliding"),
    "windows between": Start("sliding and full"),
    "windows between, in blocks that they cannot have": Start(
        "sliding and full", ("--block-size", "16"), {"block_size": 16}
    ),
    "chunks between": Start("chunks and full"),
    "windows between, with sinks": Start("sinks"),
    "heads of two widths": Start("heads that differ"),
    "layers that share a cache": Start("layers that share"),
    "latent attention": Start("mla"),
    "experts": Start("moe"),
    "states beside attention, two ranks": Start(
        "gated delta net", ("--tensor-parallel-size", "2"), {"tensor_parallel_size": 2}
    ),
    "Mamba 2 between": Start("mamba 2"),
    "Mamba 2 and layers without attention": Start("mamba 2, float32"),
    "Mamba between": Start("mamba and attention"),
    "Mamba 2 in every layer": Start("attention beside mamba 2"),
    "short convolutions between": Start("short convolution"),
    "Mamba alone": Start("mamba alone"),
    "guesses of a smaller model": Start("gqa", draft="mqa", asked={"draft": Draft("draftModel", 3)}),
}


def folder(model: str, parent: Path) -> Path:
    made = parent / re.sub(r"\W+", "-", model)
    made.mkdir(exist_ok=True)
    (made / "config.json").write_text(json.dumps(CONFIGS[model]))
    return made


def planned(start: Start) -> Layout:
    """On this machine's CPUs."""
    torch = pytest.importorskip("torch", reason="needs the vllm dependency group")
    asked = dict(start.asked)
    if start.draft:
        asked["draft"] = Draft("draftModel", 3, config_json.read(CONFIGS[start.draft]))
    request = Request(config_json.read(CONFIGS[start.model]), Device("cpu", 1, is_cpu=True), **asked)
    return layout(request, amx=torch.cpu._is_amx_tile_supported(), wide_states=torch.cpu._is_avx512_bf16_supported())


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_the_engine_prints_the_planned_tokens(start: Start, tmp_path: Path, record: Record) -> None:
    if start.cpu:
        need_cpu(*start.cpu)
    made = planned(start)
    arguments = ["--kv-cache-memory-bytes", str(MEMORY), *start.arguments]
    if start.draft:
        draft = {"method": "draft_model", "model": str(folder(start.draft, tmp_path)), "num_speculative_tokens": 3}
        arguments += ["--speculative-config", json.dumps(draft)]
    printed = printed_kv_cache(folder(start.model, tmp_path), arguments)
    capacity = made.capacity(MEMORY, LENGTH)
    record(planned=capacity.tokens, printed=printed.tokens, block_size=made.block_size)
    assert printed.length == LENGTH
    assert (capacity.tokens, f"{capacity.max_concurrency:.2f}") == (printed.tokens, printed.concurrency)


def test_the_space_of_cpus_is_the_caches_memory(tmp_path: Path, record: Record) -> None:
    """As pods get it: VLLM_CPU_KVCACHE_SPACE, in GiB."""
    printed = printed_kv_cache(folder("gqa", tmp_path), [], {"VLLM_CPU_KVCACHE_SPACE": "1"})
    capacity = planned(Start("gqa")).capacity(GIB, LENGTH)
    record(planned=capacity.tokens, printed=printed.tokens)
    assert capacity.tokens == printed.tokens


# Memory for some blocks, but not for 4,096 tokens.
LITTLE = {"gqa": 2_000_000, "sliding and full": 3_000_000, "gated delta net": 900_000}


@pytest.mark.parametrize("model", LITTLE)
def test_auto_is_the_planned_longest(model: str, tmp_path: Path, record: Record) -> None:
    longest = planned(Start(model)).longest(LITTLE[model], LENGTH)
    assert 0 < longest < LENGTH
    arguments = ["--kv-cache-memory-bytes", str(LITTLE[model]), "--max-model-len", "auto"]
    printed = printed_kv_cache(folder(model, tmp_path), arguments)
    record(planned=longest, printed=printed.length)
    assert longest == printed.length


@pytest.mark.parametrize("model", LITTLE)
def test_the_engine_refuses_what_is_planned_not_to_fit(model: str, tmp_path: Path, record: Record) -> None:
    made = planned(Start(model))
    assert made.needed(LENGTH) > LITTLE[model]
    with pytest.raises(EngineEndedError) as ended:
        printed_kv_cache(folder(model, tmp_path), ["--kv-cache-memory-bytes", str(LITTLE[model])])
    estimate = ESTIMATE.search(str(ended.value))
    assert estimate is not None
    longest = made.longest(LITTLE[model], LENGTH)
    record(planned=longest, printed=int(estimate[1]))
    assert longest == int(estimate[1])
