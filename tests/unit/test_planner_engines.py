"""Which generation of vLLM a version is, as people write versions, and what each takes a step by default."""

from __future__ import annotations

from dataclasses import replace

import pytest
from llmservice_operator.planner import config_json
from llmservice_operator.planner.batching import batching
from llmservice_operator.planner.engines import CURRENT, engine
from llmservice_operator.planner.plan import Device, Request

LLAMA_8B = config_json.read(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    }
)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (None, CURRENT.name),
        ("0.32.0", CURRENT.name),
        ("v0.32.0", CURRENT.name),
        ("1.0.0", CURRENT.name),
        ("nightly", CURRENT.name),
        ("2026", CURRENT.name),
        ("2026 (>=0.21)", CURRENT.name),
        ("June 2026 (>=0.22)", CURRENT.name),
        ("0.2.3 / 0.2.4", "V0, to 0.2"),
        ("0.3.x (Mar 2024)", "V0, 0.3 to 0.5.2"),
        ("0.4.3-0.5.0 (Jun 2024)", "V0, 0.3 to 0.5.2"),
        ("0.5.3 (24 Jul 2024)", "V0, 0.5.3 to 0.5.5"),
        ("0.6.4.post1", "V0, 0.6"),
        ("0.7.4.dev382", "V0, 0.7 on"),
        ("0.8.3 (V0)", "V0, 0.7 on"),
        ("0.8.3 (V1)", "V1, 0.8.0 to 0.8.4"),
        ("0.7.1 dev (V1)", "V1, 0.8.0 to 0.8.4"),
        ("0.8.5.dev22 (V1)", "V1, 0.8.5 to 0.9"),
        ("0.9.x (Jul 2025, V1)", "V1, 0.8.5 to 0.9"),
        ("0.10.x (Aug 2025)", "V1, 0.10 to 0.18"),
        ("2026-02, V1 (version not stated)", "V1, 0.10 to 0.18"),
        ("Mar 2026 (~0.18)", "V1, 0.10 to 0.18"),
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
