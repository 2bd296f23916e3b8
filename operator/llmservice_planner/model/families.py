"""Properties of model classes that config.json lacks: biases, norms, old names, defaults.

By model_type, never by a repository's name. The facts are those of the classes in transformers 5 and vLLM;
tests/unit/planner/test_config_real.py compares counts with the real classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from llmservice_planner.model.architecture import Linear, Part, Split
from llmservice_planner.model.config_keys import Keys

Defaults = dict[str, Any]
"""Keys of config.json with the values of published files that omit them."""


@dataclass(frozen=True, slots=True)
class Family:
    """Properties of a model class. The default is Llama's."""

    gated: bool = True
    """The MLP has three matrices."""
    tied: bool = False
    """tie_word_embeddings if config.json lacks it."""
    norms: int = 2
    """Norms of hidden width in a layer."""
    norm_bias: bool = False
    """They are LayerNorms: a weight and a bias."""
    qkv_bias: bool = False
    """attention_bias if config.json lacks it."""
    output_bias: bool = False
    """Bias of o_proj where attention_bias does not apply to it."""
    mlp_bias: bool = False
    bias_key: str | None = "attention_bias"
    """The key that says whether attention has biases; None: the class decides."""
    bias_of_output: bool = True
    """That key applies to o_proj too."""
    qk_norm: Literal["", "head", "all", "heads"] = ""
    """Norms of queries and keys: one of a head's width, one over all heads, or one per head."""
    query_gate: bool = False
    """Each query has a gate."""
    sinks: bool = False
    """A value per head that attention may select instead of a token."""
    rope: bool = True
    """It has tables of sines and cosines."""
    positions: int | None = None
    """Learned positions: max_position_embeddings plus so many; None: none."""
    embedding_norm: bool = False
    """A norm follows the embedding."""
    final_norm: bool = True
    head_bias: bool = False
    window_everywhere: bool = True
    """sliding_window without layer_types applies to every layer; else to those that the class selects."""
    shared_gate: bool = False
    """A gate with one output weighs the shared experts."""
    router_bias: bool = False
    """A value per expert beside the router: e_score_correction_bias, or the router's own bias."""
    expert_bias: bool = False
    is_encoder: bool = False
    """Each token attends to its whole request, so that nothing is stored; no head follows."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """transformers' defaults of keys that published files omit."""


LLAMA = Family()
_LAYER_NORM = Family(norm_bias=True)
_GPT = replace(
    _LAYER_NORM, gated=False, tied=True, qkv_bias=True, output_bias=True, mlp_bias=True, bias_key=None, rope=False
)
_GEMMA = Family(tied=True, norms=4, qk_norm="head", bias_of_output=True, window_everywhere=False)
_QWEN2 = Family(qkv_bias=True, bias_key=None, window_everywhere=False)
_QWEN3 = Family(qk_norm="head", window_everywhere=False)
_DEEPSEEK = Family(router_bias=True, bias_of_output=True)
_COHERE = Family(tied=True, norms=1)
_OPENAI_MOE = Family(qkv_bias=True, output_bias=True, window_everywhere=False, router_bias=True, expert_bias=True)
_HALF = {"partial_rotary_factor": 0.5}


def _sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int | None, words: int, length: int) -> Defaults:
    """transformers' default sizes of a class."""
    found = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": words}
    found |= {"num_attention_heads": heads, "max_position_embeddings": length}
    return found if kv_heads is None else found | {"num_key_value_heads": kv_heads}


def _windows(window: int, pattern: int, head_dim: int = 256) -> Defaults:
    """Windows in all layers except each `pattern`-th."""
    return {"head_dim": head_dim, "sliding_window": window, "sliding_window_pattern": pattern}


_OF_LLAMAS_KIND = """
    granite granite_swa granitemoe granitemoeshared granitemoe_swa mistral mixtral llama falcon_h1 Yi aquila axk1
    bailing_moe bailing_moe_v2 cohere2_moe cwm deepseek exaone exaone_moe flex_olmo glm4_moe_lite hunyuan_v1_dense
    hunyuan_v1_moe hy_v3 hyperclovax internlm internlm3 iquestcoder mellum minicpm minicpm3 minimax nanbeige
    nemotron-nas olmo_hybrid solar step1 telechat2 telechat3 teleflm TeleFLM vaultgemma xverse
"""
_BERT = Family(
    is_encoder=True, gated=False, tied=True, norm_bias=True, qkv_bias=True, output_bias=True, mlp_bias=True,
    bias_key=None, rope=False, positions=0, embedding_norm=True, final_norm=False,
)  # fmt: skip
_ROTARY_BERT = replace(_BERT, rope=True, positions=None)
_BERT_SIZES = _sizes(768, 3072, 12, 12, None, 30522, 512)
FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(_OF_LLAMAS_KIND.split(), LLAMA),
    "bert": replace(_BERT, defaults={**_BERT_SIZES, "type_vocab_size": 2}),
    "roberta": replace(_BERT, defaults={**_BERT_SIZES, "type_vocab_size": 2, "vocab_size": 50265}),
    "modernbert": Family(
        is_encoder=True, tied=True, norm_bias=False, defaults=_sizes(768, 1152, 22, 12, None, 50368, 8192)
    ),
    "nomic_bert": replace(
        _ROTARY_BERT,
        gated=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        bias_key="qkv_proj_bias",
        bias_of_output=True,
        defaults={"type_vocab_size": 2},
    ),
    "new": replace(_ROTARY_BERT, gated=True, mlp_bias=False, defaults={"type_vocab_size": 1}),
    "orion": _LAYER_NORM,
    "arcee": Family(gated=False),
    "jais2": Family(gated=False, norm_bias=True),
    "apertus": Family(gated=False, qk_norm="head"),
    "gpt2": replace(_GPT, positions=0),
    "gpt_bigcode": replace(_GPT, positions=0),
    "gpt_neox": replace(
        _GPT, rope=True, tied=False, bias_key="attention_bias", defaults={"partial_rotary_factor": 0.25}
    ),
    "gptj": Family(gated=False, norms=1, norm_bias=True, mlp_bias=True, bias_key=None, head_bias=True),
    "opt": replace(_GPT, positions=2),
    "bloom": replace(_GPT, embedding_norm=True),
    "mpt": Family(gated=False, tied=True, bias_key=None, rope=False),
    "falcon": Family(gated=False, tied=True, norms=1, norm_bias=True, bias_key="bias"),
    "starcoder2": replace(_GPT, rope=True, bias_key="use_bias"),
    "phi": replace(_GPT, rope=True, tied=False, norms=1, head_bias=True, defaults=_HALF),
    **dict.fromkeys(("phi3", "phi4_multimodal", "phi4mm", "baichuan", "dbrx"), Family(bias_key=None)),
    "phimoe": replace(_LAYER_NORM, head_bias=False),
    "stablelm": Family(norm_bias=True, bias_key="use_qkv_bias", bias_of_output=False),
    "nemotron": Family(gated=False, norm_bias=True),
    "qwen": Family(qkv_bias=True, bias_key=None),
    "qwen2_moe": replace(_QWEN2, shared_gate=True),
    **dict.fromkeys(("qwen2", "mimo", "qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker"), _QWEN2),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe"), _QWEN3),
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe"), replace(_QWEN3, shared_gate=True, query_gate=True)),
    "qwen4_exp": replace(_QWEN3, shared_gate=True, query_gate=True, norms=0, final_norm=False),
    "gemma": Family(tied=True, defaults={"head_dim": 256}),
    "gemma2": replace(_GEMMA, qk_norm="", defaults=_windows(4096, 2)),
    "gemma3": replace(_GEMMA, defaults={**_sizes(2304, 9216, 26, 8, 4, 262208, 131072), **_windows(4096, 6)}),
    "gemma3n": replace(_GEMMA, defaults=_windows(512, 5)),
    "gemma4": replace(_GEMMA, defaults={"head_dim": 256, "global_head_dim": 512, "sliding_window_pattern": 6}),
    "cohere": replace(_COHERE, defaults={}),
    "cohere2": replace(
        _COHERE, window_everywhere=False, defaults={"sliding_window_pattern": 4, "sliding_window": 4096}
    ),
    "deepseek_v2": replace(_DEEPSEEK, router_bias=False),
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "glm": Family(qkv_bias=True, bias_of_output=False, defaults=_HALF),
    "glm4": Family(norms=4, qkv_bias=True, bias_of_output=False, defaults=_HALF),
    "glm4_moe": Family(router_bias=True, bias_of_output=False, defaults=_HALF),
    "chatglm": Family(bias_key="add_qkv_bias", bias_of_output=False, defaults=_HALF),
    "gpt_oss": replace(_OPENAI_MOE, bias_key="attention_bias", sinks=True, defaults={"sliding_window_pattern": 2}),
    "olmo": Family(norms=0, final_norm=False),
    **dict.fromkeys(("olmo2", "olmo3", "olmoe"), Family(qk_norm="all")),
    "minimax_m2": Family(qk_norm="all", router_bias=True, bias_key=None),
    "exaone4": Family(qk_norm="head", window_everywhere=False),
    "smollm3": Family(tied=True, window_everywhere=False),
    "seed_oss": Family(qkv_bias=True, bias_of_output=False),
    "granitemoehybrid": Family(window_everywhere=False),
    "ministral": Family(window_everywhere=False),
    "llama4": Family(window_everywhere=False, bias_key="attention_bias"),
    **dict.fromkeys(("mamba", "falcon_mamba"), Family(tied=True, norms=1, rope=False)),
    "mamba2": Family(norms=1, rope=False),
    "jamba": Family(rope=False, window_everywhere=False, bias_key=None),
    "bamba": Family(window_everywhere=False),
    "nemotron_h": Family(gated=False, norms=1, rope=False, window_everywhere=False, router_bias=True),
    "internlm2": Family(bias_key="bias"),
    "ernie4_5": Family(tied=True, bias_key="use_bias"),
    "ernie4_5_moe": Family(tied=True, bias_key="use_bias", router_bias=True),
    "lfm2": Family(tied=True, qk_norm="head", bias_key=None, defaults={"block_auto_adjust_ff_dim": True}),
    "lfm2_moe": Family(tied=True, qk_norm="head", bias_key=None, router_bias=True),
    "deepseek_v4": Family(router_bias=True),
    "kimi_linear": replace(_DEEPSEEK, rope=False),
}
"""By model_type, without `_text` and similar suffixes of nested configs."""

_LINEAR = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4}
_LINEAR |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
NESTED_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": _sizes(4096, 11008, 32, 32, None, 32000, 2048),
    "mistral": _sizes(4096, 14336, 32, 32, 8, 32000, 131072),
    "qwen2": _sizes(4096, 22016, 32, 32, None, 151936, 32768),
    "gemma": {"vocab_size": 256000, "max_position_embeddings": 8192, "num_attention_heads": 16},
    "gemma3n": {
        **_sizes(2048, 16384, 35, 8, 2, 262400, 32768),
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "altup_num_inputs": 4,
        "laurel_rank": 64,
        "num_kv_shared_layers": 15,
    },
    "gemma4": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262144,
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
    },
    "qwen3_next": _LINEAR,
    "qwen3_5": _LINEAR,
    "qwen4_exp": _LINEAR,
    "qwen3_5_moe": {**_LINEAR, "shared_expert_intermediate_size": 512},
}
"""transformers' defaults for the language model's part of a multimodal file, which contains only differences."""

_ENDINGS = ("_text", "_text_model", "_moe_text", "_vl_text", "_language")
_SAME: Mapping[str, str] = {
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "gte": "new",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "qwen3_vl_text": "qwen3",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "deepseek_v32": "deepseek_v3",
    "glm_moe_dsa": "deepseek_v3",
    "kimi_k25": "kimi_k2",
    "glm4v": "glm4",
    "glm4v_moe": "glm4_moe",
    "ministral3": "ministral",
    "mistral4": "deepseek_v3",
    "gemma4_unified": "gemma4",
    "ernie4_5_vl_moe": "ernie4_5_moe",
}


def canonical(model_type: str) -> str:
    """The table's name for a model_type."""
    for ending in ("", *_ENDINGS):
        stem = model_type.removesuffix(ending)
        name = _SAME.get(stem, stem)
        if name in FAMILIES:
            return name
    return model_type


def family_of(model_type: str) -> Family:
    """Properties of a model_type; Llama's if unknown."""
    return FAMILIES.get(canonical(model_type), LLAMA)


def gemma_per_layer(keys: Keys) -> tuple[tuple[Linear, ...], int]:
    """Per layer: matrices, and values that every rank holds in addition."""
    width, hidden = keys.count("hidden_size_per_layer_input"), keys.needed("hidden_size")
    linears: tuple[Linear, ...] = ()
    small = 0
    if width:
        linears = (
            Linear("per_layer_input_gate", Part.ATTENTION, hidden, width, Split.NONE),
            Linear("per_layer_projection", Part.ATTENTION, width, hidden, Split.NONE),
        )
        small += hidden
    rank, paths = keys.count("laurel_rank"), keys.count("altup_num_inputs")
    if rank:
        linears += (
            Linear("laurel.linear_left", Part.ATTENTION, hidden, rank, Split.NONE),
            Linear("laurel.linear_right", Part.ATTENTION, rank, hidden, Split.NONE),
        )
        small += hidden
    if paths:
        # AltUp: a router with its norm, a scale, and small matrices that predict and correct.
        small += paths * hidden + 2 * hidden + paths**2 + paths**3
    return linears, small


def gemma_extra(keys: Keys, layers: int) -> list[Linear]:
    """Matrices before and after the layers."""
    found: list[Linear] = []
    width, hidden = keys.count("hidden_size_per_layer_input"), keys.needed("hidden_size")
    if width:
        words = keys.integer("vocab_size_per_layer_input") or keys.needed("vocab_size")
        found += [
            Linear("embed_tokens_per_layer", Part.OTHER, words, width * layers, plain=True),
            Linear("per_layer_model_projection", Part.OTHER, hidden, width * layers),
        ]
    paths = keys.count("altup_num_inputs")
    if paths > 1:
        found.append(Linear("altup_projections", Part.OTHER, hidden, hidden, Split.NONE, count=2 * (paths - 1)))
    return found


def gemma_extra_parameters(keys: Keys) -> int:
    """Parameters of their norms."""
    return keys.count("hidden_size_per_layer_input")
