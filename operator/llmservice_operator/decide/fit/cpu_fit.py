"""What a service needs of the CPUs that it runs on, and whether any node's labels say that it is there."""

from __future__ import annotations

import json
from functools import lru_cache

from llmservice_runtime.flags import LOAD_METHODS
from llmservice_runtime.preflight import cpu_features
from llmservice_runtime.preflight.cpu_features import Requirement

from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.service import LLMService
from llmservice_operator.build import placement
from llmservice_operator.observe.status.verdict import Obstacle
from llmservice_operator.planner import cpus
from llmservice_operator.planner.room import Room

LABELS_MAY_BE_OLD = 60.0
"""Seconds: features of nodes change when nodes come and go."""


def missing_feature(service: LLMService, room: Room, document: str | None) -> Obstacle | None:
    """What no node's labels say that it has; `document` is the model's facts, as JSON text."""
    required = requirements(service, document)
    if not required:
        return None
    given = service.spec.pod_template.spec
    pod_spec = {
        "nodeSelector": dict(given.node_selector),
        "tolerations": placement.tolerations(service),
        "affinity": placement.affinity(service),
    }
    found = cpus.unmet(required, room, pod_spec)
    if found is None:
        return None
    missing, nodes = found
    of_nodes = "the one node" if nodes == 1 else f"none of the {nodes} nodes"
    has = "does not have it" if nodes == 1 else "has it"
    message = (
        f"{missing.what} needs a CPU with {missing.words}, and {of_nodes} that the pods may run on {has}, by the "
        f"labels {cpus.PREFIX}*."
    )
    return Obstacle(Reason.CPU_FEATURE_MISSING, message, remedy=missing.remedy)


def requirements(service: LLMService, document: str | None) -> tuple[Requirement, ...]:
    """Of the CPU, by the spec and by what the checkpoint says of its quantization: none for a service on GPUs."""
    if service.spec.accelerator.type != "cpu":
        return ()
    precision = service.spec.precision
    method, bits = (None, None) if document is None else _declared(document)
    asked = precision.quantization or LOAD_METHODS.get(precision.weights) or method
    return tuple(cpu_features.requirements(precision.kv_cache, asked, bits))


@lru_cache(maxsize=256)
def _declared(document: str) -> tuple[str | None, int | None]:
    facts = json.loads(document)
    return cpu_features.declared(facts) if isinstance(facts, dict) else (None, None)
