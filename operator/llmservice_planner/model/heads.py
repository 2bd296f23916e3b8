"""Which numbers of tensor-parallel ranks can share a model's heads."""

from __future__ import annotations


def divides(ranks: int, heads: int, kv_heads: int | None) -> bool:
    """Attention heads are dealt out evenly; so are key/value heads or, when there are fewer than ranks, copied."""
    if heads % ranks:
        return False
    return not kv_heads or kv_heads % ranks == 0 or ranks % kv_heads == 0


def sizes(heads: int, kv_heads: int | None) -> tuple[int, ...]:
    """Every number of ranks that can."""
    return tuple(ranks for ranks in range(1, heads + 1) if divides(ranks, heads, kv_heads))
