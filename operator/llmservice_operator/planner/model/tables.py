"""Tables of n-grams beside a model's layers: vLLM keeps them in pinned memory of the node (vllm/config/engram.py)."""

from __future__ import annotations

from llmservice_operator.planner.model.architecture import Quantization
from llmservice_operator.planner.model.config_keys import Keys

_FP8 = "float8_e4m3fn"
_NAME = "ngram_embedding"
_VALUES_OF_SCALE = 32
"""DeepSeek's tables are in fp8, with a byte of scale for so many values."""


def table_bytes(keys: Keys, quantization: Quantization | None) -> int:
    """Of all layers' tables; 0 where the model has none.

    Qwen's have `ngram_vocab_size_base` rows for each head, whose widths are `ple_embed_dim` together; DeepSeek says the
    rows of each layer.
    """
    layers = keys.values("ple_layer_ids")
    if layers:
        values = len(set(map(str, layers))) * keys.count("ple_embed_dim") * keys.count("ngram_vocab_size_base")
        return values * (1 if _is_fp8(keys, quantization) else 2)
    if keys.values("engram_layer_ids"):
        rows = sum(keys.checked("engram_num_embeddings", one) for one in keys.values("engram_num_embeddings") or ())
        values = rows * keys.count("engram_head_dim")
        return values + values // _VALUES_OF_SCALE
    return 0


def _is_fp8(keys: Keys, quantization: Quantization | None) -> bool:
    """As Qwen4ExpPLEEmbeddingMethod.from_quant_config has it (vllm/models/qwen4_exp/common/ngram_embedding.py)."""
    if keys.text("ple_embedding_dtype") == _FP8:
        return True
    return (
        quantization is not None and quantization.method == "fp8" and not any(_NAME in one for one in quantization.kept)
    )
