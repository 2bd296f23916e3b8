"""Parts of Gemma 3n and 4 that other models lack: per-layer embeddings and side paths."""

from __future__ import annotations

from llmservice_planner.model.architecture import Linear, Part, Split
from llmservice_planner.model.config_keys import Keys


def per_layer(keys: Keys) -> tuple[tuple[Linear, ...], int]:
    """Per layer: matrices, and values that every rank holds in addition."""
    width, hidden = keys.count("hidden_size_per_layer_input"), keys.needed("hidden_size")
    linears: tuple[Linear, ...] = ()
    small = 0
    if width:
        linears = (
            Linear("per_layer_input_gate", Part.ATTENTION, hidden, width, Split.NONE),
            Linear("per_layer_projection", Part.ATTENTION, width, hidden, Split.NONE),
        )
        small += hidden
    rank, paths = keys.count("laurel_rank"), keys.count("altup_num_inputs")
    if rank:
        linears += (
            Linear("laurel.linear_left", Part.ATTENTION, hidden, rank, Split.NONE),
            Linear("laurel.linear_right", Part.ATTENTION, rank, hidden, Split.NONE),
        )
        small += hidden
    if paths:
        # AltUp: a router with its norm, a scale, and small matrices that predict and correct.
        small += paths * hidden + 2 * hidden + paths**2 + paths**3
    return linears, small


def extra(keys: Keys, layers: int) -> list[Linear]:
    """Matrices before and after the layers."""
    found: list[Linear] = []
    width, hidden = keys.count("hidden_size_per_layer_input"), keys.needed("hidden_size")
    if width:
        words = keys.integer("vocab_size_per_layer_input") or keys.needed("vocab_size")
        found += [
            Linear("embed_tokens_per_layer", Part.OTHER, words, width * layers, plain=True),
            Linear("per_layer_model_projection", Part.OTHER, hidden, width * layers),
        ]
    paths = keys.count("altup_num_inputs")
    if paths > 1:
        found.append(Linear("altup_projections", Part.OTHER, hidden, hidden, Split.NONE, count=2 * (paths - 1)))
    return found


def extra_parameters(keys: Keys) -> int:
    """Parameters of their norms."""
    return keys.count("hidden_size_per_layer_input")
