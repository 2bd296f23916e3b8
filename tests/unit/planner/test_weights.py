"""Weights on one GPU and in all: what ranks and stages share, and what quantization makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from llmservice_api.engine import SpeculativeMethod
from llmservice_planner.model import config_json, reading
from llmservice_planner.model.architecture import Architecture, Incomplete, Tensors
from llmservice_planner.plan import GIB, Adapters, Draft, Request
from llmservice_planner.weights import weigh

from tests.unit.planner_models import architecture

LLAMA = architecture("llama-3.1-8b")
LARGE = architecture("llama-3.1-70b")
LATENT = architecture("deepseek-v2-lite")
EXPERTS = architecture("qwen3-30b")
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


TYPES: list[tuple[dict[str, Any], int]] = [
    ({"dtype": "auto"}, 2),
    ({"dtype": "float16"}, 2),
    ({"dtype": "float32"}, 4),
    ({"weights": "float32"}, 4),
    ({"weights": "float32", "dtype": "bfloat16"}, 2),
]


@pytest.mark.parametrize(("how", "size"), TYPES, ids=str)
def test_bytes_follow_the_type(how: dict[str, Any], size: int) -> None:
    """A checkpoint in 32 bit is loaded in 16."""
    assert bare(**how) == bare(replace(LLAMA, dtype="float32"), **how) == size * LLAMA.counted_parameters


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
    sizes = {"num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 8, "intermediate_size": 4096}
    return config_json.read(sizes | {"model_type": "llama", "vocab_size": 32000, "quantization_config": section})


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


def compressed(**weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


FP4 = {"weight": {"dtype": "fp4", "group_size": 32}}
W4A16 = compressed(num_bits=4, strategy="group", group_size=128)
SECTIONS: dict[str, tuple[dict[str, Any], float]] = {
    "awq in small groups": ({"quant_method": "awq", "bits": 4, "group_size": 32}, 4 + 20 / 32),
    "gptq by channel": ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
    "fp8 in blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
    "w4a16": (W4A16, 4 + 16 / 128),
    "w4a16 with zeros": (compressed(num_bits=4, strategy="group", group_size=128, symmetric=False), 4 + 20 / 128),
    "by channel": (compressed(num_bits=8, strategy="channel"), 8),
    "blocks": (compressed(num_bits=8, strategy="block"), 8 + 32 / 128**2),
    "nvfp4": (compressed(num_bits=4, strategy="tensor_group", group_size=16), 4.5),
    "mxfp4": (W4A16 | {"format": "mxfp4-pack-quantized"}, 4 + 8 / 128),
    "int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
    "nf4, quantized once": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
    "quark": ({"quant_method": "quark", "global_quant_config": FP4}, 4.25),
    "modelopt of old": ({"quantization": {"quant_algo": "NVFP4"}}, 4.5),
}


@pytest.mark.parametrize(("section", "bits"), SECTIONS.values(), ids=SECTIONS)
def test_a_checkpoint_states_its_quantization(section: dict[str, Any], bits: float) -> None:
    made = quantized(section)
    linears = 4 * (4 * 1024**2 + 3 * 4096 * 1024)
    assert bare(made) == pytest.approx(linears * bits / 8 + 2 * (made.counted_parameters - linears), rel=2e-3)


QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}
ATTENTION, MLPS, ENDS = 36 * 41_943_040, 36 * 150_994_944, 2 * 151936 * 4096
"""Values of the linears of attention, of the MLPs, and of embedding and head."""
GPTQ4, AWQ4, FP8_WEIGHTS, NVFP4_WEIGHTS = 4 + 20 / 128, 4 + 20 / 128, 8, 4.5
_BITS8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
_BITS4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
_ATTENTION_8 = {"format": "float-quantized", "targets": ["re:.*self_attn.*"], "weights": _BITS8}
_MLPS_4 = {"format": "nvfp4-pack-quantized", "targets": ["re:.*mlp.*"], "weights": _BITS4}
_EACH_MLP = [f"model.layers.{layer}.mlp.{name}_proj" for layer in range(36) for name in ("gate", "up", "down")]
_GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
_ROUND: dict[str, Any] = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}
_MODELOPT: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}


def _groups(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    numbered = {f"group_{number}": group for number, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": numbered, "format": "mixed-precision", **more}


def _ao(type_: str, **data: Any) -> dict[str, Any]:
    return {"_type": type_, "_data": data}


def _torchao(default: dict[str, Any]) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": {"default": default}}


MIXED: dict[str, tuple[dict[str, Any], float, float, float]] = {
    # quantization_config, bits of a weight of attention, of the MLPs, and of the head
    "GPTQ without attention": (_GPTQ | {"dynamic": {"-:.*self_attn.*": {}}}, 16, GPTQ4, 16),
    "GPTQ, attention in 8 bit": (_GPTQ | {"dynamic": {"+:.*self_attn.*": {"bits": 8}}}, 8 + 24 / 128, GPTQ4, 16),
    "GPTQ, the first pattern counts": (
        _GPTQ | {"dynamic": {".*mlp.*": {"group_size": 64}, "-:.*": {}}},
        *(16, 4 + 20 / 64, 16),
    ),
    "GPTQ of named modules": (
        _GPTQ | {"modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]},
        16,
        GPTQ4,
        16,
    ),
    "AutoRound, by name": (
        _ROUND | {"extra_config": {name: {"bits": 16, "data_type": "float"} for name in _EACH_MLP}},
        *(4 + 20 / 128, 16, 16),
    ),
    "AutoRound, by pattern": (_ROUND | {"extra_config": {r".*mlp\..*": {"bits": 8}}}, 4 + 20 / 128, 8 + 24 / 128, 16),
    "AutoRound, head too": (_ROUND | {"extra_config": {"lm_head": {"bits": 8}}}, *(2 * (4 + 20 / 128,)), 8 + 24 / 128),
    "AutoRound in MXFP4": (_ROUND | {"data_type": "mx_fp", "group_size": 32}, 4.25, 4.25, 16),
    "AutoRound in blocks of fp8": (_ROUND | {"bits": 8, "data_type": "fp", "group_size": [128, 128]}, 8, 8, 16),
    "ModelOpt": (
        _MODELOPT | {"quantized_layers": {name: {"quant_algo": "NVFP4", "group_size": 16} for name in _EACH_MLP}},
        *(16, 4.5, 16),
    ),
    "ModelOpt, two algorithms": (
        _MODELOPT
        | {
            "quantized_layers": {
                **{
                    f"model.layers.{layer}.self_attn.{part}_proj": {"quant_algo": "FP8"}
                    for layer in range(36)
                    for part in "qkvo"
                },
                **{name: {"quant_algo": "W4A16_NVFP4", "group_size": 16} for name in _EACH_MLP},
            }
        },
        *(8, 4.5, 16),
    ),
    "compressed-tensors": (_groups(_ATTENTION_8, _MLPS_4, ignore=["lm_head"]), 8, 4.5, 16),
    "compressed-tensors, the other way round": (_groups(_MLPS_4, _ATTENTION_8, ignore=["lm_head"]), 8, 4.5, 16),
    "compressed-tensors, MLPs alone": (_groups(_MLPS_4), 16, 4.5, 16),
    "compressed-tensors, a name before a class": (_groups(_MLPS_4 | {"targets": ["Linear"]}, _ATTENTION_8), 8, 4.5, 16),
    "compressed-tensors, head too": (_groups(_MLPS_4, {"targets": ["re:.*lm_head"], "weights": _BITS8}), 16, 4.5, 8),
    "torchao in int4": (_torchao(_ao("Int4WeightOnlyConfig", group_size=128)), 4.25, 4.25, 16),
    "torchao in int8": (_torchao(_ao("Int8WeightOnlyConfig")), 8, 8, 16),
    "torchao in fp8": (_torchao(_ao("Float8DynamicActivationFloat8WeightConfig")), 8, 8, 16),
    "torchao, int4 for 8-bit activations": (
        _torchao(_ao("Int8DynamicActivationIntxWeightConfig", weight_dtype={"_data": "int4", "_type": "torch.dtype"})),
        *(4 + 16 / 32, 4 + 16 / 32, 16),
    ),
    "torchao, by module": (
        _torchao(
            _ao(
                "ModuleFqnToConfig",
                module_fqn_to_config={
                    r"re:model\.layers\..*\.self_attn\..*": _ao("Int8WeightOnlyConfig"),
                    "_default": _ao("Int4WeightOnlyConfig", group_size=64),
                },
            )
        ),
        *(8, 4.5, 16),
    ),
    "quark": (
        {
            "quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}},
            "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3"}}},
        },
        *(8, 4.25, 16),
    ),
}


@pytest.mark.parametrize(("section", "attention", "mlps", "head"), MIXED.values(), ids=MIXED)
def test_a_checkpoint_of_several_quantizations(
    section: dict[str, Any], attention: float, mlps: float, head: float
) -> None:
    made = config_json.read(QWEN3_8B | {"quantization_config": section})
    expected = (ATTENTION * attention + MLPS * mlps + ENDS / 2 * (16 + head)) / 8
    assert bare(made) == pytest.approx(expected, rel=1e-3)
    assert reading.architecture(reading.read(json.dumps(QWEN3_8B | {"quantization_config": section}))) == replace(
        made, quantization=made.quantization and replace(made.quantization, kept=(), rules=())
    )


PUBLISHED_MIXED: dict[str, tuple[dict[str, Any], float]] = {
    # As published for 8.19B parameters, and GiB by hand
    "GPTQModel": (MIXED["GPTQ without attention"][0], 7.76),
    "compressed-tensors": (MIXED["compressed-tensors"][0], 6.57),
    "torchao": (MIXED["torchao in int4"][0], 5.75),
}


@pytest.mark.parametrize(("section", "gib"), PUBLISHED_MIXED.values(), ids=PUBLISHED_MIXED)
def test_a_mixed_checkpoint_as_counted_by_hand(section: dict[str, Any], gib: float) -> None:
    assert bare(config_json.read(QWEN3_8B | {"quantization_config": section})) / GIB == pytest.approx(gib, abs=0.02)


def test_a_stated_size_is_shared_as_the_model_is_or_evenly() -> None:
    assert weigh(asked(weights_gib=10.0)).per_gpu - tables(LLAMA) == 10 * GIB
    half = weigh(asked(weights_gib=10.0, tensor_parallel_size=2)).per_gpu - tables(LLAMA)
    assert half == pytest.approx(5 * GIB, rel=1e-3)
    assert bare(parameters=2 * LLAMA.counted_parameters) == pytest.approx(4 * LLAMA.counted_parameters)
    assert weigh(Request(None, None, weights_gib=8.0, tensor_parallel_size=4)).per_gpu == 2 * GIB
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


def test_real_tensors_win_over_the_count() -> None:
    real = measured(LLAMA)
    assert bare(tensors=real) == pytest.approx(real.total, rel=1e-6)
    assert bare(tensors=measured(LLAMA, 4)) == pytest.approx(2 * LLAMA.counted_parameters, rel=1e-6), "32 bit"
    assert bare(tensors=real, quantization="fp8") == pytest.approx(bare(quantization="fp8"), rel=0.02)
    seen = replace(real, vision=10**9)
    assert bare(tensors=seen) - bare(tensors=real) == pytest.approx(10**9, rel=1e-6)


def test_the_arithmetic_adds_up() -> None:
    for model in MODELS.values():
        found = weigh(asked(model, quantization="fp8", tensor_parallel_size=2, adapters=Adapters()))
        assert sum(line.gib or 0 for line in found.lines) * GIB == pytest.approx(found.per_gpu, abs=4)
        assert all(line.formula for line in found.lines)


def test_a_draft_model_adds_its_own_weights() -> None:
    small = architecture("qwen2.5-0.5b")
    draft = Draft("draftModel", 5, small)
    assert weigh(asked(draft=draft)).per_gpu - weigh(asked()).per_gpu == weigh(asked(small)).per_gpu
    with pytest.raises(Incomplete, match="draft"):
        weigh(asked(draft=Draft("draftModel", 5)))


@pytest.mark.parametrize(
    ("method", "values"),
    [
        pytest.param("ngram", 0, id="ngrams need no weights"),
        pytest.param("medusa", 3 * (4096**2 + 128256 * 4096), id="medusa: a block and a head for each guess"),
        pytest.param("eagle", 218_103_808 + 2 * 4096**2, id="eagle: a layer and a joint"),
        pytest.param("eagle3", 218_103_808 + 3 * 4096**2 + 32000 * 4096, id="eagle 3: a head of its own"),
        pytest.param("mtp", 218_103_808 + 2 * 4096**2, id="mtp: a layer and a joint"),
    ],
)
def test_what_guesses_is_weighed(method: SpeculativeMethod, values: int) -> None:
    assert weigh(asked(draft=Draft(method, 3))).per_gpu - weigh(asked()).per_gpu == 2 * values


def test_room_for_adapters() -> None:
    """max_loras x rank x (inputs + outputs) of each linear, of the embedding and of the head."""
    one = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    expected = 4 * 16 * 2 * (32 * one + 2 * (128256 + 4096))
    found = weigh(asked(adapters=Adapters(4, 16))).per_gpu - weigh(asked()).per_gpu
    assert found == pytest.approx(expected, rel=1e-6)


def test_ranks_share_one_side_of_an_adapter() -> None:
    """The outputs of a matrix whose outputs they share, the inputs of the others; nothing of the vocabulary."""
    columns = 4096 + 4096 / 2 + 2 * (4096 + 1024 / 2) + 2 * (4096 + 14336 / 2)
    rows = 4096 / 2 + 4096 + 14336 / 2 + 4096
    expected = 16 * 2 * (32 * (columns + rows) + 2 * (128256 + 4096))
    two: dict[str, Any] = {"tensor_parallel_size": 2}
    found = weigh(asked(adapters=Adapters(), **two)).per_gpu - weigh(asked(**two)).per_gpu
    assert found == pytest.approx(expected, rel=1e-6)


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


@given(model=some.sampled_from(list(MODELS.values())), ranks=some.integers(1, 16))
def test_quantization_never_needs_more(model: Architecture, ranks: int) -> None:
    request = asked(model, tensor_parallel_size=ranks)
    plain = weigh(request).per_gpu
    assert weigh(replace(request, quantization="fp8")).per_gpu < plain
    assert weigh(replace(request, quantization="awq")).per_gpu < weigh(replace(request, quantization="fp8")).per_gpu
