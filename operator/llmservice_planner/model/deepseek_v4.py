"""DeepSeek V4: each layer keeps a window of tokens and, in most layers, one more vector for every 4 or 128 tokens.

vllm/models/deepseek_v4. Compressors keep partial sums of the tokens of the next vector; with 4 tokens per vector, an
index with its own compressor selects vectors. Several residual streams are mixed around attention and experts. Experts
are in 4 bits where the rest of a checkpoint is in fp8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmservice_planner.model import quantized
from llmservice_planner.model.architecture import (
    Attention,
    Incomplete,
    InvalidModel,
    Kind,
    Layer,
    Linear,
    Part,
    Quantization,
    Split,
    UnsupportedModel,
    printable,
)
from llmservice_planner.model.config_keys import Keys
from llmservice_planner.model.mixers import Mixer, head_dim_of, heads_of, matrix, whole

TYPE = "deepseek_v4"
_WINDOW = 1
_INDEXED = 4
_RATIOS = (_WINDOW, _INDEXED, 128)
"""Tokens per vector; 1 means window only."""
_WORDS: Mapping[str, int] = {
    "sliding_attention": _WINDOW,
    "compressed_sparse_attention": _INDEXED,
    "heavily_compressed_attention": 128,
}
"""transformers' names of layers."""
_HASHED = 3
"""Layers whose experts are looked up by token, unless config.json states them."""


def kinds(keys: Keys, layers: int) -> tuple[str, ...]:
    """The ratio of each layer, as digits. The variant with images is not supported."""
    pictures = keys.count("vision_n_layers")
    if pictures:
        raise UnsupportedModel("vision_n_layers", str(pictures))
    words = keys.words("layer_types") if not keys.has("compress_ratios") else None
    if words is not None:
        stated = keys.section("compress_rates")
        unknown = next((word for word in words if word not in _WORDS), None)
        if unknown is not None:
            raise UnsupportedModel("layer_types", unknown)
        found = [(stated.integer(word) if stated is not None else None) or _WORDS[word] for word in words]
    else:
        found = [max(_WINDOW, keys.checked("compress_ratios", one)) for one in keys.values("compress_ratios") or ()]
    if not found:
        raise Incomplete("compress_ratios")
    if len(found) < layers:
        raise InvalidModel("compress_ratios", f"has {len(found)} elements, for {layers} layers")
    for ratio in found[:layers]:
        if ratio not in _RATIOS:
            raise UnsupportedModel("compress_ratios", str(ratio))
    return tuple(map(str, found[:layers]))


def mixer(keys: Keys, kind: str) -> Mixer:
    """Attention of a layer with that ratio, and the mixing of residual streams around it and around the experts."""
    ratio, hidden, heads, dim = int(kind), keys.needed("hidden_size"), heads_of(keys), head_dim_of(keys)
    rank, out_rank, groups = keys.needed("q_lora_rank"), keys.needed("o_lora_rank"), keys.needed("o_groups")
    linears = [
        whole("wq_a", hidden, rank),
        whole("wkv", hidden, dim),
        matrix("wq_b", rank, heads * dim, units=heads),
        matrix("wo_a", heads * dim // groups, groups * out_rank, units=groups),
        matrix("wo_b", groups * out_rank, hidden),
        _plain("attn_sink", 1, heads, wide=True),
    ]
    small, index = rank + dim, 0
    if ratio > _WINDOW:
        linears += _compressor("compressor", hidden, dim, ratio)
        small += dim
    if ratio == _INDEXED:
        index, number = keys.needed("index_head_dim"), keys.needed("index_n_heads")
        linears += [whole("indexer.wq_b", rank, number * index), _plain("indexer.weights_proj", hidden, number)]
        linears += _compressor("indexer.compressor", hidden, index, ratio)
        small += index
    rope = rope_dim(keys)
    return Mixer(
        Attention(
            Kind.COMPRESSED,
            heads=heads,
            kv_heads=1,
            key_dim=dim,
            value_dim=dim,
            window=keys.needed("sliding_window"),
            latent_dim=dim - rope,
            rope_dim=rope,
            query_rank=rank,
            compress_ratio=ratio,
            index_dim=index,
            output_groups=groups,
        ),
        (*linears, *_streams(keys)),
        small,
    )


def rope_dim(keys: Keys) -> int:
    """Values of a key that are rotated."""
    stated = keys.integer("qk_rope_head_dim", most=head_dim_of(keys))
    return stated or int(head_dim_of(keys) * min(keys.number("partial_rotary_factor") or 0.125, 1))


def overlap(ratio: int) -> int:
    """Vectors that a compressor processes at once."""
    return 2 if ratio == _INDEXED else 1


def mtp_layer(keys: Keys, like: Layer) -> Layer:
    """The layer for multi-token prediction: window only, experts as in the others, and two projections."""
    hidden, own = keys.needed("hidden_size"), mixer(keys, str(_WINDOW))
    experts = tuple(linear for linear in like.linears if linear.module.startswith("mlp."))
    joints = (whole("e_proj", hidden, hidden), whole("h_proj", hidden, hidden))
    return Layer(own.attention, like.feed_forward, (*own.linears, *experts, *joints), own.small + 5 * hidden)


def extra(keys: Keys, layers: int) -> list[Linear]:
    """The mixing of streams after the last layer, and the tables with which the first layers select experts."""
    words, streams = keys.words("mlp_layer_types"), keys.needed("hc_mult")
    hashed = keys.count("num_hash_layers", default=_HASHED) if words is None else words.count("hash_moe")
    hashed = min(hashed, layers)
    table = Linear("tid2eid", Part.OTHER, keys.needed("num_experts_per_tok"), keys.needed("vocab_size"), Split.NONE)
    tables = [replace(table, count=hashed, plain=True, wide=True)] if hashed else []
    head = _plain("hc_head_fn", keys.needed("hidden_size") * streams, streams, wide=True)
    return [replace(head, part=Part.OTHER, bias=streams + 1), *tables]


def rotary_values(keys: Keys, ratios: tuple[str, ...]) -> int:
    """Values of one table for windows and one for compressed vectors."""
    tables = len({int(ratio) > _WINDOW for ratio in ratios})
    return tables * keys.needed("max_position_embeddings") * rope_dim(keys)


def with_experts(keys: Keys, own: Quantization | None) -> Quantization | None:
    """The quantization with the form of the experts by `expert_dtype` (vllm/models/deepseek_v4/quant_config.py)."""
    if own is None or own.method not in ("fp8", "deepseek_v4_fp8"):
        return own
    stated = keys.text("expert_dtype") or "fp4"
    if stated not in ("fp4", "fp8"):
        return replace(own, refused=f"has experts in {printable(stated, 16)}, and vLLM takes fp4 and fp8")
    if stated == "fp8":
        return own
    section = keys.section("quantization_config")
    algorithm = None if section is None else section.text("moe_quant_algo")
    name = "nvfp4" if (algorithm or "").upper() == "NVFP4" else "mxfp4"
    form = replace(quantized.METHODS[name], parts=())
    return replace(own, others=(form,), rules=(("mlp.experts", 1),))


def _compressor(name: str, hidden: int, dim: int, ratio: int) -> list[Linear]:
    width = overlap(ratio) * dim
    return [
        replace(_plain(f"{name}.wkv", hidden, width), count=2),
        _plain(f"{name}.ape", ratio, width, wide=True),
    ]


def _streams(keys: Keys) -> list[Linear]:
    """Matrices before attention and before the experts; in 32 bit, on every rank."""
    count = keys.needed("hc_mult")
    mixed = (2 + count) * count
    one = replace(_plain("hc_fn", count * keys.needed("hidden_size"), mixed, wide=True), bias=mixed + 3)
    return [replace(one, count=2)]


def _plain(module: str, inputs: int, outputs: int, *, wide: bool = False) -> Linear:
    return replace(whole(module, inputs, outputs), plain=True, wide=wide)
