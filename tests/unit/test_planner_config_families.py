"""What families say in their own ways: which layers are of which kind, and what follows from config.json."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.planner.model import config_json
from llmservice_operator.planner.model.architecture import Incomplete, InvalidModel, Kind, Layer

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
LETTER = {Kind.FULL: "F", Kind.SLIDING: "s", Kind.LATENT: "L", Kind.STATE: "m"}


def letters(layers: tuple[Layer, ...]) -> str:
    """F full, s sliding, c chunked, L latent, m a state, - nothing stored, b a state beside attention."""
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


KINDS = {
    "llama: all full": ({"model_type": "llama"}, "FFFFFFFFFFFF"),
    "an unknown class is a plain decoder": ({"model_type": "brand_new"}, "FFFFFFFFFFFF"),
    "mistral: all sliding": ({"model_type": "mistral", "sliding_window": 4096}, "ssssssssssss"),
    "mistral: null is no window": ({"model_type": "mistral", "sliding_window": None}, "FFFFFFFFFFFF"),
    "qwen2: a window that is not used": (
        {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False},
        "FFFFFFFFFFFF",
    ),
    "qwen2: not said is not used": ({"model_type": "qwen2", "sliding_window": 4096}, "FFFFFFFFFFFF"),
    "qwen2: used from a layer on": (
        {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 8},
        "FFFFFFFFssss",
    ),
    "gemma 2: every other": ({"model_type": "gemma2", "sliding_window": 4096}, "sFsFsFsFsFsF"),
    "gemma 3: every sixth is full": ({"model_type": "gemma3_text", "sliding_window": 1024}, "sssssFsssssF"),
    "gemma 3: its pattern": (
        {"model_type": "gemma3_text", "sliding_window": 1024, "sliding_window_pattern": 4},
        "sssFsssFsssF",
    ),
    "gemma 3n: every fifth is full": ({"model_type": "gemma3n_text"}, "ssssFssssFss"),
    "gemma 4: every sixth is full": ({"model_type": "gemma4_text", "sliding_window": 512}, "sssssFsssssF"),
    "gpt-oss: every other": ({"model_type": "gpt_oss", "sliding_window": 128}, "sFsFsFsFsFsF"),
    "cohere 2: every fourth is full": ({"model_type": "cohere2"}, "sssFsssFsssF"),
    "a list": (
        {"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"] * 6},
        "sFsFsFsFsFsF",
    ),
    "a list in runs": (
        {"sliding_window": 512, "layer_types": [["sliding_attention", 10], ["full_attention", 2]]},
        "ssssssssssFF",
    ),
    "llama 4: chunks where positions are rotated": (
        {"model_type": "llama4_text", "attention_chunk_size": 8192},
        "cccFcccFcccF",
    ),
    "llama 4: a list of zeros and ones": (
        {"model_type": "llama4_text", "attention_chunk_size": 8192, "no_rope_layers": [1, 0] * 6},
        "cFcFcFcFcFcF",
    ),
    "deepseek: latent": ({"model_type": "deepseek_v3", **_LATENT}, "LLLLLLLLLLLL"),
    "minicpm3: latent, and stored in full": ({"model_type": "minicpm3", **_LATENT}, "FFFFFFFFFFFF"),
    "qwen3-next: every fourth is full": ({"model_type": "qwen3_next", **_DELTA}, "mmmFmmmFmmmF"),
    "qwen3.5: every third": ({"model_type": "qwen3_5_text", "full_attention_interval": 3, **_DELTA}, "mmFmmFmmFmmF"),
    "kimi linear: counted from one": (
        {
            "model_type": "kimi_linear",
            "linear_attn_config": {"full_attn_layers": [4, 8, 12], "num_heads": 8, "head_dim": 64},
            **_LATENT,
        },
        "mmmLmmmLmmmL",
    ),
    "jamba: a period and an offset": (
        {"model_type": "jamba", "attn_layer_period": 6, "attn_layer_offset": 2, "mamba_d_state": 16, "mamba_d_conv": 4},
        "mmFmmmmmFmmm",
    ),
    "bamba: chosen layers": ({"model_type": "bamba", "attn_layer_indices": [3, 9], **_MAMBA2}, "mmmFmmmmmFmm"),
    "granite 4: a list": (
        {"model_type": "granitemoehybrid", "layer_types": ["mamba", "mamba", "mamba", "attention"] * 3, **_MAMBA2},
        "mmmFmmmFmmmF",
    ),
    "nemotron-h: letters": (
        {
            "model_type": "nemotron_h",
            "hybrid_override_pattern": "M-M-M*-M-M*-",
            "mamba_num_heads": 32,
            "mamba_head_dim": 64,
        },
        "m-m-mF-m-mF-",
    ),
    "falcon-h1: both in each": ({"model_type": "falcon_h1", **_MAMBA2}, "bbbbbbbbbbbb"),
    "mamba: states alone": ({"model_type": "mamba", "state_size": 16}, "mmmmmmmmmmmm"),
    "lfm2: convolutions": ({"model_type": "lfm2", "full_attn_idxs": [2, 5, 8, 11]}, "mmFmmFmmFmmF"),
    "minimax: numbers": ({"model_type": "minimax", "attn_type_list": [0, 0, 0, 1] * 3}, "mmmFmmmFmmmF"),
}


@pytest.mark.parametrize(("more", "expected"), KINDS.values(), ids=KINDS)
def test_kinds_of_layers(more: dict[str, Any], expected: str) -> None:
    assert letters(config_json.read({**PLAIN, **more}).layers) == expected


EXPERTS = {
    "mixtral: all": ({"model_type": "mixtral", "num_local_experts": 8}, "EEEEEEEEEEEE"),
    "deepseek: dense ones first": (
        {"model_type": "deepseek_v3", "n_routed_experts": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1},
        "...EEEEEEEEE",
    ),
    "a list of zeros and ones": ({"num_experts": 8, "moe_layer_freq": [0, 1] * 6}, ".E.E.E.E.E.E"),
    "qwen: a step": ({"model_type": "qwen3_moe", "num_experts": 8, "decoder_sparse_step": 2}, ".E.E.E.E.E.E"),
    "qwen: chosen dense ones": (
        {"model_type": "qwen3_moe", "num_experts": 8, "mlp_only_layers": [0, 11]},
        ".EEEEEEEEEE.",
    ),
    "llama 4: a step": (
        {"model_type": "llama4_text", "num_local_experts": 8, "interleave_moe_layer_step": 2},
        ".E.E.E.E.E.E",
    ),
    "llama 4: chosen": ({"model_type": "llama4_text", "num_local_experts": 8, "moe_layers": [1]}, ".E.........."),
    "jamba: a period and an offset": (
        {"model_type": "jamba", "num_experts": 8, "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_conv": 4}
        | {"attn_layer_period": 1, "mamba_d_state": 16},
        ".E.E.E.E.E.E",
    ),
    "ernie: from a layer on": (
        {"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_layer_start_index": 1, "moe_layer_interval": 1},
        ".EEEEEEEEEEE",
    ),
    "a list of words": ({"num_experts": 8, "mlp_layer_types": ["dense"] + ["sparse"] * 11}, ".EEEEEEEEEEE"),
    "step3: a text": ({"num_experts": 8, "moe_layers_enum": "4,5,6"}, "....EEE....."),
    "one expert is none": ({"num_experts": 1}, "............"),
}


@pytest.mark.parametrize(("more", "expected"), EXPERTS.values(), ids=EXPERTS)
def test_layers_with_experts(more: dict[str, Any], expected: str) -> None:
    made = config_json.read({**PLAIN, "moe_intermediate_size": 512, "num_experts_per_tok": 2, **more})
    assert "".join("E" if layer.feed_forward.experts else "." for layer in made.layers) == expected


HEADS = {
    # key/value heads and width of a key
    "said": ({"model_type": "llama"}, 4, 64),
    "as many as heads": ({"model_type": "llama", "num_key_value_heads": None}, 16, 64),
    "a width of its own": ({"model_type": "qwen3", "head_dim": 128}, 4, 128),
    "falcon 7b: one for all": ({"model_type": "falcon", "multi_query": True, "num_key_value_heads": None}, 1, 64),
    "falcon 40b: an old name": (
        {"model_type": "RefinedWeb", "new_decoder_architecture": True, "n_head_kv": 8, "num_key_value_heads": None},
        8,
        64,
    ),
    "falcon 1b: as many as heads": (
        {"model_type": "falcon", "multi_query": False, "num_key_value_heads": None},
        16,
        64,
    ),
    "starcoder: one for all": ({"model_type": "gpt_bigcode", "multi_query": True}, 1, 64),
    "chatglm: groups": (
        {
            "model_type": "chatglm",
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "num_key_value_heads": None,
            "kv_channels": 128,
        },
        2,
        128,
    ),
    "mpt: nested": ({"model_type": "mpt", "attn_config": {"kv_n_heads": 2}}, 2, 64),
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


def test_equal_layers_are_one_object() -> None:
    made = config_json.read({**PLAIN, "model_type": "gemma3_text"})
    assert len({id(layer) for layer in made.layers}) == 2
    assert sum(count for _, count in made.distinct_layers) == 12


def test_the_language_model_of_a_multimodal_file() -> None:
    tower = {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27, "patch_size": 14}
    made = config_json.read(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "dtype": "bfloat16",
            "mm_tokens_per_image": 256,
            "vision_config": {**tower, "intermediate_size": 4304, "image_size": 896},
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 5376,
                "intermediate_size": 21504,
                "num_hidden_layers": 62,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "head_dim": 128,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
        }
    )
    # google/gemma-3-27b-it by the hub's count; the encoder's norms are counted roughly.
    assert made.counted_parameters == pytest.approx(27_432_406_640, rel=1e-6)
    assert (made.name, made.dtype, made.tokens_per_image) == ("Gemma3ForConditionalGeneration", "bfloat16", 256)
    assert made.max_position_embeddings == 131072
    assert letters(made.layers).count("F") == 10


def test_experts_of_every_layer_in_a_list() -> None:
    made = config_json.read({**PLAIN, "moe_num_experts": [64, 64], "moe_intermediate_size": [512, 512]})
    assert made.layers[0].feed_forward.experts == 64
    with pytest.raises(InvalidModel, match="num_experts"):
        config_json.read({**PLAIN, "moe_num_experts": ["many"]})


_QWEN_1 = {
    "model_type": "qwen",
    "architectures": ["QWenLMHeadModel"],
    "kv_channels": 128,
    "no_bias": True,
    "seq_length": 8192,
    "tie_word_embeddings": False,
}
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    # config.json, and the published number of parameters
    "Qwen-7B: gate and up together have the width": (
        {
            **_QWEN_1,
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "intermediate_size": 22016,
            "vocab_size": 151936,
        },
        7_721_324_544,
    ),
    "Qwen-14B": (
        {
            **_QWEN_1,
            "num_hidden_layers": 40,
            "hidden_size": 5120,
            "num_attention_heads": 40,
            "intermediate_size": 27392,
            "vocab_size": 152064,
        },
        14_167_290_880,
    ),
    "BLOOM: n_embed": (
        {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880},
        176_247_271_424,
    ),
    "Hunyuan-A13B: numbers for each layer": (
        {
            "model_type": "hunyuan_v1_moe",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "attention_head_dim": 128,
            "intermediate_size": 3072,
            "vocab_size": 128167,
            "num_experts": 64,
            "moe_topk": [8] * 32,
            "num_shared_expert": [1] * 32,
            "moe_intermediate_size": [3072] * 32,
            "tie_word_embeddings": True,
        },
        80_393_183_232,
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
