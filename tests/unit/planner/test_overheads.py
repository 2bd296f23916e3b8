"""What lies beside weights and KV cache: figures of single start-ups that print them, and what each grows with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_planner.batching import Batching, batching
from llmservice_planner.constants import CONSTANTS
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import Architecture, Encoder
from llmservice_planner.overheads import Overheads, capture_sizes, load, model_runner, overheads
from llmservice_planner.plan import GIB, Device, Draft, Request

from tests.unit.planner_models import CONFIGS

L4 = Device("NVIDIA-L4", 22.03, (8, 9))
B200 = Device("NVIDIA-B200", 178.4, (10, 0))
LLAMA, QWEN_7B = CONFIGS["llama-3.1-8b"], CONFIGS["qwen2.5-7b"]
MOE: dict[str, Any] = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128, "num_experts_per_tok": 8}
MOE |= {"moe_intermediate_size": 1536, "head_dim": 128}


def beside(version: str | None = None, model: dict[str, Any] | None = None, **more: Any) -> Overheads:
    """Of one request."""
    architecture = config_json.read(LLAMA | (model or {}))
    request = Request(architecture, L4, vllm_version=version, **more)
    return of_step(request, architecture, batching(request))


def of_step(request: Request, architecture: Architecture, step: Batching) -> Overheads:
    assert request.device is not None
    return overheads(load(request, architecture, request.device, step), model_runner(request, architecture))


def test_the_peaks_that_a_start_up_printed() -> None:
    """A 7B on an L4: 1.04 GiB, CUDA graphs of 0.53 GiB included. The first model runner, which took it, sampled it."""
    found = beside(None, QWEN_7B, draft=Draft("medusa"))
    assert found.activation / GIB == pytest.approx(1.04 - 0.53, rel=0.05)
    assert found.graphs / GIB == pytest.approx(0.53, rel=0.1)


@pytest.mark.parametrize(("sequences", "tokens", "where"), [(256, 2048, "sampler"), (16, 16384, "layer")])
def test_the_peak_is_where_it_is_highest(sequences: int, tokens: int, where: str) -> None:
    """With the first model runner, which copies the logits."""
    found = beside(draft=Draft("medusa"), max_num_seqs=sequences, max_num_batched_tokens=tokens)
    assert found.lines[0].name == f"activation ({where})"


@pytest.mark.parametrize(("tokens_per_image", "tokens"), [(256, 2048), (16384, 16384)])
def test_encoders_of_pictures_count(tokens_per_image: int, tokens: int) -> None:
    architecture = replace(config_json.read(LLAMA), encoder=Encoder(values=200_000, tokens=tokens_per_image))
    request = Request(architecture, L4)
    found = of_step(request, architecture, Batching(256, 2048))
    assert found.lines[0].name == "activation (encoder)"
    assert found.activation == tokens * (200_000 + 4096) * 2


@pytest.mark.parametrize("step", [Batching(256, 2048), Batching(1, 8192)], ids=["sampler", "layer"])
def test_encoder_results_add_to_the_step(step: Batching) -> None:
    text = config_json.read(LLAMA)
    seeing = replace(text, encoder=Encoder(values=1, tokens=256))
    blind, found = (of_step(Request(one, L4), one, step) for one in (text, seeing))
    assert found.activation - blind.activation == step.tokens * 4096 * 2


def test_32_bit_needs_twice_the_activations() -> None:
    many: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 8192}
    assert beside(dtype="float32", **many).activation == 2 * beside(dtype="bfloat16", **many).activation


def test_experts_count_for_every_token_that_uses_them() -> None:
    few: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 8192}
    eight, sixteen = (beside(model=MOE | {"num_experts_per_tok": used}, **few).activation for used in (8, 16))
    assert sixteen - eight == 8192 * 8 * (4096 + 1536) * 2


@pytest.mark.parametrize(
    ("counted", "more"),
    # The second model runner before 0.32 does not count them.
    [(True, {}), (False, {"enforce_eager": True}), (False, {"cuda_graphs": "none"}), (False, {"version": "0.31.0"})],
)
def test_graphs_in_the_budget(counted: bool, more: dict[str, Any]) -> None:
    assert (beside(**more).counted_graphs > 0) is counted


def test_each_rank_adds_buffers_and_speculation_captures_more() -> None:
    one, four = beside(), beside(tensor_parallel_size=4)
    assert (four.non_torch - one.non_torch) / GIB == pytest.approx(3 * CONSTANTS.non_torch_peer.value)
    assert beside(draft=Draft("ngram", 4), max_num_seqs=32).graphs > beside(max_num_seqs=32).graphs


@pytest.mark.parametrize(
    ("device", "step", "each", "count", "largest"),
    [
        pytest.param(L4, Batching(256, 2048), 1, 51, 512, id="the default"),
        pytest.param(L4, Batching(1, 2048), 1, 2, 2, id="one sequence"),
        pytest.param(L4, Batching(256, 64), 1, 11, 64, id="no more than a step has"),
        pytest.param(L4, Batching(64, 2048), 4, 51, 512, id="guessed tokens count"),
        pytest.param(B200, Batching(1024, 16384), 1, 83, 1024, id="data-centre Blackwell"),
    ],
)
def test_captured_sizes(device: Device, step: Batching, each: int, count: int, largest: int) -> None:
    sizes = list(capture_sizes(device, step, each))
    assert (len(sizes), max(sizes)) == (count, largest)


INDEX_WORKSPACES = {
    # The longest request, and the bytes that vLLM reserves for the keys that one step gathers.
    "GLM-5's own length": (None, 202752 * 40 * 132),
    "a shorter one": (65536, 65536 * 40 * 132),
    "the longest of the larger factor": (262144, 262144 * 40 * 132),
    "beyond 256K tokens": (262145, 262145 * 16 * 132),
}


@pytest.mark.parametrize(("length", "taken"), INDEX_WORKSPACES.values(), ids=INDEX_WORKSPACES)
def test_sparse_attention_reserves_a_workspace_for_its_index(length: int | None, taken: int) -> None:
    model = config_json.read(CONFIGS["glm-5-fp8"])
    device = Device("NVIDIA-H200", 139.8, (9, 0))
    request = Request(model, device, tensor_parallel_size=8, max_model_len=length, max_num_batched_tokens=8192)
    found = load(request, model, device, batching(request))
    assert found.index_bytes == taken
    of = overheads(found, model_runner(request, model))
    without = overheads(replace(found, index_bytes=0), model_runner(request, model))
    assert (of.activation - without.activation, len(of.lines) - len(without.lines)) == (taken, 1)
