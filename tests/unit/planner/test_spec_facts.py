"""spec.model.architecture as a model: alone where nothing could be read, and before what was read where it was."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_api.model import Architecture
from llmservice_planner.model import config_json, spec_facts
from llmservice_planner.model.architecture import Kind

QWEN: dict[str, Any] = {
    "modelType": "qwen2",
    "numHiddenLayers": 28,
    "hiddenSize": 3584,
    "numAttentionHeads": 28,
    "numKeyValueHeads": 4,
    "intermediateSize": 18944,
    "vocabSize": 152064,
    "maxPositionEmbeddings": 32768,
}


def stated(**facts: Any) -> dict[str, Any]:
    return spec_facts.from_spec(Architecture.model_validate(QWEN | facts))


def test_facts_alone_make_the_model() -> None:
    made = config_json.read(stated())
    assert made.counted_parameters == 7_615_616_512
    assert made.max_position_embeddings == 32768


def test_nothing_stated_is_nothing() -> None:
    assert spec_facts.from_spec(Architecture()) == {}
    assert spec_facts.merge({"a": 1}, {}) == {"a": 1}
    assert spec_facts.merge(None, {}) == {}


_W4 = {"quantizationMethod": "compressed-tensors", "quantizationBits": 4, "quantizationGroupSize": 128}


@pytest.mark.parametrize(
    ("method", "bits", "group", "facts"),
    [
        ("awq", 4, 128, {"quantizationMethod": "awq"}),
        ("gptq", 4, 32, {"quantizationBits": 4, "quantizationGroupSize": 32}),
        ("fp8", 8, 0, {"quantizationBits": 8}),
        ("bitsandbytes", 4, 64, {"quantizationMethod": "bitsandbytes"}),
        ("bitsandbytes", 8, 0, {"quantizationMethod": "bitsandbytes", "quantizationBits": 8}),
        ("compressed-tensors", 4, 128, _W4),
        ("compressed-tensors", 8, 0, {"quantizationMethod": "compressed-tensors"}),
        ("modelopt_fp4", 4, 16, {"quantizationMethod": "modelopt_fp4"}),
    ],
)
def test_quantization(method: str, bits: int, group: int, facts: dict[str, Any]) -> None:
    found = config_json.read(stated(**facts)).quantization
    assert found is not None
    assert (found.method, found.bits, found.group_size) == (method, bits, group)


def test_latent_attention() -> None:
    made = config_json.read(
        stated(modelType="deepseek_v3", kvLoraRank=512, qkRopeHeadDim=64, qkNopeHeadDim=128, vHeadDim=128)
    )
    assert {layer.attention.kind for layer in made.layers} == {Kind.LATENT}


def test_linear_attention() -> None:
    heads = {"linearNumKeyHeads": 16, "linearNumValueHeads": 32, "linearKeyHeadDim": 128, "linearValueHeadDim": 128}
    made = config_json.read(stated(modelType="qwen3_next", attentionLayers=7, **heads))
    assert [layer.attention.kind for layer in made.layers].count(Kind.FULL) == 7


@pytest.mark.parametrize(
    "read",
    [
        {"num_hidden_layers": 64, "hidden_size": 5120},
        {"model_type": "mistral3", "text_config": {"num_hidden_layers": 64}},
        {"n_layer": 64},
    ],
    ids=["plain", "inside a multimodal file", "under an old name"],
)
def test_what_is_stated_wins(read: dict[str, Any]) -> None:
    assert len(config_json.read(spec_facts.merge(read, stated())).layers) == 28


def test_how_many_layers_have_a_window_wins_over_the_list() -> None:
    listed = {"layer_types": ["full_attention"] * 28}
    made = config_json.read(spec_facts.merge(listed, stated(slidingWindow=1024, slidingLayers=20)))
    assert [layer.attention.kind for layer in made.layers].count(Kind.SLIDING) == 20


def test_a_vision_tower_stays_what_was_read() -> None:
    tower = {"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304}
    made = config_json.read(spec_facts.merge({"model_type": "llava", "vision_config": tower}, stated()))
    assert made.encoder.parameters > 400_000_000
