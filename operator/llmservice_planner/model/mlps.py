"""The MLP of one layer, dense or with experts, and which layers have which."""

from __future__ import annotations

import re

from llmservice_planner.model.architecture import FeedForward, Incomplete, Linear, Part, Split, UnsupportedModel
from llmservice_planner.model.config_keys import Keys
from llmservice_planner.model.families import Family

Mlp = tuple[FeedForward, tuple[Linear, ...], int]
"""Values, matrices, and what every rank holds in addition."""

_LAYER_WORDS = {"dense": False, "mlp": False, "sparse": True, "moe": True, "hash_moe": True}
"""Names of an MLP in files, mapped to whether it has experts."""
_NUMBER = re.compile(r"(?<![^,\s])[0-9]{1,6}(?![^,\s])")


def has_experts(keys: Keys) -> bool:
    return experts_of(keys) > 1


def experts_of(keys: Keys) -> int:
    """Routed experts of a layer; some files repeat the number for each layer."""
    nested = keys.section("ffn_config")
    if nested is not None and nested.has("moe_num_experts"):
        return nested.count("moe_num_experts")
    return _largest(keys, "num_experts")


def _largest(keys: Keys, name: str) -> int:
    """A number that may be 0, or the largest of one per layer (Hunyuan, ERNIE)."""
    if not isinstance(keys.raw(name), list | tuple):
        return keys.count(name)
    return max((keys.checked(name, one) for one in keys.values(name) or ()), default=0)


def dense(keys: Keys, family: Family, index: int = 0, times: int = 1) -> Mlp:
    """A layer's dense MLP, `times` as wide as config.json states."""
    width = dense_width(keys, index) * times
    linears = _matrices("mlp", keys.needed("hidden_size"), width, _gated(keys, family), bias=_biased(keys, family))
    return FeedForward(intermediate=width, gated=_gated(keys, family)), linears, 0


def dense_width(keys: Keys, index: int = 0) -> int:
    """Width of the layer with that index, if widths differ."""
    value = keys.raw("intermediate_size_mlp") or keys.raw("intermediate_size")
    if isinstance(value, list | tuple):
        widths = keys.values("intermediate_size") or ()
        return keys.checked("intermediate_size", widths[min(index, len(widths) - 1)] if widths else None)
    if value is not None:
        return _adjusted(keys, keys.needed("intermediate_size_mlp", "intermediate_size"))
    if keys.has("expansion_ratio"):
        return int((keys.number("expansion_ratio") or 4) * keys.needed("hidden_size"))
    if keys.text("model_type") in _FOUR_TIMES:
        return 4 * keys.needed("hidden_size")
    if keys.has("block_configs"):
        # Nemotron-NAS: each layer has attention and an MLP of its own kind, or none.
        raise Incomplete("intermediate_size (block_configs, layers that differ from each other, are not read)")
    return keys.needed("intermediate_size")


_FOUR_TIMES = frozenset({"gpt2", "gpt_bigcode", "bloom", "mpt", "falcon", "gptj", "opt"})
"""MLPs of four times the hidden size if the file lacks a width."""


def _adjusted(keys: Keys, width: int) -> int:
    """LFM2 states the width of a plain MLP, and the first Qwen that of gate and up together."""
    if keys.text("model_type") == "qwen":
        return width // 2
    if not keys.flag("block_auto_adjust_ff_dim"):
        return width
    multiple = keys.integer("block_multiple_of") or 256
    width = int((keys.number("block_ffn_dim_multiplier") or 1) * (2 * width // 3))
    return -(-width // multiple) * multiple


def experts(keys: Keys, family: Family) -> Mlp:
    """A layer's experts, with router and shared experts."""
    hidden, count, gated = keys.needed("hidden_size"), experts_of(keys), _gated(keys, family)
    width, shared = expert_width(keys), _shared_width(keys)
    latent = keys.count("moe_latent_size")
    linears = [
        Linear(
            f"mlp.experts.{name}", Part.EXPERTS, a, b, Split.EXPERTS, count=count, bias=b if family.expert_bias else 0
        )
        for name, a, b in _shapes(latent or hidden, width, gated)
    ]
    linears.append(
        Linear(
            "mlp.gate",
            Part.FEED_FORWARD,
            hidden,
            count,
            Split.NONE,
            plain=True,
            bias=count if family.router_bias else 0,
        )
    )
    if latent:
        # Nemotron's experts work on a narrower state.
        linears.append(Linear("mlp.fc1_latent_proj", Part.FEED_FORWARD, hidden, latent, Split.NONE))
        linears.append(Linear("mlp.fc2_latent_proj", Part.FEED_FORWARD, latent, hidden, Split.NONE))
    if shared:
        linears += _matrices("mlp.shared_experts", hidden, shared, gated)
        if family.shared_gate:
            linears.append(Linear("mlp.shared_expert_gate", Part.FEED_FORWARD, hidden, 1, Split.NONE, plain=True))
    used = _largest(keys, "num_experts_per_tok")
    if not used:
        nested = keys.section("ffn_config")
        used = nested.count("moe_top_k") if nested is not None else 0
    return (
        FeedForward(
            gated=gated,
            experts=count,
            experts_per_token=min(used, count),
            expert_intermediate=width,
            shared_intermediate=shared,
        ),
        tuple(linears),
        0,
    )


def expert_width(keys: Keys) -> int:
    """Of one routed expert."""
    nested = keys.section("ffn_config")
    if nested is not None and nested.has("ffn_hidden_size"):
        return nested.needed("ffn_hidden_size")
    if isinstance(keys.raw("moe_intermediate_size"), list | tuple):
        return _largest(keys, "moe_intermediate_size") or keys.needed("intermediate_size")
    return keys.needed("moe_intermediate_size", "intermediate_size")


def _shared_width(keys: Keys) -> int:
    """Of all shared experts together."""
    if keys.has("shared_expert_intermediate_size"):
        return keys.count("shared_expert_intermediate_size")
    number = _largest(keys, "num_shared_experts")
    if not number and keys.text("model_type") == "llama4":
        number = 1
    return number * expert_width(keys) if number else 0


def expert_layers(keys: Keys, layers: int) -> tuple[bool, ...]:
    """Which layers have experts. Families have different keys for it; without any, all layers have."""
    if not has_experts(keys):
        return (False,) * layers
    words = keys.words("mlp_layer_types")
    if words is not None:
        for word in words:
            if word not in _LAYER_WORDS:
                raise UnsupportedModel("mlp_layer_types", word)
        return _padded([_LAYER_WORDS[word] for word in words], layers)
    chosen = keys.values("moe_layers") or _enumerated(keys)
    if chosen is not None:
        wanted = {keys.checked("moe_layers", one, least=0) for one in chosen}
        return tuple(index in wanted for index in range(layers))
    frequency = keys.raw("moe_layer_freq")
    if isinstance(frequency, list | tuple):
        return _padded([bool(one) for one in keys.values("moe_layer_freq") or ()], layers)
    dense_ones = {keys.checked("mlp_only_layers", one, least=0) for one in keys.values("mlp_only_layers") or ()}
    return tuple(_has_experts(keys, index) and index not in dense_ones for index in range(layers))


def _enumerated(keys: Keys) -> list[int] | None:
    """Step3 writes a list as text: "4,5,6"."""
    text = keys.text("moe_layers_enum")
    return None if text is None else [int(one) for one in _NUMBER.findall(text)]


def _has_experts(keys: Keys, index: int) -> bool:
    first, last = keys.count("first_k_dense_replace", "num_dense_layers"), keys.integer("moe_layer_end_index", least=-1)
    first = max(first, keys.count("moe_layer_start_index"))
    if index < first or (last is not None and last >= 0 and index > last):
        return False
    if keys.has("expert_layer_period"):
        return (index - keys.count("expert_layer_offset")) % keys.needed("expert_layer_period") == 0
    if keys.has("moe_layer_freq"):
        return index % keys.needed("moe_layer_freq") == 0
    if keys.has("moe_every_n_layers"):
        return index % keys.needed("moe_every_n_layers") == 1
    step = keys.integer("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", least=0)
    return not step or (index + 1) % step == 0


def _padded(found: list[bool], layers: int) -> tuple[bool, ...]:
    return tuple((found + [True] * layers)[:layers])


def _gated(keys: Keys, family: Family) -> bool:
    if keys.text("model_type") == "nomic_bert" and keys.text("activation_function") == "gelu":
        return False
    gated = keys.raw("gated_mlp")
    return family.gated if gated is None else keys.flag("gated_mlp")


def _biased(keys: Keys, family: Family) -> bool:
    for key in ("mlp_bias", "use_bias", "bias", "qkv_proj_bias"):
        if key in ("mlp_bias", family.bias_key) and keys.has(key):
            return keys.flag(key)
    return family.mlp_bias


def _shapes(hidden: int, width: int, gated: bool) -> tuple[tuple[str, int, int], ...]:
    up, down = ("up_proj", hidden, width), ("down_proj", width, hidden)
    return (("gate_proj", hidden, width), up, down) if gated else (up, down)


def _matrices(module: str, hidden: int, width: int, gated: bool, *, bias: bool = False) -> tuple[Linear, ...]:
    return tuple(
        Linear(f"{module}.{name}", Part.FEED_FORWARD, a, b, bias=b if bias else 0)
        for name, a, b in _shapes(hidden, width, gated)
    )
