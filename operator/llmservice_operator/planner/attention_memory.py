"""What attention itself would store for one sequence: all its scores, or with FlashAttention only its result.

Not part of the budget: every backend of vLLM works as FlashAttention does. It is shown for those who ask why.
"""

from __future__ import annotations

import math

from llmservice_operator.planner.model.architecture import Architecture, Attention, Kind
from llmservice_operator.planner.plan import GIB

SUM_BYTES = 4
"""FlashAttention keeps one 32-bit sum of exponentials for each query and head."""


def naive_bytes(heads: int, tokens: int, value_bytes: int = 2, window: int | None = None) -> int:
    """Bytes of the scores QK^T of one layer: heads x tokens x tokens, or x window where attention looks no further."""
    return heads * tokens * min(tokens, window or tokens) * value_bytes


def flash_bytes(heads: int, head_dim: int, tokens: int, value_bytes: int = 2) -> int:
    """Bytes of what FlashAttention stores for one layer: the result, and a sum for each row of scores."""
    return heads * tokens * (head_dim * value_bytes + SUM_BYTES)


def per_gpu(
    model: Architecture, tokens: int, tensor_parallel_size: int = 1, value_bytes: int = 2
) -> tuple[float, float]:
    """GiB of naive attention and of FlashAttention, of the layer that needs most; layers run one after the other.

    Tensor parallelism splits the heads. Both are 0 for models without attention.
    """
    naive = flash = 0
    mixers = {id(layer.attention): layer.attention for layer in model.layers}
    for attention in (mixer for mixer in mixers.values() if mixer.kind is not Kind.STATE):
        heads = math.ceil(attention.heads / tensor_parallel_size)
        naive = max(naive, naive_bytes(heads, tokens, value_bytes, attention.window))
        flash = max(flash, flash_bytes(heads, _width(attention), tokens, value_bytes))
    return naive / GIB, flash / GIB


def _width(attention: Attention) -> int:
    """Of the result of one head: a value's, also where a latent vector stands for it in the cache."""
    return attention.value_dim or attention.key_dim or attention.latent_dim
