"""Which generation of vLLM a version is, as people write versions, and what each takes a step by default."""

from __future__ import annotations

from dataclasses import replace

import pytest
from llmservice_operator.planner.batching import batching
from llmservice_operator.planner.engines import CURRENT, engine, engine_of
from llmservice_operator.planner.model import config_json
from llmservice_operator.planner.plan import Device, Draft, Request

from tests.unit.test_planner_overheads import config

LLAMA_8B = config_json.read(config())


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (None, CURRENT.name),
        ("0.32.0", CURRENT.name),
        ("v0.32.0", CURRENT.name),
        ("1.0.0", CURRENT.name),
        ("nightly", CURRENT.name),
        ("2026", CURRENT.name),
        ("2026 (>=0.21)", "V1, 0.21 to 0.22"),
        ("June 2026 (>=0.22)", "V1, 0.21 to 0.22"),
        ("0.2.3 / 0.2.4", "V0, to 0.2"),
        ("0.3.x (Mar 2024)", "V0, 0.3 to 0.5.2"),
        ("0.4.3-0.5.0 (Jun 2024)", "V0, 0.3 to 0.5.2"),
        ("0.5.3 (24 Jul 2024)", "V0, 0.5.3 to 0.5.5"),
        ("0.6.4.post1", "V0, 0.6"),
        ("0.7.4.dev382", "V0, 0.7 on"),
        ("0.8.3 (V0)", "V0, 0.7 on"),
        ("0.8.3 (V1)", "V1, 0.8.0 to 0.8.4"),
        ("0.7.1 dev (V1)", "V1, 0.8.0 to 0.8.4"),
        ("0.8.5.dev22 (V1)", "V1, 0.8.5 to 0.9.1"),
        ("0.9.x (Jul 2025, V1)", "V1, 0.8.5 to 0.9.1"),
        ("0.9.2", "V1, 0.9.2"),
        ("0.26.1rc1.dev608", "V1, 0.23 to 0.26"),
        ("2026-08-16", "V1, 0.27 to 0.31"),
        ("0.10.x (Aug 2025)", "V1, 0.10 to 0.12"),
        ("2026-02, V1 (version not stated)", "V1, 0.13 to 0.18"),
        ("Mar 2026 (~0.18)", "V1, 0.13 to 0.18"),
        ("commit bfde49e28 (~0.19)", "V1, 0.19 to 0.20"),
        ("0.20.0 (V1)", "V1, 0.19 to 0.20"),
    ],
)
def test_generation(version: str | None, name: str) -> None:
    assert engine(version).name == name


def _request(version: str | None, memory_gib: float, product: str = "a GPU", **more: object) -> Request:
    request = Request(LLAMA_8B, Device(product, memory_gib), vllm_version=version)
    return replace(request, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "sequences", "tokens"),
    [
        pytest.param(_request(None, 22.03), 256, 2048, id="24 GB"),
        pytest.param(_request(None, 79.2), 1024, 8192, id="80 GB"),
        pytest.param(_request(None, 79.2, "NVIDIA-A100-SXM4-80GB"), 256, 2048, id="A100, though it has 80 GB"),
        pytest.param(_request(None, 178.4), 1024, 16384, id="B200"),
        pytest.param(_request("0.20", 178.4), 1024, 8192, id="B200 before 0.21"),
        pytest.param(_request("0.8.3 (V1)", 22.03), 1024, 2048, id="the first V1 engines"),
        pytest.param(_request("0.6", 22.03, max_model_len=20000), 256, 20000, id="V0: the longest request"),
        pytest.param(_request("0.6", 22.03, max_model_len=512), 256, 2048, id="V0: at least 2,048"),
        pytest.param(_request("0.6", 22.03), 256, 512, id="V0: chunked above 32k"),
        pytest.param(_request("0.7", 22.03), 256, 2048, id="V0 0.7: chunked above 32k"),
        pytest.param(_request("0.4", 22.03, max_model_len=40000), 256, 40000, id="V0 0.4: never chunked by itself"),
        pytest.param(_request(None, 22.03, max_num_seqs=4, max_num_batched_tokens=640), 4, 640, id="as given"),
        pytest.param(_request(None, 22.03, max_num_seqs=1, max_model_len=1024), 1, 1024, id="no more than all hold"),
    ],
)
def test_defaults(request_: Request, sequences: int, tokens: int) -> None:
    found = batching(request_)
    assert (found.sequences, found.tokens) == (sequences, tokens)


MOE = config_json.read(
    {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
    }
)
UNNAMED = replace(LLAMA_8B, name="model")


@pytest.mark.parametrize(
    ("version", "request_", "sampler", "graphs"),
    [
        pytest.param("0.32.0", Request(LLAMA_8B, None), "bare", True, id="the second runner takes all"),
        pytest.param("0.32.0", Request(MOE, None), "bare", True, id="experts too"),
        pytest.param("0.32.0", Request(LLAMA_8B, None, quantization="awq"), "bare", True, id="quantized ones too"),
        pytest.param("0.32.0", Request(LLAMA_8B, None, draft=Draft("medusa")), "plain", True, id="but for Medusa"),
        pytest.param("0.28.0", Request(LLAMA_8B, None), "bare", False, id="0.27 on: dense ones, without graphs"),
        pytest.param("0.28.0", Request(UNNAMED, None), "bare", False, id="0.27 on: whatever they are called"),
        pytest.param("0.28.0", Request(MOE, None), "plain", True, id="0.27 on: no experts"),
        pytest.param("0.28.0", Request(LLAMA_8B, None, weights="fp8"), "plain", True, id="0.27 on: not quantized"),
        pytest.param("0.24.0", Request(LLAMA_8B, None), "bare", False, id="0.23 on: classes that it was tried with"),
        pytest.param("0.24.0", Request(UNNAMED, None), "plain", True, id="0.23 on: no others"),
        pytest.param("0.21.0", Request(LLAMA_8B, None), "plain", True, id="before, none"),
        pytest.param("0.20.0", Request(LLAMA_8B, None), "plain", False, id="before 0.21 without graphs"),
    ],
)
def test_which_runner_takes_a_model(version: str, request_: Request, sampler: str, graphs: bool) -> None:
    assert request_.architecture is not None
    found = engine_of(replace(request_, vllm_version=version), request_.architecture)
    assert (found.sampler, found.graphs_in_budget) == (sampler, graphs)
