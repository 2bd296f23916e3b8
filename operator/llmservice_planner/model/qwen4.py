"""Parts of Qwen4 that Qwen3.5 lacks: several residual streams, an index of groups of tokens, n-gram embeddings.

vllm/models/qwen4_exp. config_json.py has the sizes of n-gram tables.
"""

from __future__ import annotations

from dataclasses import replace

from llmservice_planner.model.architecture import Attention, Linear, Part, Split
from llmservice_planner.model.config_keys import Keys
from llmservice_planner.model.mixers import Mixer, whole

TYPE = "qwen4_exp"
_INDEX_BYTES = 2
"""Of a value of the index, whatever the type of the KV cache."""


def streams(keys: Keys) -> tuple[tuple[Linear, ...], int]:
    """Per layer: matrices that mix the residual streams before attention and MLP; on every rank, never quantized."""
    count, rank, hidden = keys.needed("hc_count"), keys.needed("hc_lowrank"), keys.needed("hidden_size")
    wide = count * hidden
    down, up = _plain("hyper_connection.down", wide, rank + count), _plain("hyper_connection.up", rank, wide)
    return (replace(down, count=2), replace(up, count=2)), 2 * wide


def extra(keys: Keys) -> tuple[list[Linear], int]:
    """Matrices that join the streams after the last layer, and the n-gram embeddings without their tables."""
    rank, hidden = keys.needed("hc_lowrank"), keys.needed("hidden_size")
    wide = keys.needed("hc_count") * hidden
    linears = [_plain("hyper_connection_mixer.down", wide, rank), _plain("hyper_connection_mixer.up", rank, wide)]
    places = len(keys.values("ple_layer_ids") or ())
    if places:
        projection = Linear("ple.kv_proj", Part.OTHER, keys.needed("ple_embed_dim"), wide + hidden, Split.NONE)
        linears.append(replace(projection, count=places))
    kernel = keys.needed("ple_conv_kernel_size") if places else 0
    return linears, wide + places * (3 + kernel) * wide


def indexed(mixer: Mixer, keys: Keys) -> Mixer:
    """Full attention with an index: a key for each group of tokens, and those of the incomplete group."""
    heads = keys.integer("indexer_n_heads")
    if heads is None:
        return mixer
    width, key_heads = keys.needed("indexer_head_dim"), keys.needed("indexer_kv_heads")
    projection = whole("indexer.index_qk_proj", keys.needed("hidden_size"), (heads + key_heads) * width)
    stored = -(-key_heads * width * _INDEX_BYTES // keys.needed("indexer_compress_ratio"))
    # One block for the incomplete group, and two for the convolution state of the n-gram embeddings.
    more = 1 + (2 if keys.values("ple_layer_ids") else 0)
    own: Attention = replace(mixer.attention, index_bytes=stored, more_blocks=more)
    return Mixer(own, (*mixer.linears, projection), mixer.small + 2 * width)


def _plain(module: str, inputs: int, outputs: int) -> Linear:
    return Linear(module, Part.ATTENTION, inputs, outputs, Split.NONE, plain=True)
