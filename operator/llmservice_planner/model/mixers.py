"""The attention of one layer: what it stores per token, and its matrices as in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llmservice_planner.model.architecture import Attention, InvalidModel, Kind, Linear, Part, Split, UnsupportedModel
from llmservice_planner.model.config_keys import Keys
from llmservice_planner.model.families import Family

# The kind of each layer's token mixer; families have different keys for it.

WORDS: Mapping[str, str] = {
    "full_attention": "full",
    "attention": "full",
    "full": "full",
    "global": "full",
    "global_attention": "full",
    "dense_attention": "full",
    "deepseek_sparse_attention": "full",
    "indexed_attention": "full",
    "qwen_sparse_attention": "full",
    "minimax_m3_sparse": "full",
    "hybrid": "hybrid",
    "parallel": "hybrid",
    "sliding_attention": "sliding",
    "sliding_window_attention": "sliding",
    "sliding": "sliding",
    "local": "sliding",
    "swa": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "linear": "linear",
    "gated_delta_net": "linear",
    "kda": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "recurrent": "mamba",
    "conv": "conv",
    "short_conv": "conv",
    "mlp": "mlp",
    "moe": "moe",
}
"""Names in files, mapped to kinds here. Sparse attention with an index stores every token as full attention does."""

_MAMBA = ("bamba", "granitemoehybrid", "jamba", "nemotron_h")
_LETTERS: Mapping[str, str] = {"M": "mamba", "*": "full", "-": "mlp", "E": "moe"}
"""Nemotron-H's hybrid_override_pattern."""


def kinds(keys: Keys, family: Family, layers: int) -> tuple[str, ...]:
    """full, sliding, chunked, linear, mamba, hybrid, conv, mlp or moe for each layer."""
    return (
        _listed(keys, layers)
        or _lettered(keys, layers)
        or _hybrid(keys, layers)
        or _chunked(keys, layers)
        or _windowed(keys, family, layers)
        or ("full",) * layers
    )


def _listed(keys: Keys, layers: int) -> tuple[str, ...] | None:
    for name in ("layer_types", "layers_block_type", "block_types"):
        found = keys.words(name)
        if found is None:
            continue
        unknown = sorted({word for word in found if word not in WORDS})
        if unknown:
            raise UnsupportedModel(name, unknown[0])
        if not found or (len(found) < layers and name != "block_types"):
            raise InvalidModel(name, f"has {len(found)} elements, for {layers} layers")
        # transformers 5 writes Mamba layers as linear attention too.
        is_mamba = keys.text("model_type") in _MAMBA
        named = tuple(WORDS[found[index % len(found)]] for index in range(layers))
        return tuple("mamba" if is_mamba and kind == "linear" else kind for kind in named)
    return None


def _lettered(keys: Keys, layers: int) -> tuple[str, ...] | None:
    pattern = keys.text("hybrid_override_pattern")
    if not pattern:
        return None
    for letter in pattern:
        if letter not in _LETTERS:
            raise UnsupportedModel("hybrid_override_pattern", letter)
    if len(pattern) != layers:
        raise InvalidModel("hybrid_override_pattern", f"must be {layers} of the letters {' '.join(_LETTERS)}")
    return tuple(_LETTERS[letter] for letter in pattern)


def _hybrid(keys: Keys, layers: int) -> tuple[str, ...] | None:
    """Kinds of models that mix attention with states, without a list of layers."""
    model_type = keys.text("model_type") or ""
    if model_type in ("mamba", "mamba2", "falcon_mamba"):
        return ("mamba",) * layers
    if model_type == "falcon_h1":
        return ("hybrid",) * layers
    if keys.has("attn_layer_period"):
        period, offset = keys.needed("attn_layer_period"), keys.count("attn_layer_offset")
        return tuple("full" if (index - offset) % period == 0 else "mamba" for index in range(layers))
    chosen = _indices(keys, "attn_layer_indices")
    if chosen is not None or model_type in ("bamba", "granitemoehybrid"):
        return tuple("full" if index in (chosen or ()) else "mamba" for index in range(layers))
    chosen = _indices(keys, "full_attn_idxs")
    if chosen is not None:
        return tuple("full" if index in chosen else "conv" for index in range(layers))
    return _linear(keys, layers)


def _linear(keys: Keys, layers: int) -> tuple[str, ...] | None:
    section = keys.section("linear_attn_config")
    if section is not None:
        # Kimi counts layers from 1.
        wanted = {one - 1 for one in _indices(section, "full_attn_layers") or ()}
        return tuple("full" if index in wanted else "linear" for index in range(layers))
    numbers = keys.values("attn_type_list")
    if numbers is not None:
        return tuple("full" if one else "linear" for one in (*numbers, *[1] * layers)[:layers])
    few = keys.integer("attention_layers", least=0)
    if few is not None and keys.has("linear_attention", "linear_num_value_heads"):
        return spread("full", few, "linear", layers)
    if keys.has("linear_num_value_heads", "linear_attention", "full_attention_interval"):
        return every(keys.integer("full_attention_interval") or 4, "full", "linear", layers)
    return None


def _chunked(keys: Keys, layers: int) -> tuple[str, ...] | None:
    """Llama 4: layers with rotary positions attend inside chunks, those without to everything."""
    if not keys.has("attention_chunk_size") or keys.text("model_type") != "llama4":
        return None
    marks = keys.values("no_rope_layers")
    if marks:
        return tuple("chunked" if one else "full" for one in (*marks, *[1] * layers)[:layers])
    return every(keys.integer("no_rope_layer_interval") or 4, "full", "chunked", layers)


def _windowed(keys: Keys, family: Family, layers: int) -> tuple[str, ...] | None:
    few = keys.integer("sliding_layers", least=0)
    if few is not None and keys.has("sliding_window"):
        return spread("full", max(0, layers - few), "sliding", layers)
    model_type = keys.text("model_type") or ""
    if not keys.count("sliding_window") or not keys.flag("use_sliding_window", not model_type.startswith("qwen")):
        return None
    pattern = keys.raw("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        # Exaone writes L and G.
        for letter in pattern:
            if letter not in "LG":
                raise UnsupportedModel("sliding_window_pattern", letter)
        return tuple("sliding" if pattern[index % len(pattern)] == "L" else "full" for index in range(layers))
    if pattern is not None:
        return every(keys.needed("sliding_window_pattern"), "full", "sliding", layers)
    if model_type.startswith("qwen"):
        # use_sliding_window without a list: transformers derives it from max_window_layers.
        from_layer = keys.count("max_window_layers", default=28)
        return tuple("full" if index < from_layer else "sliding" for index in range(layers))
    return ("sliding",) * layers if family.window_everywhere else None


def every(period: int, ones: str, others: str, layers: int) -> tuple[str, ...]:
    """`ones` in each period-th layer, counted from 1."""
    return tuple(ones if (index + 1) % period == 0 else others for index in range(layers))


def spread(ones: str, count: int, others: str, layers: int) -> tuple[str, ...]:
    """`count` of one kind at regular distances, if only the number is known."""
    count = min(count, layers)
    if count == 0:
        return (others,) * layers
    wanted = {(number + 1) * layers // count - 1 for number in range(count)}
    return tuple(ones if index in wanted else others for index in range(layers))


def _indices(keys: Keys, name: str) -> frozenset[int] | None:
    found = keys.values(name)
    return None if found is None else frozenset(keys.checked(name, one, least=0) for one in found)


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
    """The mixer of a layer of kind full, sliding or chunked; `has_index`: whether sparse attention has an index
    here."""
    if not latent(keys) or kind != "full":
        return _grouped(keys, family, kind)
    found = _latent(keys, has_index)
    return _expanded(found) if keys.text("model_type") in _EXPANDED else found


_EXPANDED = ("minicpm3",)
"""vLLM stores all heads' keys and values of these, uncompressed."""


def _expanded(mixer: Mixer) -> Mixer:
    own = mixer.attention
    return replace(
        mixer, attention=replace(own, kind=Kind.FULL, kv_heads=own.heads, value_dim=own.key_dim, latent_dim=0)
    )


def indexed(keys: Keys, layers: int) -> tuple[bool, ...]:
    """Which layers have their own index; the others use the selection of an earlier one
    (vllm/models/deepseek_v32/attention.py: S skips)."""
    pattern = keys.raw("index_topk_pattern")
    if pattern is not None:
        letters = tuple(pattern) if isinstance(pattern, str) else keys.words("index_topk_pattern") or ()
        for letter in letters:
            if letter not in ("F", "S"):
                raise UnsupportedModel("index_topk_pattern", letter)
        return tuple(index >= len(letters) or letters[index] == "F" for index in range(layers))
    every, first = keys.integer("index_topk_freq") or 1, keys.count("index_skip_topk_offset", default=2)
    return tuple(max(index - first + 1, 0) % every == 0 for index in range(layers))


def latent(keys: Keys) -> bool:
    """Whether the model compresses keys and values (MLA)."""
    return keys.has("kv_lora_rank", "mla")


def heads_of(keys: Keys) -> int:
    return keys.needed("num_attention_heads", most=2**16)


def kv_heads_of(keys: Keys) -> int:
    """Key/value heads, with old names of multi-query attention."""
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
    """The mixer in a model whose tokens attend to their whole request: one step, nothing stored."""
    return replace(mixer, attention=replace(mixer.attention, kind=Kind.ENCODER, window=None))


def sharing(mixer: Mixer, keys: Keys) -> Mixer:
    """The mixer in a layer that reads an earlier cache and has no keys and values of its own."""
    own = ("self_attn.k_proj", "self_attn.v_proj")
    # Gemma 3n's class in vLLM allocates them nevertheless.
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
    """Qwen3-Next and later have a gate for each query."""
    return 2 if keys.flag("attn_output_gate", family.query_gate) else 1


def _biases(keys: Keys, family: Family) -> tuple[bool, bool]:
    """Whether q, k and v, and the output, have biases."""
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
    """DeepSeek V3.2's sparse attention selects tokens with a small attention of its own."""
    heads, dim = keys.integer("index_n_heads"), keys.integer("index_head_dim")
    if heads is None or dim is None:
        return (), 0
    return (
        whole("indexer.wq_b", query_rank or hidden, heads * dim),
        whole("indexer.wk", hidden, dim),
        whole("indexer.weights_proj", hidden, heads),
    ), 2 * dim
