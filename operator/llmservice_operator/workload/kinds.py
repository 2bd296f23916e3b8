"""Kinds of workloads, and which one a service has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmservice_api.constants import direct_name

from llmservice_operator.facts.children import ServiceFacts
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.meta import Manifest, nodes_of
from llmservice_operator.workload.deployment import DEPLOYMENT
from llmservice_operator.workload.leaderworkerset import LEADER_WORKER_SET
from llmservice_operator.workload.port import Replica, Workload, WorkloadFacts

WORKLOADS: tuple[Workload, ...] = (DEPLOYMENT, LEADER_WORKER_SET)


def workload_of(template: Manifest) -> Workload:
    """The kind that runs replicas of this pod template."""
    return LEADER_WORKER_SET if nodes_of(template) > 1 else DEPLOYMENT


def is_workload(kind: str) -> bool:
    """Whether objects of this kind run the replicas of the service with their name."""
    return any(kind == workload.kind for workload in WORKLOADS)


def replicas_of(pods: Iterable[PodFacts]) -> tuple[Replica, ...]:
    """The replicas that these pods form, of any kind of workload."""
    there = tuple(pods)
    return tuple(replica for workload in WORKLOADS for replica in workload.replicas(there))


def workloads_of(projections: Mapping[str, Mapping[str, Any]], name: str) -> tuple[WorkloadFacts, ...]:
    """The workloads of a service, from its `projections` by kind and name; the one that serves first.

    There are two once a service has changed between one and several nodes. That serves which the Service selects; with
    a router, which NAME-direct does.
    """
    found = (projections.get(workload.kind, {}).get(name) for workload in WORKLOADS)
    services = projections.get(ServiceFacts.kind, {})
    endpoint = services.get(name)
    if endpoint is not None and endpoint.selects_routers:
        endpoint = services.get(direct_name(name), endpoint)
    selects_groups = endpoint is not None and endpoint.selects_groups
    there = [facts for facts in found if facts is not None]
    return tuple(sorted(there, key=lambda facts: (facts.nodes > 1) is not selects_groups))
