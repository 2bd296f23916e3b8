"""Numbers of tensor-parallel ranks that can share a model's heads."""

from __future__ import annotations


def divides(ranks: int, heads: int, kv_heads: int | None) -> bool:
    """Whether attention heads divide evenly; key/value heads must, too, or are copied if there are fewer than ranks."""
    if heads % ranks:
        return False
    return not kv_heads or kv_heads % ranks == 0 or ranks % kv_heads == 0


def sizes(heads: int, kv_heads: int | None) -> tuple[int, ...]:
    """Every possible number of ranks."""
    return tuple(ranks for ranks in range(1, heads + 1) if divides(ranks, heads, kv_heads))
