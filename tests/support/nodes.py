"""Further nodes for as long as a test needs them, and services that spread over two."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from localcluster import addednode
from localcluster import cluster as localcluster
from localcluster.place import EVICTION
from localcluster.place import SECOND as SECOND
from localcluster.place import THIRD as THIRD
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
class AddedNode:
    """One that is there and Ready unless `lose` has been called."""

    cluster: Cluster
    host: localcluster.Host
    name: str
    engine: bool

    def add(self, eviction: Mapping[str, str] = EVICTION) -> None:
        """Bring it back, or give its kubelet another threshold of eviction."""
        addednode.add(self.cluster.paths, self.host, self.name, eviction=eviction, engine=self.engine)

    def lose(self) -> None:
        """As a power loss."""
        addednode.lose(self.cluster.paths, self.name)


@contextmanager
def added_node(cluster: Cluster, name: str = SECOND, *, engine: bool = False) -> Iterator[AddedNode]:
    """`engine`: with vLLM's image too. Whatever was left of an earlier one goes first."""
    host = localcluster.Host.current()
    node = AddedNode(cluster, dataclasses.replace(host, environment=dict(os.environ)), name, engine)
    addednode.remove(cluster.paths, host, name)
    try:
        node.add()
        yield node
    finally:
        for each in NODES:
            cluster.kubectl("uncordon", each, expect=None)
        addednode.remove(cluster.paths, host, name)


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
