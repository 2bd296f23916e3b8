"""How many GPUs a node has at most: a replica is one pod, so one node must have all of its GPUs."""

from __future__ import annotations

USUAL = 8
"""What machines with GPUs have at most."""
_LARGER = {"NVIDIA-A100-SXM4-40GB": 16, "Tesla-V100-SXM3-32GB": 16}
"""Products of which larger machines are rented or sold (a2-megagpu-16g, DGX-2)."""


def largest(product: str | None) -> int:
    """The most that a node with this product has anywhere."""
    return _LARGER.get(product or "", USUAL)


def note(needed: int, product: str | None) -> str:
    """Where the nodes are not known: that none is sold that would do; empty where one may be."""
    if needed <= (most := largest(product)):
        return ""
    return f"One replica is one pod and needs a node with {needed} GPUs; such nodes usually have {most} at most."
