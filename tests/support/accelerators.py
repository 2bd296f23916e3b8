"""Accelerators that a node says it has: what is placed there holds them, and nothing computes on them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from localcluster.network import NODE
from tests.support.cluster import JSON, Cluster, eventually


def advertise(cluster: Cluster, amounts: Mapping[str, int], node: str = NODE) -> None:
    """As a device plugin would, by the names of resources; 0 takes them away."""
    there = _status(cluster, node)["capacity"]
    operations = []
    for name, count in amounts.items():
        path = f"/status/capacity/{name.replace('/', '~1')}"
        if count:
            operations.append({"op": "add", "path": path, "value": str(count)})
        elif name in there:
            operations.append({"op": "remove", "path": path})
    patch = ("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(operations))
    cluster.kubectl(*patch)


@contextmanager
def advertised(cluster: Cluster, amounts: Mapping[str, int], node: str = NODE) -> Iterator[None]:
    """The node has them, and pods can be placed."""
    advertise(cluster, amounts, node)

    def are_there() -> bool:
        allocatable = _status(cluster, node)["allocatable"]
        return all(allocatable.get(name) == str(count) for name, count in amounts.items())

    try:
        eventually(f"{node} has {dict(amounts)}", are_there, 60)
        yield
    finally:
        advertise(cluster, dict.fromkeys(amounts, 0), node)


def _status(cluster: Cluster, node: str) -> JSON:
    status: JSON = json.loads(cluster.kubectl("get", "node", node, "-o", "json"))["status"]
    return status
