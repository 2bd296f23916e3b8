"""Weights on one GPU and in all: what ranks and stages share, and what quantization makes of it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from llmservice_operator.planner.model import config_json
from llmservice_operator.planner.model.architecture import Architecture, Incomplete
from llmservice_operator.planner.model.tensors import Tensors
from llmservice_operator.planner.plan import GIB, Adapters, Request
from llmservice_operator.planner.weights import weigh

from tests.unit.planner_models import architecture

LLAMA = architecture("llama-3.1-8b")
LARGE = architecture("llama-3.1-70b")
LATENT = architecture("deepseek-v2-lite")
EXPERTS = config_json.read(
    {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "intermediate_size": 6144,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "max_position_embeddings": 40960,
    }
)
MODELS = {"dense": LLAMA, "large": LARGE, "latent": LATENT, "experts": EXPERTS}


def asked(model: Architecture = LLAMA, **more: Any) -> Request:
    return Request(model, None, **more)


def tables(model: Architecture) -> int:
    """Sines and cosines, which every GPU holds."""
    return model.rotary_values * 2


def bare(model: Architecture = LLAMA, **more: Any) -> int:
    """Bytes of one GPU without those, which are wider in 32 bit."""
    is_wide = more.get("dtype", more.get("weights")) == "float32"
    return weigh(asked(model, **more)).per_gpu - tables(model) * (2 if is_wide else 1)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_one_gpu_holds_two_bytes_a_parameter(model: Architecture) -> None:
    assert bare(model) == 2 * model.counted_parameters


def test_published_numbers_of_parameters() -> None:
    assert LLAMA.counted_parameters == 8_030_261_248
    assert LARGE.counted_parameters == 70_553_706_496
    assert LATENT.counted_parameters == 15_706_484_224
    assert EXPERTS.counted_parameters == 30_532_122_624


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "auto"])
def test_bytes_follow_the_type(dtype: str) -> None:
    assert bare(dtype=dtype) == (4 if dtype == "float32" else 2) * LLAMA.counted_parameters


def test_the_spec_s_weights_are_a_type_too() -> None:
    assert bare(weights="float32") == 4 * LLAMA.counted_parameters
    assert bare(weights="float32", dtype="bfloat16") == 2 * LLAMA.counted_parameters


def test_a_checkpoint_in_32_bit_is_loaded_in_16() -> None:
    assert bare(replace(LLAMA, dtype="float32")) == 2 * LLAMA.counted_parameters


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_share_all_but_norms(ranks: int) -> None:
    norms = 2 * LLAMA.hidden_size * (2 * 32 + 1)
    whole = 2 * LLAMA.counted_parameters - norms
    assert bare(tensor_parallel_size=ranks) == whole / ranks + norms


def test_fewer_kv_heads_than_ranks_are_copied() -> None:
    """Sixteen ranks, eight key/value heads: each rank holds one, an eighth of the matrix."""
    split, kv = bare(LARGE, tensor_parallel_size=16), 2 * 8192 * 8 * 128 * 80
    even = (2 * LARGE.counted_parameters - 2 * kv) / 16 + 2 * kv / 8
    assert split == pytest.approx(even, rel=1e-3)


def test_the_vocabulary_is_padded_to_64_rows() -> None:
    odd = replace(LLAMA, vocab_size=128_001)
    assert bare(odd) - bare(replace(LLAMA, vocab_size=128_000)) == 2 * 2 * 64 * LLAMA.hidden_size


def test_tied_embeddings_are_held_once_on_one_stage_and_twice_on_two() -> None:
    tied = replace(LLAMA, tie_word_embeddings=True)
    embedding = 2 * LLAMA.embedding_parameters
    assert bare(tied) == bare() - embedding
    assert weigh(asked(tied, pipeline_parallel_size=2)).total == pytest.approx(
        weigh(asked(pipeline_parallel_size=2)).total, rel=1e-5
    )


def test_down_projections_of_latent_attention_are_on_every_rank() -> None:
    copied = 2 * 27 * 2048 * (512 + 64)
    once, split = bare(LATENT), bare(LATENT, tensor_parallel_size=8)
    assert split * 8 - once >= 7 * copied


def test_latent_attention_keeps_a_quantized_expansion_a_second_time() -> None:
    plain = bare(LATENT, quantization="fp8")
    lines = {line.name: line.gib for line in weigh(asked(LATENT, quantization="fp8")).lines}
    assert lines["MLA's expanded projections"] == pytest.approx(27 * 512 * 16 * (128 + 128) * 2 / GIB)
    assert plain > LATENT.counted_parameters


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_experts_whole_or_in_slices_are_the_same(ranks: int) -> None:
    sliced = bare(EXPERTS, tensor_parallel_size=ranks)
    assert bare(EXPERTS, tensor_parallel_size=ranks, enable_expert_parallel=True) == sliced


def test_experts_that_do_not_divide_are_more_on_one_rank() -> None:
    sliced = bare(EXPERTS, tensor_parallel_size=3)
    assert bare(EXPERTS, tensor_parallel_size=3, enable_expert_parallel=True) > sliced


def test_data_parallel_engines_share_experts_and_copy_the_rest() -> None:
    alone, shared = bare(EXPERTS), bare(EXPERTS, data_parallel_size=8, enable_expert_parallel=True)
    experts = 2 * 48 * 128 * 3 * 2048 * 768
    assert alone - shared == experts * 7 // 8
    assert weigh(asked(data_parallel_size=2)).total == 2 * weigh(asked()).total


def test_the_fullest_stage_counts() -> None:
    """61 layers on three stages are 20, 21 and 20; the ends hold embedding and head."""
    uneven = replace(LLAMA, layers=LLAMA.layers[:1] * 61)
    per_layer, end = 2 * LLAMA.layers[0].parameters, 2 * (LLAMA.embedding_parameters + LLAMA.hidden_size)
    assert bare(uneven, pipeline_parallel_size=3) == 20 * per_layer + end
    assert bare(replace(uneven, vocab_size=64), pipeline_parallel_size=3) == 21 * per_layer
    ends = replace(LLAMA, layers=LLAMA.layers[:1] * 8)
    assert bare(ends, pipeline_parallel_size=4) == end + 2 * per_layer


QUANTIZED = {
    # bytes a weight of a linear: bits, a scale for each group, zeros
    "fp8": ({"quantization": "fp8"}, 8),
    "fp8 by the spec's weights": ({"weights": "fp8"}, 8),
    "fp8 in blocks": ({"quantization": "fp8_per_block"}, 8 + 32 / 128**2),
    "awq": ({"quantization": "awq_marlin"}, 4 + (16 + 4) / 128),
    "gptq": ({"quantization": "gptq_marlin"}, 4 + (16 + 4) / 128),
    "nvfp4 while loading": ({"quantization": "nvfp4_per_token"}, 4 + 8 / 16),
    "nvfp4": ({"quantization": "nvfp4"}, 4 + 8 / 16),
    "nvfp4 of compressed-tensors": ({"quantization": "compressed-tensors NVFP4"}, 4 + 8 / 16),
    "mxfp8": ({"quantization": "mxfp8"}, 8 + 8 / 32),
    "nf4": ({"quantization": "bitsandbytes"}, 4 + (8 + 32 / 256) / 64),
    "people's words": ({"quantization": "int8 w8a16"}, 8),
}


@pytest.mark.parametrize(("how", "bits"), QUANTIZED.values(), ids=QUANTIZED)
def test_linears_are_quantized_and_the_rest_is_not(how: dict[str, Any], bits: float) -> None:
    linears = 32 * LLAMA.layers[0].parameters - 32 * 2 * LLAMA.hidden_size
    rest = 2 * (LLAMA.counted_parameters - linears)
    assert bare(**how) == pytest.approx(linears * bits / 8 + rest, rel=1e-3)


QWEN3 = {
    # layers, hidden, intermediate, heads; GiB that one GPU was seen to hold
    "8B": (36, 4096, 12288, 32, 5.98),
    "14B": (40, 5120, 17408, 40, 9.97),
}


@pytest.mark.parametrize(("layers", "hidden", "width", "heads", "gib"), QWEN3.values(), ids=QWEN3)
def test_nvfp4_is_of_all_linears_as_it_was_measured(
    layers: int, hidden: int, width: int, heads: int, gib: float
) -> None:
    """RedHatAI's Qwen3-8B-NVFP4 and Qwen3-14B-NVFP4 on a 5070 Ti."""
    model = config_json.read(
        {
            "model_type": "qwen3",
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "intermediate_size": width,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
        }
    )
    assert weigh(asked(model, quantization="nvfp4")).per_gpu / GIB == pytest.approx(gib, rel=0.02)


@pytest.mark.parametrize("method", ["modelopt_fp4", "modelopt nvfp4", "modelopt_nvfp4", "fbgemm_fp8"])
def test_some_recipes_leave_attention_in_16_bit(method: str) -> None:
    """Where only the method is known; a quantization_config says it itself."""
    bits = 8 if method == "fbgemm_fp8" else 4.5
    mlps = 32 * 3 * 4096 * 14336
    expected = mlps * bits / 8 + 2 * (LLAMA.counted_parameters - mlps)
    assert bare(quantization=method) == pytest.approx(expected, rel=1e-3)


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(Incomplete, match="homegrown"):
        weigh(asked(quantization="homegrown"))


def test_mxfp4_is_of_experts_only() -> None:
    experts = 48 * 128 * 3 * 2048 * 768
    expected = 2 * (EXPERTS.counted_parameters - experts) + experts * 4.25 / 8
    assert bare(EXPERTS, quantization="mxfp4") == pytest.approx(expected, rel=1e-6)


def quantized(section: dict[str, Any]) -> Architecture:
    return config_json.read(
        {
            "model_type": "llama",
            "num_hidden_layers": 4,
            "hidden_size": 1024,
            "num_attention_heads": 8,
            "intermediate_size": 4096,
            "vocab_size": 32000,
            "quantization_config": section,
        }
    )


KEPT = {
    # matrices of 16 bit in the four layers, of 4 x 1024**2 in attention and 3 x 4096 x 1024 in the MLP
    "nothing": ([], 0),
    "the head, which stays so anyway": (["lm_head"], 0),
    "a name in every layer": (["down_proj"], 4 * 4096 * 1024),
    "a pattern": (["re:.*self_attn.*"], 4 * 4 * 1024**2),
    "a pattern of some layers": ([r"re:model\.layers\.(0|3)\.mlp\.up_proj"], 2 * 4096 * 1024),
    "a glob": (["model.layers.*.mlp.gate_proj"], 4 * 4096 * 1024),
    "one layer": (["model.layers.2"], 4 * 1024**2 + 3 * 4096 * 1024),
    "one matrix of one layer": (["model.layers.1.self_attn.o_proj"], 1024**2),
    "a fused name": (["model.layers.0.self_attn.qkv_proj"], 3 * 1024**2),
    "an encoder's blocks, which are none of ours": (["vision_tower.encoder.layers.0.self_attn.q_proj", "visual"], 0),
}


@pytest.mark.parametrize(("kept", "values"), KEPT.values(), ids=KEPT)
def test_kept_modules_stay_in_16_bit(kept: list[str], values: int) -> None:
    section = {"quant_method": "modelopt", "quant_algo": "FP8"}
    nothing, some_kept = quantized(section), quantized(section | {"ignore": kept})
    assert bare(some_kept) - bare(nothing) == pytest.approx(values, rel=0.02)


@pytest.mark.parametrize(
    ("section", "bits"),
    [
        pytest.param({"quant_method": "awq", "bits": 4, "group_size": 32}, 4 + 20 / 32, id="awq in small groups"),
        pytest.param({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8, id="gptq by channel"),
        pytest.param({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2, id="fp8 in blocks"),
        pytest.param(
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "strategy": "group", "group_size": 128}}},
            },
            4 + 16 / 128,
            id="w4a16",
        ),
        pytest.param(
            {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}}
                },
            },
            4.5,
            id="nvfp4",
        ),
        pytest.param({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8, id="int8"),
        pytest.param({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5, id="nf4, quantized once"),
        pytest.param(
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}},
            4.25,
            id="quark",
        ),
        pytest.param({"quantization": {"quant_algo": "NVFP4"}}, 4.5, id="modelopt of old"),
    ],
)
def test_a_checkpoint_states_its_quantization(section: dict[str, Any], bits: float) -> None:
    made = quantized(section)
    linears = 4 * (4 * 1024**2 + 3 * 4096 * 1024)
    assert bare(made) == pytest.approx(linears * bits / 8 + 2 * (made.counted_parameters - linears), rel=2e-3)


def test_a_stated_size_is_shared_as_the_model_is() -> None:
    assert weigh(asked(weights_gib=10.0)).per_gpu - tables(LLAMA) == 10 * GIB
    half = weigh(asked(weights_gib=10.0, tensor_parallel_size=2)).per_gpu - tables(LLAMA)
    assert half == pytest.approx(5 * GIB, rel=1e-3)


def test_a_stated_number_of_parameters_scales() -> None:
    assert bare(parameters=2 * LLAMA.counted_parameters) == pytest.approx(4 * LLAMA.counted_parameters)


def test_nothing_but_a_size_is_shared_evenly() -> None:
    assert weigh(Request(None, None, weights_gib=8.0, tensor_parallel_size=4)).per_gpu == 2 * GIB
    assert weigh(Request(None, None, parameters=10**9)).per_gpu == 2 * 10**9
    with pytest.raises(Incomplete):
        weigh(Request(None, None))


def measured(model: Architecture, value: int = 2) -> Tensors:
    """A checkpoint's tensors, as the inspection sums them up."""
    vocabulary = model.embedding_parameters
    inside = sum(layer.parameters for layer in model.layers)
    return Tensors(
        embedding=vocabulary * value,
        head=vocabulary * value,
        attention=inside * value // 4,
        feed_forward=inside * value * 3 // 4,
        other=model.extra_parameters * value,
        parameters=model.counted_parameters,
    )


def test_real_tensors_are_the_total() -> None:
    assert bare(tensors=measured(LLAMA)) == pytest.approx(measured(LLAMA).total, rel=1e-6)


def test_real_tensors_in_32_bit_are_loaded_in_16() -> None:
    assert bare(tensors=measured(LLAMA, 4)) == pytest.approx(2 * LLAMA.counted_parameters, rel=1e-6)


def test_real_tensors_are_converted_when_they_are_quantized_at_load() -> None:
    assert bare(tensors=measured(LLAMA), quantization="fp8") == pytest.approx(bare(quantization="fp8"), rel=0.02)


def test_an_encoder_without_a_description_is_weighed_by_its_tensors() -> None:
    seen = replace(measured(LLAMA), vision=10**9)
    assert bare(tensors=seen) - bare(tensors=measured(LLAMA)) == pytest.approx(10**9, rel=1e-6)


def test_the_arithmetic_adds_up() -> None:
    for model in MODELS.values():
        found = weigh(asked(model, quantization="fp8", tensor_parallel_size=2, adapters=Adapters()))
        assert sum(line.gib or 0 for line in found.lines) * GIB == pytest.approx(found.per_gpu, abs=4)
        assert all(line.formula for line in found.lines)


@settings(max_examples=150)
@given(
    model=some.sampled_from(list(MODELS.values())),
    ranks=some.integers(1, 16),
    stages=some.integers(1, 8),
    engines=some.integers(1, 4),
    whole=some.booleans(),
    method=some.sampled_from([None, "fp8", "awq", "modelopt_fp4"]),
)
def test_more_gpus_never_need_more_each(
    model: Architecture, ranks: int, stages: int, engines: int, whole: bool, method: str | None
) -> None:
    request = asked(model, quantization=method, enable_expert_parallel=whole, data_parallel_size=engines)
    one = weigh(replace(request, data_parallel_size=1))
    many = weigh(replace(request, tensor_parallel_size=ranks, pipeline_parallel_size=stages))
    assert many.per_gpu <= one.per_gpu * 1.000_001
    assert many.total >= one.total * 0.999_999
    assert many.per_gpu * ranks * stages * engines >= many.total * 0.999_999


@settings(max_examples=50)
@given(model=some.sampled_from(list(MODELS.values())), ranks=some.integers(1, 16))
def test_quantization_never_needs_more(model: Architecture, ranks: int) -> None:
    request = asked(model, tensor_parallel_size=ranks)
    plain = weigh(request).per_gpu
    assert weigh(replace(request, quantization="fp8")).per_gpu < plain
    assert weigh(replace(request, quantization="awq")).per_gpu < weigh(replace(request, quantization="fp8")).per_gpu


def test_it_takes_no_time() -> None:
    request = asked(LARGE, tensor_parallel_size=8, pipeline_parallel_size=2)
    weigh(request)
    taken = []
    for _ in range(20):
        start = time.perf_counter()
        weigh(request)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.001
