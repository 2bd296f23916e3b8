"""The attention of one layer: what it stores for a token, and its matrices as checkpoints have them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmservice_operator.planner.model.architecture import Attention, InvalidModel, Kind, Linear, Part, Split, Unplanned
from llmservice_operator.planner.model.config_keys import Keys
from llmservice_operator.planner.model.families import Family


@dataclass(frozen=True, slots=True)
class Mixer:
    """A token mixer with its weights."""

    attention: Attention
    linears: tuple[Linear, ...]
    small: int = 0


def matrix(module: str, inputs: int, outputs: int, *, bias: bool = False, units: int = 0) -> Linear:
    """A matrix of attention that tensor-parallel ranks share."""
    return Linear(f"self_attn.{module}", Part.ATTENTION, inputs, outputs, units=units, bias=outputs if bias else 0)


def whole(module: str, inputs: int, outputs: int, *, bias: bool = False) -> Linear:
    """A matrix of attention that every rank holds."""
    return Linear(f"self_attn.{module}", Part.ATTENTION, inputs, outputs, split=Split.NONE, bias=outputs if bias else 0)


def attention(keys: Keys, family: Family, kind: str, has_index: bool = True) -> Mixer:
    """What a layer of that kind is: full, sliding or chunked; `has_index`: where sparse attention has one at all."""
    if not latent(keys) or kind != "full":
        return _grouped(keys, family, kind)
    found = _latent(keys, has_index)
    return _expanded(found) if keys.text("model_type") in _EXPANDED else found


_EXPANDED = ("minicpm3",)
"""vLLM stores all heads' keys and values of these, as if they were not compressed."""


def _expanded(mixer: Mixer) -> Mixer:
    own = mixer.attention
    return replace(
        mixer, attention=replace(own, kind=Kind.FULL, kv_heads=own.heads, value_dim=own.key_dim, latent_dim=0)
    )


def indexed(keys: Keys, layers: int) -> tuple[bool, ...]:
    """Which layers find their tokens with an index of their own; the others take what an earlier one found
    (vllm/models/deepseek_v32/attention.py: S skips)."""
    pattern = keys.raw("index_topk_pattern")
    if pattern is not None:
        letters = tuple(pattern) if isinstance(pattern, str) else keys.words("index_topk_pattern") or ()
        for letter in letters:
            if letter not in ("F", "S"):
                raise Unplanned("index_topk_pattern", letter)
        return tuple(index >= len(letters) or letters[index] == "F" for index in range(layers))
    every, first = keys.integer("index_topk_freq") or 1, keys.count("index_skip_topk_offset", default=2)
    return tuple(max(index - first + 1, 0) % every == 0 for index in range(layers))


def latent(keys: Keys) -> bool:
    """Whether the model compresses keys and values (MLA)."""
    return keys.has("kv_lora_rank", "mla")


def heads_of(keys: Keys) -> int:
    """Attention heads."""
    return keys.needed("num_attention_heads", most=2**16)


def kv_heads_of(keys: Keys) -> int:
    """Key/value heads, with the old names of multi-query attention."""
    heads = heads_of(keys)
    nested = keys.section("attn_config")
    if nested is not None and nested.has("kv_n_heads"):
        return nested.needed("kv_n_heads", most=2**16)
    if keys.has("new_decoder_architecture", "multi_query"):
        if keys.flag("multi_query") and not keys.flag("new_decoder_architecture"):
            return 1
        return keys.integer("num_key_value_heads", most=2**16) or heads
    if keys.raw("multi_query_attention") is False:
        return heads
    return keys.integer("num_key_value_heads", most=2**16) or heads


def head_dim_of(keys: Keys) -> int:
    """Width of a head, stated or hidden_size / num_attention_heads."""
    stated = keys.integer("head_dim", least=0, most=2**16)
    if stated:
        return stated
    hidden, heads = keys.needed("hidden_size"), heads_of(keys)
    if hidden < heads:
        raise InvalidModel("num_attention_heads", f"is {heads}, more than hidden_size {hidden}")
    return hidden // heads


def _grouped(keys: Keys, family: Family, kind: str) -> Mixer:
    hidden, heads, kv_heads, dim = keys.needed("hidden_size"), heads_of(keys), kv_heads_of(keys), head_dim_of(keys)
    same = False
    if kind == "full":
        dim = keys.integer("global_head_dim") or dim
        same = keys.flag("attention_k_eq_v")
        if same:
            kv_heads = keys.integer("num_global_key_value_heads") or kv_heads
    value_dim = keys.integer("v_head_dim") or dim
    biased, output_biased = _biases(keys, family)
    linears = [
        matrix("q_proj", hidden, heads * dim * _query_width(keys, family), bias=biased, units=heads),
        matrix("k_proj", hidden, kv_heads * dim, bias=biased, units=kv_heads),
    ]
    values = matrix("v_proj", hidden, kv_heads * value_dim, bias=biased, units=kv_heads)
    linears.append(replace(values, copy=same))
    output = Linear(
        "self_attn.o_proj", Part.ATTENTION, heads * value_dim, hidden, units=heads, bias=hidden if output_biased else 0
    )
    linears.append(output)
    window = _window(keys, kind)
    return Mixer(
        Attention(
            Kind.FULL if window is None else Kind.SLIDING,
            heads=heads,
            kv_heads=kv_heads,
            key_dim=dim,
            value_dim=value_dim,
            window=window,
            chunked=kind == "chunked",
        ),
        tuple(linears),
        _norms(keys, family, heads, kv_heads, dim) + (heads if family.sinks else 0),
    )


def encoding(mixer: Mixer) -> Mixer:
    """The same in a model whose tokens attend to all of their request: it is one step, and nothing is stored."""
    return replace(mixer, attention=replace(mixer.attention, kind=Kind.ENCODER, window=None))


def sharing(mixer: Mixer, keys: Keys) -> Mixer:
    """The same in a layer that reads what an earlier one stored, and has no keys and values of its own."""
    own = ("self_attn.k_proj", "self_attn.v_proj")
    # Gemma 3n's class in vLLM has room for them all the same.
    room = keys.has("altup_num_inputs")
    linears = tuple(
        replace(linear, copy=True) if linear.module in own else linear
        for linear in mixer.linears
        if room or linear.module not in own
    )
    norm = mixer.attention.key_dim if mixer.small else 0
    return Mixer(replace(mixer.attention, shares_cache=True), linears, mixer.small - norm)


def _window(keys: Keys, kind: str) -> int | None:
    if kind == "sliding":
        return keys.needed("sliding_window", "sliding_window_size")
    if kind == "chunked":
        return keys.needed("attention_chunk_size")
    return None


def _query_width(keys: Keys, family: Family) -> int:
    """Qwen3-Next and later put a gate beside each query."""
    return 2 if keys.flag("attn_output_gate", family.query_gate) else 1


def _biases(keys: Keys, family: Family) -> tuple[bool, bool]:
    """Of q, k and v, and of the output."""
    if family.bias_key is None or not keys.has(family.bias_key):
        return family.qkv_bias, family.output_bias
    stated = keys.flag(family.bias_key)
    return stated, stated and family.bias_of_output


def _norms(keys: Keys, family: Family, heads: int, kv_heads: int, dim: int) -> int:
    if not family.qk_norm or keys.raw("use_qk_norm") is False:
        return 0
    if family.qk_norm == "head":
        return 2 * dim
    return (heads + kv_heads) * dim


def _latent(keys: Keys, has_index: bool) -> Mixer:
    facts = keys.section("mla") or keys
    hidden, heads = keys.needed("hidden_size"), heads_of(keys)
    rank, rope = facts.needed("kv_lora_rank"), facts.needed("qk_rope_head_dim", least=0)
    nope, value = facts.needed("qk_nope_head_dim", least=0), facts.needed("v_head_dim")
    query_rank = facts.integer("q_lora_rank", least=0) or 0
    biased = keys.flag("attention_bias")
    if query_rank:
        queries = [
            whole("q_a_proj", hidden, query_rank, bias=biased),
            matrix("q_b_proj", query_rank, heads * (nope + rope), units=heads),
        ]
    else:
        queries = [matrix("q_proj", hidden, heads * (nope + rope), units=heads)]
    linears = (
        *queries,
        whole("kv_a_proj_with_mqa", hidden, rank + rope, bias=biased),
        matrix("kv_b_proj", rank, heads * (nope + value), units=heads),
        Linear("self_attn.o_proj", Part.ATTENTION, heads * value, hidden, units=heads, bias=hidden if biased else 0),
    )
    indexer, small = _indexer(keys, hidden, query_rank) if has_index else ((), 0)
    linears = (*linears, *indexer)
    return Mixer(
        Attention(
            Kind.LATENT,
            heads=heads,
            kv_heads=1,
            key_dim=nope + rope,
            value_dim=value,
            latent_dim=rank,
            rope_dim=rope,
            query_rank=query_rank,
        ),
        linears,
        rank + query_rank + small,
    )


def _indexer(keys: Keys, hidden: int, query_rank: int) -> tuple[tuple[Linear, ...], int]:
    """DeepSeek V3.2's sparse attention picks tokens with a small attention of its own."""
    heads, dim = keys.integer("index_n_heads"), keys.integer("index_head_dim")
    if heads is None or dim is None:
        return (), 0
    return (
        whole("indexer.wq_b", query_rank or hidden, heads * dim),
        whole("indexer.wk", hidden, dim),
        whole("indexer.weights_proj", hidden, heads),
    ), 2 * dim
