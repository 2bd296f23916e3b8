"""A second node for as long as a test needs it, and services that spread over both."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from localcluster import cluster as localcluster
from localcluster import secondnode
from localcluster.place import EVICTION
from localcluster.place import SECOND as SECOND
from tests.support.cluster import JSON, Cluster, condition, eventually

FIRST = "node-a"
NODES = (FIRST, SECOND)


def spread(name: str) -> Mapping[str, Any]:
    """A podTemplate that has the replicas on different nodes; one that is drained is not counted."""
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": {"llmservice.dev/service": name}},
    }
    return {"spec": {"topologySpreadConstraints": [constraint]}}


@dataclasses.dataclass(frozen=True)
class SecondNode:
    """node-b, which is there and Ready unless `lose` has been called."""

    cluster: Cluster
    host: localcluster.Host
    engine: bool

    def add(self, eviction: Mapping[str, str] = EVICTION) -> None:
        """Bring it back, or give its kubelet another threshold of eviction."""
        secondnode.add(self.cluster.paths, self.host, eviction=eviction, engine=self.engine)

    def lose(self) -> None:
        """As a power loss."""
        secondnode.lose(self.cluster.paths)


@contextmanager
def second_node(cluster: Cluster, *, engine: bool = False) -> Iterator[SecondNode]:
    """`engine`: with vLLM's image too. Whatever was left of an earlier one goes first."""
    host = localcluster.Host.current()
    node = SecondNode(cluster, dataclasses.replace(host, environment=dict(os.environ)), engine)
    secondnode.remove(cluster.paths, host)
    try:
        node.add()
        yield node
    finally:
        for name in NODES:
            cluster.kubectl("uncordon", name, expect=None)
        secondnode.remove(cluster.paths, host)


@contextmanager
def cordoned(cluster: Cluster, node: str) -> Iterator[None]:
    """Nothing new goes there."""
    cluster.kubectl("cordon", node)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", node)


def pods_by_node(cluster: Cluster, namespace: str, name: str) -> dict[str, list[JSON]]:
    """The pods of a service that are to stay."""
    found: dict[str, list[JSON]] = {node: [] for node in NODES}
    for pod in cluster.pods(namespace, name):
        if "nodeName" in pod["spec"]:
            found[pod["spec"]["nodeName"]].append(pod)
    return found


def await_condition(cluster: Cluster, node: str, kind: str, status: str, within: float) -> None:
    def has_come() -> bool:
        return (condition(cluster.api.get(f"/api/v1/nodes/{node}").json(), kind) or {}).get("status") == status

    eventually(f"{kind}={status} of {node}", has_come, within)
