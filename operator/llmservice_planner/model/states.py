"""Token mixers that keep a state of fixed size per request: Mamba, gated delta nets, short convolutions.

Shapes are those of vLLM's MambaStateShapeCalculator (vllm/model_executor/layers/mamba/mamba_utils.py), for one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_planner.model.architecture import Attention, InvalidModel, Kind, Linear, Part, Split
from llmservice_planner.model.config_keys import Keys
from llmservice_planner.model.mixers import Mixer, head_dim_of, heads_of

_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of a Mamba layer, with normalized names."""

    inner: int
    state: int
    kernel: int
    heads: int = 0
    head_dim: int = 0
    groups: int = 1
    rank: int = 0
    conv_bias: bool = True
    bias: bool = False
    norms: int = 0


def state(keys: Keys, kind: str) -> Mixer:
    """A layer of kind mamba, linear or conv."""
    if kind == "conv":
        return _short_conv(keys)
    mamba = keys.has("mamba_n_heads", "mamba_num_heads", "mamba_d_state") or keys.text("model_type") in _MAMBAS
    if kind == "linear" and not mamba:
        if keys.has("linear_attn_config", "linear_head_dim"):
            return _delta_attention(keys)
        if keys.has("attn_type_list") or (keys.text("model_type") or "").startswith("minimax"):
            return _lightning(keys)
        return _delta_net(keys)
    return _mamba2(keys, _second(keys)) if _is_second(keys) else _mamba1(keys, _first(keys))


_MAMBAS = ("mamba", "mamba2", "falcon_mamba")


def _matrix(module: str, inputs: int, outputs: int, *, plain: bool = False, bias: int = 0) -> Linear:
    return Linear(module, Part.ATTENTION, inputs, outputs, Split.TENSOR, plain=plain, bias=bias)


def _mixer(
    linears: tuple[Linear, ...],
    small: int,
    conv: int,
    recurrent: int,
    keys: Keys,
    groups: int = 0,
    group_values: int = 0,
) -> Mixer:
    attention = Attention(
        Kind.STATE,
        conv_values=conv,
        recurrent_values=recurrent,
        recurrent_bytes=_recurrent_bytes(keys),
        parameters=sum(linear.parameters for linear in linears),
        state_groups=groups,
        group_values=group_values,
    )
    return Mixer(attention, linears, small)


def _recurrent_bytes(keys: Keys) -> int:
    for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        text = keys.text(name)
        if text is not None and text != "auto":
            if text not in _BYTES:
                raise InvalidModel(name, f"must be one of {', '.join(sorted(_BYTES))}")
            return _BYTES[text]
    return 0


def _is_second(keys: Keys) -> bool:
    """Whether it is Mamba 2, with states of several heads."""
    return keys.text("model_type") == "mamba2" or keys.has("mamba_n_heads", "mamba_num_heads", "mamba2_num_heads")


def _first(keys: Keys) -> _Sizes:
    """Mamba 1, with the keys of Mamba and Jamba."""
    hidden = keys.needed("hidden_size")
    if keys.has("mamba_d_state"):
        inner = int((keys.number("mamba_expand") or 2) * hidden)
        rank = _rank(keys, "mamba_dt_rank", hidden)
        size = keys.needed("mamba_d_state")
        bias, conv_bias = keys.flag("mamba_proj_bias"), keys.flag("mamba_conv_bias", True)
        return _Sizes(
            inner, size, keys.needed("mamba_d_conv"), rank=rank, bias=bias, conv_bias=conv_bias, norms=rank + 2 * size
        )
    inner = keys.integer("intermediate_size", "d_inner") or int((keys.number("expand") or 2) * hidden)
    rank = _rank(keys, "time_step_rank", hidden)
    size = keys.integer("state_size") or 16
    bias, conv_bias = keys.flag("use_bias"), keys.flag("use_conv_bias", True)
    return _Sizes(inner, size, keys.integer("conv_kernel") or 4, rank=rank, bias=bias, conv_bias=conv_bias)


def _rank(keys: Keys, name: str, hidden: int) -> int:
    value = keys.raw(name)
    if value is None or value == "auto":
        return -(-hidden // 16)
    return keys.checked(name, value)


def _second(keys: Keys) -> _Sizes:
    """Mamba 2, with the keys of Mamba2, Bamba and similar, and Nemotron-H."""
    hidden = keys.needed("hidden_size")
    if keys.has("mamba_n_heads"):
        heads = keys.needed("mamba_n_heads")
        inner = keys.integer("mamba_d_ssm") or int((keys.number("mamba_expand") or 2) * hidden)
        stated = keys.raw("mamba_d_head")
        dim = inner // heads if stated in (None, "auto") else keys.checked("mamba_d_head", stated)
        gated = keys.flag("mamba_rms_norm") if keys.text("model_type") == "falcon_h1" else True
        return _Sizes(
            inner,
            keys.integer("mamba_d_state") or 256,
            keys.integer("mamba_d_conv") or 4,
            heads,
            dim,
            keys.integer("mamba_n_groups") or 1,
            conv_bias=keys.flag("mamba_conv_bias", True),
            bias=keys.flag("mamba_proj_bias"),
            norms=inner if gated else 0,
        )
    own = keys.has("mamba_num_heads")
    heads = keys.needed("mamba_num_heads") if own else keys.integer("num_heads") or 128
    dim = (keys.integer("mamba_head_dim") if own else keys.integer("head_dim")) or 64
    inner = heads * dim if own else int((keys.number("expand") or 2) * hidden)
    return _Sizes(
        inner,
        keys.integer("ssm_state_size", "state_size") or 128,
        keys.integer("conv_kernel") or 4,
        heads,
        dim,
        keys.integer("n_groups") or 8,
        conv_bias=keys.flag("use_conv_bias", True),
        bias=keys.flag("use_bias") or keys.flag("mamba_proj_bias"),
        norms=inner,
    )


def _mamba1(keys: Keys, sizes: _Sizes) -> Mixer:
    hidden, inner = keys.needed("hidden_size"), sizes.inner
    linears = (
        _matrix("mixer.in_proj", hidden, 2 * inner, bias=2 * inner if sizes.bias else 0),
        _matrix("mixer.x_proj", inner, sizes.rank + 2 * sizes.state),
        _matrix("mixer.dt_proj", sizes.rank, inner, plain=True, bias=inner),
        _matrix("mixer.out_proj", inner, hidden, bias=hidden if sizes.bias else 0),
        _matrix("mixer.conv1d", sizes.kernel, inner, plain=True, bias=inner if sizes.conv_bias else 0),
        _matrix("mixer.A_log", sizes.state, inner, plain=True, bias=inner),
    )
    return _mixer(linears, sizes.norms, inner * (sizes.kernel - 1), inner * sizes.state, keys)


def _mamba2(keys: Keys, sizes: _Sizes) -> Mixer:
    hidden, inner = keys.needed("hidden_size"), sizes.inner
    conv = inner + 2 * sizes.groups * sizes.state
    wide = inner + conv + sizes.heads
    linears = (
        _matrix("mixer.in_proj", hidden, wide, bias=wide if sizes.bias else 0),
        _matrix("mixer.out_proj", inner, hidden, bias=hidden if sizes.bias else 0),
        _matrix("mixer.conv1d", sizes.kernel, conv, plain=True, bias=conv if sizes.conv_bias else 0),
    )
    return _mixer(
        linears,
        sizes.norms + 3 * sizes.heads,
        conv * (sizes.kernel - 1),
        sizes.heads * sizes.head_dim * sizes.state,
        keys,
        groups=sizes.groups,
        group_values=2 * sizes.state * (sizes.kernel - 1),
    )


def _delta_net(keys: Keys) -> Mixer:
    """Gated delta net: Qwen3-Next and Qwen3.5."""
    facts = keys.section("linear_attention")
    hidden = keys.needed("hidden_size")
    if facts is not None:
        key_heads, value_heads = facts.needed("num_key_heads"), facts.needed("num_value_heads")
        key_dim, value_dim = facts.needed("key_head_dim"), facts.needed("value_head_dim")
        kernel = facts.integer("conv_kernel") or 4
    else:
        key_heads, value_heads = keys.needed("linear_num_key_heads"), keys.needed("linear_num_value_heads")
        key_dim, value_dim = keys.needed("linear_key_head_dim"), keys.needed("linear_value_head_dim")
        kernel = keys.integer("linear_conv_kernel_dim") or 4
    values = value_heads * value_dim
    conv = 2 * key_heads * key_dim + values
    linears = (
        _matrix("linear_attn.in_proj_qkvz", hidden, conv + values),
        _matrix("linear_attn.in_proj_ba", hidden, 2 * value_heads),
        _matrix("linear_attn.out_proj", values, hidden),
        _matrix("linear_attn.conv1d", kernel, conv, plain=True),
    )
    return _mixer(linears, 2 * value_heads + value_dim, conv * (kernel - 1), value_heads * value_dim * key_dim, keys)


def _delta_attention(keys: Keys) -> Mixer:
    facts = keys.section("linear_attn_config")
    hidden = keys.needed("hidden_size")
    if facts is not None:
        heads, dim, kernel = (
            facts.needed("num_heads"),
            facts.needed("head_dim"),
            facts.integer("short_conv_kernel_size"),
        )
    else:
        heads, dim = keys.needed("linear_num_heads"), keys.needed("linear_head_dim")
        kernel = keys.integer("linear_conv_kernel_dim")
    kernel, inner = kernel or 4, heads * dim
    linears = (
        *(_matrix(f"self_attn.{name}_proj", hidden, inner) for name in "qkv"),
        *(_matrix(f"self_attn.{name}_conv1d", kernel, inner, plain=True) for name in "qkv"),
        *(Linear(f"self_attn.{name}_a_proj", Part.ATTENTION, hidden, dim, Split.NONE) for name in "fg"),
        *(_matrix(f"self_attn.{name}_b_proj", dim, inner) for name in "fg"),
        _matrix("self_attn.b_proj", hidden, heads),
        _matrix("self_attn.o_proj", inner, hidden),
    )
    small = heads + inner + dim
    return _mixer(linears, small, 3 * inner * (kernel - 1), heads * dim * dim, keys)


def _lightning(keys: Keys) -> Mixer:
    """MiniMax's lightning attention."""
    hidden, heads, dim = keys.needed("hidden_size"), heads_of(keys), head_dim_of(keys)
    inner = heads * dim
    linears = (
        _matrix("self_attn.qkv_proj", hidden, 3 * inner),
        _matrix("self_attn.output_gate", hidden, inner),
        _matrix("self_attn.out_proj", inner, hidden),
    )
    return _mixer(linears, inner, 0, heads * dim * dim, keys)


def _short_conv(keys: Keys) -> Mixer:
    """LFM2."""
    hidden = keys.needed("hidden_size")
    kernel, inner = keys.integer("conv_L_cache") or 3, keys.integer("conv_dim") or hidden
    linears = (
        _matrix("conv.in_proj", hidden, 3 * inner),
        _matrix("conv.out_proj", inner, hidden),
        _matrix("conv.conv", kernel, inner, plain=True),
    )
    return _mixer(linears, 0, inner * (kernel - 1), 0, keys)
