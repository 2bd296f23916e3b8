"""Kinds of workloads, and which one a service has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmservice_api.service import LLMService

from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.workload.deployment import DEPLOYMENT
from llmservice_operator.workload.leaderworkerset import LEADER_WORKER_SET
from llmservice_operator.workload.port import Replica, Workload, WorkloadFacts

WORKLOADS: tuple[Workload, ...] = (DEPLOYMENT, LEADER_WORKER_SET)


def workload_of(service: LLMService) -> Workload:
    """The kind that runs its replicas."""
    return LEADER_WORKER_SET if service.spec.parallelism.nodes > 1 else DEPLOYMENT


def is_workload(kind: str) -> bool:
    """Whether objects of this kind run the replicas of the service with their name."""
    return any(kind == workload.kind for workload in WORKLOADS)


def replicas_of(live: WorkloadFacts | None, pods: Iterable[PodFacts]) -> tuple[Replica, ...]:
    """The replicas that these pods form; without a workload, by the default kind."""
    found = next((workload for workload in WORKLOADS if live is not None and workload.kind == live.kind), DEPLOYMENT)
    return tuple(found.replicas(pods))


def live_workload(projections: Mapping[str, Mapping[str, Any]], name: str) -> WorkloadFacts | None:
    """The workload of a service, from its `projections` by kind and name; the first where there are two."""
    found = (projections.get(workload.kind, {}).get(name) for workload in WORKLOADS)
    return next((facts for facts in found if facts is not None), None)
