"""Which kind of token mixer each layer has: every family says it in its own keys."""

from __future__ import annotations

from collections.abc import Mapping

from llmservice_operator.planner.model.architecture import InvalidModel, Unplanned
from llmservice_operator.planner.model.config_keys import Keys
from llmservice_operator.planner.model.families import Family

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
"""What files call a layer -> what it is here. Attention that an index makes sparse stores every token as full does."""

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
            raise Unplanned(name, unknown[0])
        if not found or (len(found) < layers and name != "block_types"):
            raise InvalidModel(name, f"has {len(found)} elements, for {layers} layers")
        # transformers 5 writes Mamba's layers as linear attention too.
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
            raise Unplanned("hybrid_override_pattern", letter)
    if len(pattern) != layers:
        raise InvalidModel("hybrid_override_pattern", f"must be {layers} of the letters {' '.join(_LETTERS)}")
    return tuple(_LETTERS[letter] for letter in pattern)


def _hybrid(keys: Keys, layers: int) -> tuple[str, ...] | None:
    """Models that mix attention with states, where no list says which layer is what."""
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
                raise Unplanned("sliding_window_pattern", letter)
        return tuple("sliding" if pattern[index % len(pattern)] == "L" else "full" for index in range(layers))
    if pattern is not None:
        return every(keys.needed("sliding_window_pattern"), "full", "sliding", layers)
    if model_type.startswith("qwen"):
        # use_sliding_window without a list: transformers makes the list from max_window_layers.
        from_layer = keys.count("max_window_layers", default=28)
        return tuple("full" if index < from_layer else "sliding" for index in range(layers))
    return ("sliding",) * layers if family.window_everywhere else None


def every(period: int, ones: str, others: str, layers: int) -> tuple[str, ...]:
    """`ones` in each period-th layer, counted from 1."""
    return tuple(ones if (index + 1) % period == 0 else others for index in range(layers))


def spread(ones: str, count: int, others: str, layers: int) -> tuple[str, ...]:
    """`count` of one kind, at regular distances: all that is known is how many there are."""
    count = min(count, layers)
    if count == 0:
        return (others,) * layers
    wanted = {(number + 1) * layers // count - 1 for number in range(count)}
    return tuple(ones if index in wanted else others for index in range(layers))


def _indices(keys: Keys, name: str) -> frozenset[int] | None:
    found = keys.values(name)
    return None if found is None else frozenset(keys.checked(name, one, least=0) for one in found)
