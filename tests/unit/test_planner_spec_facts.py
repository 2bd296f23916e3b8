"""spec.model.architecture as a model: alone where nothing could be read, and before what was read where it was."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.api.model import Architecture
from llmservice_operator.planner.model import config_json, spec_facts
from llmservice_operator.planner.model.architecture import Kind

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


@pytest.mark.parametrize(
    ("facts", "method", "bits", "group"),
    [
        pytest.param({"quantizationMethod": "awq"}, "awq", 4, 128, id="awq by its method"),
        pytest.param({"quantizationBits": 4, "quantizationGroupSize": 32}, "gptq", 4, 32, id="bits alone"),
        pytest.param({"quantizationBits": 8}, "fp8", 8, 0, id="eight bits alone"),
        pytest.param({"quantizationMethod": "bitsandbytes"}, "bitsandbytes", 4, 64, id="nf4"),
        pytest.param({"quantizationMethod": "bitsandbytes", "quantizationBits": 8}, "bitsandbytes", 8, 0, id="int8"),
        pytest.param(
            {"quantizationMethod": "compressed-tensors", "quantizationBits": 4, "quantizationGroupSize": 128},
            "compressed-tensors",
            4,
            128,
            id="w4a16",
        ),
        pytest.param({"quantizationMethod": "compressed-tensors"}, "compressed-tensors", 8, 0, id="of eight bits"),
        pytest.param({"quantizationMethod": "modelopt_fp4"}, "modelopt_fp4", 4, 16, id="nvfp4"),
        pytest.param({"quantizationMethod": "mxfp4"}, "mxfp4", 4, 32, id="mxfp4"),
    ],
)
def test_quantization(facts: dict[str, Any], method: str, bits: int, group: int) -> None:
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


def test_what_is_stated_wins() -> None:
    document = spec_facts.merge({"num_hidden_layers": 64, "hidden_size": 5120}, stated())
    assert len(config_json.read(document).layers) == 28


def test_what_is_stated_wins_inside_a_multimodal_file() -> None:
    document = spec_facts.merge({"model_type": "mistral3", "text_config": {"num_hidden_layers": 64}}, stated())
    assert len(config_json.read(document).layers) == 28


def test_what_is_stated_wins_under_an_old_name() -> None:
    assert len(config_json.read(spec_facts.merge({"n_layer": 64}, stated())).layers) == 28


def test_how_many_layers_have_a_window_wins_over_the_list() -> None:
    listed = {"layer_types": ["full_attention"] * 28}
    made = config_json.read(spec_facts.merge(listed, stated(slidingWindow=1024, slidingLayers=20)))
    assert [layer.attention.kind for layer in made.layers].count(Kind.SLIDING) == 20


def test_a_vision_tower_stays_what_was_read() -> None:
    tower = {
        "hidden_size": 1152,
        "num_hidden_layers": 27,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
    }
    made = config_json.read(spec_facts.merge({"model_type": "llava", "vision_config": tower}, stated()))
    assert made.vision_parameters > 400_000_000
