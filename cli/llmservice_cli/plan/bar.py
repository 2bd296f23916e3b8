"""One GPU's memory as a bar of letters, which reads without colour, and the legend beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmservice_operator.planner.plan import Plan

END = "|"
"""Where the GPU's memory ends, in a bar of something that is larger."""


@dataclass(frozen=True, slots=True)
class Segment:
    letter: str
    label: str
    gib: float
    style: str


def segments(plan: Plan) -> tuple[Segment, ...]:
    """What the memory is for, in the engine's order; empty where too little is known for a picture."""
    if plan.memory_gib is None or plan.weights_gib is None:
        return ()
    parts = [
        Segment("W", "weights", plan.weights_gib, "blue"),
        Segment("N", "non-torch", plan.non_torch_gib or 0.0, "magenta"),
        Segment("A", "activation peak", plan.activation_gib or 0.0, "yellow"),
        Segment("G", "CUDA graphs", plan.graph_gib or 0.0, "cyan"),
        Segment("K", "KV cache", max(0.0, plan.kv_cache_gib or 0.0), "green"),
    ]
    rest = plan.memory_gib - sum(part.gib for part in parts)
    if plan.kv_cache_gib is None:
        parts = [part for part in parts if part.gib > 0]
        left = Segment("?", "not known", max(0.0, rest), "dim")
    else:
        left = Segment(".", "left to others", max(0.0, rest), "dim")
    return tuple(part for part in (*parts, left) if part.gib > 0 or part.letter == "K")


def cells(parts: Sequence[Segment], width: int, memory_gib: float) -> list[Segment | None]:
    """`width` cells, each of a segment; None marks the end of the memory where the parts are more than it has."""
    total = sum(part.gib for part in parts)
    is_over = total > memory_gib * 1.0005
    room = width - 1 if is_over else width
    result: list[Segment | None] = []
    for part, count in zip(parts, _shares([part.gib for part in parts], room), strict=True):
        result += [part] * count
    if is_over:
        result.insert(round(room * memory_gib / total), None)
    return result


def text(parts: Sequence[Segment], width: int, memory_gib: float) -> str:
    return "".join(END if part is None else part.letter for part in cells(parts, width, memory_gib))


def _shares(amounts: Sequence[float], room: int) -> list[int]:
    """Whole cells in proportion; what there is, however little, gets one where there is room for all."""
    total = sum(amounts)
    if total <= 0:
        return [0] * len(amounts)
    exact = [amount * room / total for amount in amounts]
    least = [1 if amount > 0 and room >= len(amounts) else 0 for amount in amounts]
    counts = [max(low, int(share)) for low, share in zip(least, exact, strict=True)]
    while sum(counts) < room:
        counts[max(range(len(counts)), key=lambda i: exact[i] - counts[i])] += 1
    while sum(counts) > room:
        counts[max(range(len(counts)), key=lambda i: counts[i] - exact[i] if counts[i] > least[i] else -1.0)] -= 1
    return counts
