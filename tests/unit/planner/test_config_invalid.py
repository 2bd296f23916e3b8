"""Nobody's config.json stops the planner: it is read, or says which key is missing or wrong."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from llmservice_planner import memory
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import Incomplete, InvalidModel, UnsupportedModel
from llmservice_planner.model.families import FAMILIES
from llmservice_planner.plan import Request
from llmservice_planner.remedies import with_remedies
from llmservice_planner.weights import weigh

from tests.unit.planner_models import CONFIGS, gpu

BASE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "intermediate_size": 512,
}
_NAMES = """
    num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim vocab_size intermediate_size
    max_position_embeddings sliding_window use_sliding_window max_window_layers layer_types sliding_window_pattern
    num_experts num_local_experts moe_intermediate_size num_experts_per_tok first_k_dense_replace moe_layer_freq
    mlp_only_layers decoder_sparse_step n_shared_experts kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim
    v_head_dim mla tie_word_embeddings dtype rope_scaling rope_parameters quantization_config text_config vision_config
    attn_config ffn_config linear_attention linear_attn_config full_attention_interval hybrid_override_pattern
    attn_layer_indices mamba_n_heads mamba_d_head total_parameters num_kv_shared_layers hidden_size_per_layer_input
    word_embed_proj_dim multi_query new_decoder_architecture attention_chunk_size no_rope_layers architectures
"""
KEYS = _NAMES.split()
_PLAIN = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(-(2**70), 2**70),
    some.integers(0, 64),
    some.floats(),
    some.sampled_from(["", "auto", "full_attention", "MM*-", "bfloat16", "awq", "yarn"]),
)
_VALUES = some.recursive(
    _PLAIN,
    lambda inner: some.one_of(
        some.lists(inner, max_size=5),
        some.dictionaries(
            some.sampled_from([*KEYS, "quant_method", "bits", "group_size", "factor", "rope_type", "config_groups"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)


@given(
    more=some.dictionaries(some.sampled_from(KEYS), _VALUES, max_size=6),
    model_type=some.sampled_from([*FAMILIES, "unheard_of"]),
)
def test_any_values_under_the_known_keys(more: dict[str, Any], model_type: str) -> None:
    with contextlib.suppress(InvalidModel, Incomplete, UnsupportedModel):
        weigh(Request(config_json.read(BASE | {"model_type": model_type} | more), None, tensor_parallel_size=3))


def test_every_family_of_few_keys() -> None:
    for model_type in FAMILIES:
        with contextlib.suppress(Incomplete):
            made = config_json.read(BASE | {"model_type": model_type})
            assert made.counted_parameters > BASE["vocab_size"] * BASE["hidden_size"], model_type


_EMPTY = {"model_type": "exaone4", "sliding_window": 128, "sliding_window_pattern": ""}
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("num_hidden_layers", {"num_hidden_layers": -1}),
    ("num_hidden_layers", {"num_hidden_layers": 10**9}),
    ("hidden_size", {"hidden_size": "4096"}),
    ("hidden_size", {"hidden_size": True}),
    ("hidden_size", {"hidden_size": 1.5}),
    ("vocab_size", {"vocab_size": float("nan")}),
    ("tie_word_embeddings", {"tie_word_embeddings": "yes"}),
    ("model_type", {"model_type": 7}),
    ("layer_types", {"layer_types": ["full_attention"]}),
    ("layer_types", {"layer_types": [["full_attention", 10**9]]}),
    ("sliding_window_pattern", _EMPTY),
    ("rope_scaling", {"rope_scaling": "yarn"}),
    ("rope_scaling.factor", {"rope_scaling": {"factor": -1}}),
    ("quantization_config", {"quantization_config": []}),
    ("quant_method", {"quantization_config": {"bits": 4}}),
    ("quantization_config.bits", {"quantization_config": {"quant_method": "awq", "bits": -4}}),
    ("weight_block_size", {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}),
    ("num_attention_heads", {"num_attention_heads": 512}),
]


@pytest.mark.parametrize(("key", "more"), WRONG, ids=str)
def test_what_is_wrong_is_named(key: str, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidModel, match=key):
        config_json.read(BASE | more)


@pytest.mark.parametrize("document", [None, [], "config", 7])
def test_no_object_at_all(document: Any) -> None:
    with pytest.raises(InvalidModel):
        config_json.read(document)


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"])
def test_what_is_missing_is_named(key: str) -> None:
    with pytest.raises(Incomplete) as caught:
        config_json.read({name: value for name, value in BASE.items() if name != key})
    assert caught.value.missing == (key,)


_HOSTILE = "\x1b[31mq\n\u202e"
_CT: dict[str, Any] = {"quant_method": "compressed-tensors"}
SHOWN: dict[str, dict[str, Any]] = {
    # Files with a text that a message shows.
    "a method": {"quantization_config": {"quant_method": _HOSTILE}},
    "a method whose bits are known": {"quantization_config": {"quant_method": _HOSTILE, "bits": 4}},
    "a long method": {"quantization_config": {"quant_method": "awq" * 10**5, "bits": 4}},
    "experts": {**CONFIGS["deepseek-v4-flash"], "expert_dtype": _HOSTILE},
    "the name of a group": {"quantization_config": _CT | {"config_groups": {_HOSTILE: {"weights": {"num_bits": ""}}}}},
    "a long name": {"quantization_config": _CT | {"config_groups": {"x" * 10**5: {"weights": 7}}}},
    "a pattern": {"quantization_config": _CT | {"ignore": ["re:\x1b[31m[\n"]}},
    "a glob": {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["*[\x1b-\x01]"]}},
    "a type": {"model_type": _HOSTILE},
    "a class": {"model_type": "llama", "architectures": ["MambaForCausalLM", _HOSTILE]},
    "a layer": {"layer_types": [_HOSTILE] * BASE["num_hidden_layers"]},
    "a value": {"hidden_size": _HOSTILE},
}


@pytest.mark.parametrize("more", SHOWN.values(), ids=SHOWN)
def test_what_a_file_says_is_shown_without_what_a_terminal_obeys(more: dict[str, Any]) -> None:
    try:
        request = Request(config_json.read(BASE | more), gpu("NVIDIA-H100-80GB-HBM3"))
        plan = with_remedies(request, memory.plan(request))
    except (Incomplete, InvalidModel, UnsupportedModel) as error:
        said = [str(error)]
    else:
        said = [plan.reason, *plan.missing, *(line.formula for line in plan.explanation)]
    assert all(one.isprintable() and len(one) < 1000 for one in said), said


def test_null_is_absent() -> None:
    nothing = dict.fromkeys(["head_dim", "num_key_value_heads", "rope_scaling", "quantization_config", "layer_types"])
    assert config_json.read(BASE | nothing) == config_json.read(BASE)


_GLOBS = [f"model.layers.{n}.{part}*" for n in range(94) for part in ("self_attn", "mlp.gate")]
_USUAL = ["re:.*lm_head", "re:.*mlp.gate$", "re:model.layers.*.self_attn.*"]
PATTERNS: dict[str, tuple[list[Any], int, bool]] = {
    # the list, layers, is it read
    "as many globs as ModelOpt writes for a large model": (_GLOBS, 94, True),
    "one name, 512 times": ([["x0", 512]], 1024, True),
    "usual ones": (_USUAL, 126, True),
    "a name for each layer": ([f"model.layers.{n}.self_attn.q_proj" for n in range(126)], 126, True),
    "patterns with digits, for many layers": ([f"re:.*q.*{n}" for n in range(180)], 1024, False),
    "names with digits, for many layers": ([f"x{n}" for n in range(512)], 1024, False),
    "many, for some layers": ([f"re:b{n}" for n in range(200)], 256, False),
}


@pytest.mark.parametrize(("ignore", "layers", "is_read"), PATTERNS.values(), ids=PATTERNS)
def test_more_patterns_than_can_be_tried_are_refused(ignore: list[Any], layers: int, is_read: bool) -> None:
    section = {"quantization_config": {"quant_method": "compressed-tensors", "ignore": ignore}}
    document = BASE | {"num_hidden_layers": layers} | section
    if is_read:
        assert len(config_json.read(document).layers) == layers
    else:
        with pytest.raises(InvalidModel, match="more patterns"):
            config_json.read(document)
