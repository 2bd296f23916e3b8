"""Whether nodes' CPUs have the instruction sets that vLLM needs, by their labels.

node-feature-discovery labels nodes with CPU features. A node without its labels is unknown, and refuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmservice_runtime.preflight.cpu_features import LABELS, Requirement

from llmservice_planner.room import NodeRoom, Room, nodes_for

Json = Mapping[str, Any]

PREFIX = "feature.node.kubernetes.io/cpu-cpuid."
_ALWAYS_LABELLED = ("AVX", "AVX2")
"""Published for each x86 CPU that vLLM runs on: a node without them is unlabelled."""


def unmet(requirements: Iterable[Requirement], room: Room, pod_spec: Json) -> tuple[Requirement, int] | None:
    """The first requirement that no suitable node meets, and the number of these nodes.

    None: a node may meet each, a node is unknown, or there is none (which the scheduler reports).
    """
    nodes = () if room.unknown is not None else tuple(nodes_for(room, pod_spec))
    for required in requirements:
        if nodes and all(is_too_old(node, required) for node in nodes):
            return required, len(nodes)
    return None


def is_too_old(node: NodeRoom, required: Requirement) -> bool:
    """Whether a node's labels show that its CPU does not meet a requirement."""
    if node.labels.get("kubernetes.io/arch", "amd64") != "amd64":
        return required.is_x86_only
    if not any(f"{PREFIX}{feature}" in node.labels for feature in _ALWAYS_LABELLED):
        return False
    has = frozenset(flag for flag, feature in LABELS.items() if node.labels.get(f"{PREFIX}{feature}") == "true")
    return not required.is_met_by(has)
