"""What families say in their own ways: which layers are of which kind, and what follows from config.json."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_planner.kv_blocks import Blocks, index_width
from llmservice_planner.kv_cache import placed_specs
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import Incomplete, InvalidModel, Kind, Layer, UnsupportedModel
from llmservice_planner.plan import Device, Request

from tests.unit.planner_models import CONFIGS

PLAIN: dict[str, Any] = {
    "num_hidden_layers": 12,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 4096,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}
_MAMBA2 = {"mamba_n_heads": 32, "mamba_d_state": 128, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_conv": 4}
_DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
_LATENT = {"kv_lora_rank": 128, "q_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64}
LETTER = {Kind.ENCODER: "e", Kind.FULL: "F", Kind.SLIDING: "s", Kind.LATENT: "L", Kind.STATE: "m"}


def of(model_type: str, **more: Any) -> dict[str, Any]:
    return {"model_type": model_type, **more}


def letters(layers: tuple[Layer, ...]) -> str:
    """F full, e encoder, s sliding, c chunked, L latent, m a state, - nothing stored, b a state beside attention."""
    found = []
    for layer in layers:
        one = layer.attention
        holds = one.conv_values or one.recurrent_values
        if one.kind is Kind.STATE:
            found.append("m" if holds else "-")
        elif holds:
            found.append("b")
        else:
            found.append("c" if one.chunked else LETTER[one.kind])
    return "".join(found)


_LISTED = ["sliding_attention", "full_attention"] * 6
_RUNS = [["sliding_attention", 10], ["full_attention", 2]]
_KIMI = {"full_attn_layers": [4, 8, 12], "num_heads": 8, "head_dim": 64}
_JAMBA = {"attn_layer_period": 6, "attn_layer_offset": 2, "mamba_d_state": 16, "mamba_d_conv": 4}
_GRANITE = {"layer_types": ["mamba", "mamba", "mamba", "attention"] * 3, **_MAMBA2}
_LETTERED = {"hybrid_override_pattern": "M-M-M*-M-M*-", "mamba_num_heads": 32, "mamba_head_dim": 64}
KINDS = {
    "all full": (of("llama"), "FFFFFFFFFFFF"),
    "a known class of another name": (of("my_llama", architectures=["LlamaForCausalLM"]), "FFFFFFFFFFFF"),
    "facts without a name": ({}, "FFFFFFFFFFFF"),
    "all sliding": (of("mistral", sliding_window=4096), "ssssssssssss"),
    "null is no window": (of("mistral", sliding_window=None), "FFFFFFFFFFFF"),
    "a window that is not used": (of("qwen2", sliding_window=4096), "FFFFFFFFFFFF"),
    "used from a layer on": (
        of("qwen2", sliding_window=4096, use_sliding_window=True, max_window_layers=8),
        "FFFFFFFFssss",
    ),
    "every other": (of("gemma2", sliding_window=4096), "sFsFsFsFsFsF"),
    "every sixth is full": (of("gemma3_text", sliding_window=1024), "sssssFsssssF"),
    "a pattern": (of("gemma3_text", sliding_window=1024, sliding_window_pattern=4), "sssFsssFsssF"),
    "letters for windows": (of("exaone4", sliding_window=512, sliding_window_pattern="LLG"), "ssFssFssFssF"),
    "every fifth is full": (of("gemma3n_text"), "ssssFssssFss"),
    "gemma 4": (of("gemma4_text", sliding_window=512), "sssssFsssssF"),
    "gpt-oss": (of("gpt_oss", sliding_window=128), "sFsFsFsFsFsF"),
    "every fourth is full": (of("cohere2"), "sssFsssFsssF"),
    "a list": ({"sliding_window": 512, "layer_types": _LISTED}, "sFsFsFsFsFsF"),
    "a list in runs": ({"sliding_window": 512, "layer_types": _RUNS}, "ssssssssssFF"),
    "so many, spread": ({"sliding_window": 512, "sliding_layers": 9}, "sssFsssFsssF"),
    "chunks where positions are rotated": (of("llama4_text", attention_chunk_size=8192), "cccFcccFcccF"),
    "a list of zeros and ones": (
        of("llama4_text", attention_chunk_size=8192, no_rope_layers=[1, 0] * 6),
        "cFcFcFcFcFcF",
    ),
    "latent": (of("deepseek_v3", **_LATENT), "LLLLLLLLLLLL"),
    "latent, in a section": ({"mla": _LATENT}, "LLLLLLLLLLLL"),
    "latent, and stored in full": (of("minicpm3", **_LATENT), "FFFFFFFFFFFF"),
    "a delta net": (of("qwen3_next", **_DELTA), "mmmFmmmFmmmF"),
    "every third is full": (of("qwen3_5_text", full_attention_interval=3, **_DELTA), "mmFmmFmmFmmF"),
    "so many are full": ({"attention_layers": 2, **_DELTA}, "mmmmmFmmmmmF"),
    "counted from one": (of("kimi_linear", linear_attn_config=_KIMI, **_LATENT), "mmmLmmmLmmmL"),
    "a period and an offset": (of("jamba", **_JAMBA), "mmFmmmmmFmmm"),
    "chosen layers": (of("bamba", attn_layer_indices=[3, 9], **_MAMBA2), "mmmFmmmmmFmm"),
    "states in a list": (of("granitemoehybrid", **_GRANITE), "mmmFmmmFmmmF"),
    "letters": (of("nemotron_h", **_LETTERED), "m-m-mF-m-mF-"),
    "both in each": (of("falcon_h1", **_MAMBA2), "bbbbbbbbbbbb"),
    "states alone": (of("mamba", state_size=16), "mmmmmmmmmmmm"),
    "convolutions": (of("lfm2", full_attn_idxs=[2, 5, 8, 11]), "mmFmmFmmFmmF"),
    "an index, in transformers' words": (
        of("deepseek_v32", layer_types=["indexed_attention"] * 12, **_LATENT),
        "L" * 12,
    ),
    "an index, in the publisher's": (
        of("qwen3_next", layer_types=(["linear_attention"] * 3 + ["qwen_sparse_attention"]) * 3, **_DELTA),
        "mmmFmmmFmmmF",
    ),
    "states in transformers' words": (
        of("granitemoehybrid", **_GRANITE | {"layer_types": ["linear_attention", "full_attention"] * 6}),
        "mFmFmFmFmFmF",
    ),
    "an encoder": (of("bert"), "eeeeeeeeeeee"),
    "an encoder's windows store nothing": (of("modernbert", layer_types=["sliding_attention"] * 12), "eeeeeeeeeeee"),
    "a decoder made an encoder, by its class": (of("llama", architectures=["LlamaBidirectionalModel"]), "e" * 12),
    "by the file": (of("qwen2", architectures=["Qwen2Model"], is_causal=False), "eeeeeeeeeeee"),
    "Gemma's key": (
        of("gemma3_text", architectures=["Gemma3TextModel"], use_bidirectional_attention=True),
        "eeeeeeeeeeee",
    ),
    "which other classes do not heed": (of("gemma3_text", use_bidirectional_attention=True), "sssssFsssssF"),
    "a decoder that embeds": (of("qwen2", architectures=["Qwen2Model"]), "FFFFFFFFFFFF"),
    "numbers": (of("minimax", attn_type_list=[0, 0, 0, 1] * 3), "mmmFmmmFmmmF"),
    "a class and a type of one kind": (of("qwen2", architectures=["LlamaForCausalLM"]), "FFFFFFFFFFFF"),
}


@pytest.mark.parametrize(("more", "expected"), KINDS.values(), ids=KINDS)
def test_kinds_of_layers(more: dict[str, Any], expected: str) -> None:
    assert letters(config_json.read({**PLAIN, **more}).layers) == expected


@pytest.mark.parametrize("more", [more for more, _ in KINDS.values()], ids=KINDS)
def test_the_ending_of_a_nested_type_changes_nothing(more: dict[str, Any]) -> None:
    model_type = more.get("model_type", "llama")
    nested = config_json.read({**PLAIN, **more, "model_type": f"{model_type.removesuffix('_text')}_text"})
    assert nested.layers == config_json.read({**PLAIN, **more}).layers


_CLASS = ["DeepseekV41ForCausalLM"]
UNPLANNED = {
    # config.json, and what the refusal names
    "a type": (of("brand_new"), "model_type 'brand_new'"),
    "a type whose class is not planned": (of("deepseek_v41", architectures=_CLASS), "model_type 'deepseek_v41'"),
    "a known type of such a class": (of("deepseek_v3", architectures=_CLASS), "model class 'DeepseekV41ForCausalLM'"),
    "a class alone": ({"architectures": ["NobodyKnowsThis"]}, "model class 'NobodyKnowsThis'"),
    "a class of other layers than its type": (
        of("deepseek_v3", architectures=["DeepseekV4ForCausalLM"]),
        "model class with that model_type: 'DeepseekV4ForCausalLM, deepseek_v3'",
    ),
    "a type of other layers than its class": (
        of("deepseek_v4", architectures=["LlamaForCausalLM"]),
        "'LlamaForCausalLM, deepseek_v4'",
    ),
    "latent attention as plain": (of("deepseek_v3", architectures=["LlamaForCausalLM"]), "'LlamaForCausalLM, deep"),
    "plain attention as states": (of("llama", architectures=["MambaForCausalLM"]), "'MambaForCausalLM, llama'"),
    "states as others": (of("mamba2", architectures=["JambaForCausalLM"]), "'JambaForCausalLM, mamba2'"),
    "an encoder as a decoder": (of("bert", architectures=["LlamaForCausalLM"]), "'LlamaForCausalLM, bert'"),
    "a language model inside": (of("llava", text_config=PLAIN | of("novel_text")), "model_type 'novel_text'"),
    "a layer's word": (
        of("llama", layer_types=["full_attention", "warp_attention"] * 6),
        "layer_types: 'warp_attention'",
    ),
    "an MLP's word": (of("qwen3_moe", num_experts=8, mlp_layer_types=["hashed"] * 12), "mlp_layer_types: 'hashed'"),
    "a layer's letter": (of("nemotron_h", **_LETTERED | {"hybrid_override_pattern": "MX" * 6}), "pattern: 'X'"),
    "a window's letter": (of("exaone4", sliding_window=512, sliding_window_pattern="LLZ"), "pattern: 'Z'"),
    "an index's letter": (of("glm_moe_dsa", index_topk_pattern="FX" * 6, **_LATENT), "index_topk_pattern: 'X'"),
    "a long name is cut": (of("x" * 500), f"model_type '{'x' * 64}',"),
}


@pytest.mark.parametrize(("more", "named"), UNPLANNED.values(), ids=UNPLANNED)
def test_what_the_planner_does_not_know_is_not_guessed(more: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        config_json.read({**PLAIN, **more})
    assert named in str(caught.value)


_DENSE_FIRST = {"n_routed_experts": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1}
_PERIOD = {"num_experts": 8, "expert_layer_period": 2, "expert_layer_offset": 1}
_FROM = {"moe_num_experts": 8, "moe_layer_start_index": 1, "moe_layer_interval": 1}
EXPERTS = {
    "all": (of("mixtral", num_local_experts=8), "EEEEEEEEEEEE"),
    "dense ones first": (of("deepseek_v3", **_DENSE_FIRST), "...EEEEEEEEE"),
    "a list of zeros and ones": ({"num_experts": 8, "moe_layer_freq": [0, 1] * 6}, ".E.E.E.E.E.E"),
    "a step": (of("qwen3_moe", num_experts=8, decoder_sparse_step=2), ".E.E.E.E.E.E"),
    "chosen dense ones": (of("qwen3_moe", num_experts=8, mlp_only_layers=[0, 11]), ".EEEEEEEEEE."),
    "llama 4's step": (of("llama4_text", num_local_experts=8, interleave_moe_layer_step=2), ".E.E.E.E.E.E"),
    "chosen ones": (of("llama4_text", num_local_experts=8, moe_layers=[1]), ".E.........."),
    "a period and an offset": (of("jamba", **_PERIOD | _JAMBA), ".E.E.E.E.E.E"),
    "from a layer on": (of("ernie4_5_moe", **_FROM), ".EEEEEEEEEEE"),
    "a list of words": ({"num_experts": 8, "mlp_layer_types": ["dense"] + ["sparse"] * 11}, ".EEEEEEEEEEE"),
    "a text": ({"num_experts": 8, "moe_layers_enum": "4,5,6"}, "....EEE....."),
    "one expert is none": ({"num_experts": 1}, "............"),
}


@pytest.mark.parametrize(("more", "expected"), EXPERTS.values(), ids=EXPERTS)
def test_layers_with_experts(more: dict[str, Any], expected: str) -> None:
    made = config_json.read({**PLAIN, "moe_intermediate_size": 512, "num_experts_per_tok": 2, **more})
    assert "".join("E" if layer.feed_forward.experts else "." for layer in made.layers) == expected


_ALL = {"num_key_value_heads": None}
_GROUPS = {"multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128}
HEADS = {
    # key/value heads and width of a key
    "said": (of("llama"), 4, 64),
    "as many as heads": (of("llama", **_ALL), 16, 64),
    "a width of its own": (of("qwen3", head_dim=128), 4, 128),
    "one for all": (of("falcon", multi_query=True, **_ALL), 1, 64),
    "an old name": (of("RefinedWeb", new_decoder_architecture=True, n_head_kv=8, **_ALL), 8, 64),
    "falcon 1b": (of("falcon", multi_query=False, **_ALL), 16, 64),
    "starcoder": (of("gpt_bigcode", multi_query=True), 1, 64),
    "chatglm": (of("chatglm", **_GROUPS, **_ALL), 2, 128),
    "nested": (of("mpt", attn_config={"kv_n_heads": 2}), 2, 64),
}


@pytest.mark.parametrize(("more", "kv_heads", "width"), HEADS.values(), ids=HEADS)
def test_heads(more: dict[str, Any], kv_heads: int, width: int) -> None:
    attention = config_json.read({**PLAIN, **more}).layers[0].attention
    assert (attention.heads, attention.kv_heads, attention.key_dim) == (16, kv_heads, width)


def test_gemma_4s_global_layers_have_other_heads() -> None:
    made = config_json.read(
        {
            **PLAIN,
            "model_type": "gemma4_text",
            "sliding_window": 512,
            "head_dim": 256,
            "global_head_dim": 512,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
        }
    )
    shapes = {(one.attention.kind, one.attention.kv_heads, one.attention.key_dim) for one in made.layers}
    assert shapes == {(Kind.SLIDING, 4, 256), (Kind.FULL, 1, 512)}


def test_layers_that_read_an_earlier_ones_cache() -> None:
    made = config_json.read(
        {**PLAIN, "model_type": "gemma3n_text", "num_kv_shared_layers": 5, "intermediate_size": [4096] * 12}
    )
    assert [layer.attention.shares_cache for layer in made.layers] == [False] * 7 + [True] * 5


@pytest.mark.parametrize(
    ("model_type", "tied"),
    [("llama", False), ("gemma3_text", True), ("gpt2", True), ("qwen2", False), ("cohere", True), ("mamba", True)],
)
def test_tied_embeddings_by_class_where_the_file_is_silent(model_type: str, tied: bool) -> None:
    assert config_json.read({**PLAIN, "model_type": model_type}).tie_word_embeddings is tied
    stated = config_json.read({**PLAIN, "model_type": model_type, "tie_word_embeddings": not tied})
    assert stated.tie_word_embeddings is not tied


def test_qwen4s_tables_stay_in_the_hosts_memory() -> None:
    """By transformers' class: 125,743,653,760 parameters, and 51.2 billion values of n-gram embeddings."""
    config = CONFIGS["qwen3.8-flash-next"]
    made = config_json.read(config)
    assert (made.counted_parameters, made.table_bytes) == (125_743_653_760, 102_400_000_000)
    assert letters(made.layers) == "mmmF" * 12
    assert {(one.attention.index_bytes, one.attention.more_blocks) for one in made.layers} == {(0, 0), (64, 3)}
    words = {"layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 12}
    assert config_json.read(config | {"text_config": config["text_config"] | words}) == made


def test_equal_layers_are_one_object() -> None:
    made = config_json.read({**PLAIN, "model_type": "gemma3_text"})
    assert len({id(layer) for layer in made.layers}) == 2
    assert sum(count for _, count in made.distinct_layers) == 12


def test_the_language_model_of_a_multimodal_file() -> None:
    made = config_json.read(CONFIGS["gemma_3"])
    # google/gemma-3-27b-it by the hub's count; the encoder's norms are counted roughly.
    assert made.counted_parameters == pytest.approx(27_432_406_640, rel=1e-6)
    assert (made.name, made.dtype, made.encoder.tokens) == ("Gemma3ForConditionalGeneration", "bfloat16", 256)
    assert made.max_position_embeddings == 131072
    assert letters(made.layers).count("F") == 10


def test_linear_attention_keeps_a_state() -> None:
    state = config_json.read({**PLAIN, "model_type": "qwen3_next", **_DELTA}).layers[0].attention
    assert (state.conv_values, state.recurrent_values) == ((2 * 4 * 64 + 8 * 64) * 3, 8 * 64 * 64)


def test_experts_of_every_layer_in_a_list() -> None:
    made = config_json.read({**PLAIN, "moe_num_experts": [64, 64], "moe_intermediate_size": [512, 512]})
    assert made.layers[0].feed_forward.experts == 64
    with pytest.raises(InvalidModel, match="num_experts"):
        config_json.read({**PLAIN, "moe_num_experts": ["many"]})


def _sizes(layers: int, hidden: int, heads: int, intermediate: int, vocabulary: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
    }


_QWEN_1 = {"model_type": "qwen", "kv_channels": 128, "no_bias": True, "tie_word_embeddings": False}
_HUNYUAN = {"num_experts": 64, "moe_topk": [8] * 32, "num_shared_expert": [1] * 32, "attention_head_dim": 128}
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    # config.json, and the published number of parameters
    "Qwen-7B: gate and up together have the width": (
        _QWEN_1 | _sizes(32, 4096, 32, 22016, 151936),
        7_721_324_544,
    ),
    "BLOOM: n_embed": (
        {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880},
        176_247_271_424,
    ),
    "Hunyuan-A13B: numbers for each layer": (
        {"model_type": "hunyuan_v1_moe", "num_key_value_heads": 8, "moe_intermediate_size": [3072] * 32}
        | {**_HUNYUAN, **_sizes(32, 4096, 32, 3072, 128167), "tie_word_embeddings": True},
        80_393_183_232,
    ),
    "Falcon-40B: the total tells that its MLP has two matrices and that nothing is tied": (
        _sizes(60, 8192, 128, 32768, 65024)
        | {"num_key_value_heads": 8, "head_dim": 64, "total_parameters": 41_835_000_000},
        41_835_000_000,
    ),
}


@pytest.mark.parametrize(("config", "parameters"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_numbers_of_parameters(config: dict[str, Any], parameters: int) -> None:
    assert config_json.read(config).counted_parameters == pytest.approx(parameters, rel=1e-5)


def test_numbers_for_each_layer_in_runs() -> None:
    """The largest counts, however the list came here."""
    runs = {"num_experts": [[8, 12]], "moe_topk": [[2, 6], [4, 6]], "num_shared_expert": [[1, 12]]}
    made = config_json.read({**PLAIN, **runs, "moe_intermediate_size": [[512, 12]]}).layers[0].feed_forward
    assert (made.experts, made.experts_per_token) == (8, 4)
    assert (made.expert_intermediate, made.shared_intermediate) == (512, 512)


def test_too_many_different_layers_are_refused() -> None:
    nas = {**PLAIN, "model_type": "nemotron-nas", "intermediate_size": None, "block_configs": [{"ffn": {}}] * 12}
    with pytest.raises(Incomplete, match="block_configs"):
        config_json.read(nas)


_INDEX = {"index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048}
INDEXES: dict[str, tuple[dict[str, Any], str]] = {
    "in all layers": ({}, "iiiiiiiiiiii"),
    "in every fourth": ({"index_topk_freq": 4}, "ii...i...i.."),
    "from a layer on": ({"index_topk_freq": 4, "index_skip_topk_offset": 4}, "iiii...i...i"),
    "by letters": ({"index_topk_pattern": "FSSFSS"}, "i..i..iiiiii"),
    "by letters in a list": ({"index_topk_pattern": [["S", 6], ["F", 6]]}, "......iiiiii"),
}


@pytest.mark.parametrize(("more", "expected"), INDEXES.values(), ids=INDEXES)
def test_layers_with_an_index(more: dict[str, Any], expected: str) -> None:
    made = config_json.read({**PLAIN, **of("glm_moe_dsa", **_LATENT, **_INDEX), **more})
    assert "".join("i" if index_width(layer) else "." for layer in made.layers) == expected
    gpus = Request(made, Device("NVIDIA-H200", 139.8, (9, 0)))
    assert len(placed_specs(gpus, Blocks(64, 64), wide_states=False)) == 12 + expected.count("i")
