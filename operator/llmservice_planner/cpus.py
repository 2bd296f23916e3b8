"""Whether nodes' CPUs have the instruction sets that vLLM needs, by what their labels say.

node-feature-discovery labels nodes with the features of their processors. A node without its labels is unknown, and
what is unknown never refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmservice_runtime.preflight.cpu_features import LABELS, Requirement

from llmservice_planner.room import NodeRoom, Room, nodes_for

Json = Mapping[str, Any]

PREFIX = "feature.node.kubernetes.io/cpu-cpuid."
_ALWAYS_LABELLED = ("AVX", "AVX2")
"""node-feature-discovery publishes these of each x86 processor that vLLM runs on: a node without them is unlabelled."""


def unmet(requirements: Iterable[Requirement], room: Room, pod_spec: Json) -> tuple[Requirement, int] | None:
    """The first requirement that no node meets on which pods of this spec may run, and how many nodes these are.

    None: some node may meet it, nothing is known of one, or there is no node (which is the scheduler's to say).
    """
    nodes = () if room.unknown is not None else tuple(nodes_for(room, pod_spec))
    for required in requirements:
        if nodes and all(is_too_old(node, required) for node in nodes):
            return required, len(nodes)
    return None


def is_too_old(node: NodeRoom, required: Requirement) -> bool:
    """Whether a node's labels say that its processor does not meet a requirement."""
    if node.labels.get("kubernetes.io/arch", "amd64") != "amd64":
        return required.is_x86_only
    if not any(f"{PREFIX}{feature}" in node.labels for feature in _ALWAYS_LABELLED):
        return False
    has = frozenset(flag for flag, feature in LABELS.items() if node.labels.get(f"{PREFIX}{feature}") == "true")
    return not required.is_met_by(has)
