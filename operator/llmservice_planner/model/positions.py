"""The longest request as vLLM derives it, and its tables of sines and cosines.

vllm/config/model.py, _get_and_verify_max_len; vllm/model_executor/layers/rotary_embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_planner.model.config_keys import Keys
from llmservice_planner.model.families import Family
from llmservice_planner.model.mixers import head_dim_of, latent

LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""The smallest counts."""
_SCALED_ALREADY = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""Kinds of scaling whose factor is already in max_position_embeddings."""
DEFAULT_LENGTH = 2048
"""vLLM's assumption without a length key."""
_MROPE_LENGTHS = 4
"""Multimodal rotary tables are so many times longer (rotary_embedding/mrope.py)."""
_DEFAULT_ROPE_POSITIONS = 8192
"""The classes' default of max_position_embeddings."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of a model."""

    longest: int | None
    default: int | None
    """Default length, if it is not the longest."""
    rotary_values: int


def lengths(keys: Keys, family: Family, kinds: tuple[str, ...]) -> Lengths:
    """The longest request and the tables."""
    found = [length for name in LENGTH_KEYS if (length := keys.integer(name)) is not None]
    longest = min(found, default=None)
    if keys.has("model_max_length"):
        longest = keys.integer("model_max_length")
    ropes = _ropes(keys)
    default = None if found else DEFAULT_LENGTH
    if longest is not None and "gemma3" not in (keys.text("model_type") or ""):
        for rope in ropes:
            if _kind(rope) not in _SCALED_ALREADY:
                longest = int(longest * (rope.number("factor") or 1))
    if longest is not None and any(_kind(rope) in ("longrope", "su") for rope in ropes):
        default = keys.integer("original_max_position_embeddings")
        for rope in ropes:
            default = default or rope.integer("original_max_position_embeddings")
    if default == longest:
        default = None
    values = 0
    if (
        family.rope
        and keys.raw("alibi") is not True
        and any(kind not in ("mamba", "linear", "mlp", "moe", "conv") for kind in kinds)
    ):
        values = _tables(keys, ropes, kinds)
    return Lengths(longest, default, values)


def _ropes(keys: Keys) -> list[Keys]:
    """The scaling, or one for each kind of layer (Gemma 3 and later)."""
    for name in ("rope_parameters", "rope_scaling"):
        section = keys.section(name)
        if section is None:
            continue
        parts = [
            section.section(part)
            for part in ("full_attention", "sliding_attention", "chunked_attention")
            if section.has(part)
        ]
        return [part for part in parts if part is not None] or [section]
    return []


def _kind(rope: Keys) -> str:
    kind = rope.text("rope_type") or rope.text("type") or "default"
    return "default" if kind == "mrope" else kind


def _tables(keys: Keys, ropes: list[Keys], kinds: tuple[str, ...]) -> int:
    """Values of all tables: one per kind of rotation, shared by its layers."""
    positions = keys.integer("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    positions = positions or _DEFAULT_ROPE_POSITIONS
    width = _width(keys)
    if latent(keys):
        facts = keys.section("mla") or keys
        width = facts.count("qk_rope_head_dim")
    table = sum(_table(keys, rope, positions, width) for rope in ropes) if ropes else positions * width
    two_bases = keys.has("rope_local_base_freq") and len(ropes) < 2 and "sliding" in kinds
    return table + (positions * width if two_bases else 0)


def _width(keys: Keys) -> int:
    share = keys.number("partial_rotary_factor") or keys.number("rotary_pct") or keys.number("rope_pct") or 1
    stated = keys.integer("rotary_dim")
    return stated or int(head_dim_of(keys) * min(share, 1))


def _table(keys: Keys, rope: Keys, positions: int, width: int) -> int:
    """Values of one table. DeepSeek's is in 32 bit and counts double."""
    kind, factor = _kind(rope), rope.number("factor") or 1
    if rope.has("partial_rotary_factor"):
        width = int(head_dim_of(keys) * min(rope.number("partial_rotary_factor") or 1, 1))
    original = rope.integer("original_max_position_embeddings") or positions
    if latent(keys) and kind == "yarn":
        return int(original * factor) * width * 2
    if kind == "yarn":
        return int(original * factor) * width
    if kind == "linear":
        return int(positions * factor) * width
    if kind in ("longrope", "su"):
        original = keys.integer("original_max_position_embeddings") or original
        return (positions + original) * width
    if rope.has("mrope_section"):
        return _MROPE_LENGTHS * positions * width
    return positions * width
