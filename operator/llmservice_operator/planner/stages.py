"""Which pipeline stage holds which layers, as vLLM deals them out (distributed/utils.py, get_pp_indices)."""

from __future__ import annotations


def layers_of_stages(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, first to last. What does not divide goes to the stages before the last one, from behind:
    the first and the last hold the embedding and the head."""
    counts = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        counts[-place] += 1
    return tuple(counts)
