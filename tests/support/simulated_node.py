"""A node that is an object and nothing else: pods that tolerate it are placed there, and never begin.

For what a lost node does to those who reckon with nodes and pods it is as good as a real one, and there in a second.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kubeloop.resources import rfc3339

from localcluster.addons import forget_node
from localcluster.kube import Kubectl
from tests.support.cluster import Cluster, eventually

_KEY = "llmservice.test/simulated"
TOLERATION: Mapping[str, Any] = {"key": _KEY, "operator": "Exists", "effect": "NoSchedule"}
"""Of pods that may go there; all others would wait there for ever."""
_LEASES = "kube-node-lease"
_RENEWED_EACH = 5.0
"""Seconds. After 24 without, the local cluster takes a node for lost, and places no pod there."""


@dataclass(frozen=True)
class SimulatedNode:
    """One that says it is Ready, as a kubelet would."""

    cluster: Cluster
    name: str
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Its Lease is renewed, until it is lost."""
        renewing = threading.Thread(target=self._renew, name=f"the Lease of {self.name}")
        renewing.start()
        try:
            yield
        finally:
            self._ended.set()
            renewing.join()

    def _renew(self) -> None:
        while not self._ended.is_set():
            now = rfc3339(dt.datetime.now(dt.UTC), "microseconds")
            spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now}
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            self.cluster.apply({**kind, "metadata": {"name": self.name}, "spec": spec}, _LEASES)
            self._ended.wait(_RENEWED_EACH)

    def lose(self) -> None:
        """It says no more that it is Ready."""
        self._ended.set()
        words = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": _status("Unknown")}))
        self.cluster.kubectl("patch", "node", self.name, *words)

    def is_open(self) -> bool:
        """Whether only its own taint is on it."""
        taints = json.loads(self.cluster.kubectl("get", "node", self.name, "-o", "json"))["spec"].get("taints") or ()
        return {taint["key"] for taint in taints} <= {_KEY}


def _status(ready: str, more: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    amounts = {"cpu": "2", "memory": "8Gi", "ephemeral-storage": "50Gi", "pods": "10", **more}
    condition = {"type": "Ready", "status": ready, "reason": "Simulated", "message": "as the test says"}
    return {"capacity": amounts, "allocatable": amounts, "conditions": [condition]}


@contextmanager
def simulated_node(
    cluster: Cluster,
    name: str,
    labels: Mapping[str, str] = MappingProxyType({}),
    amounts: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[SimulatedNode]:
    """With more labels and other amounts of resources. Nothing of it is left afterwards, its pods included."""
    node = SimulatedNode(cluster, name)
    taint = {"key": _KEY, "effect": "NoSchedule"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", **labels}
    manifest = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [taint]},
        "status": _status("True", amounts),
    }
    # Created with its status, as a kubelet does: a node without a condition gets taints for being unreachable too.
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    try:
        # Until the controller takes its own taint away, pods that spread do not count the node and go elsewhere.
        with node.renewed():
            eventually(f"{name} without a taint of Kubernetes", node.is_open, 30)
            yield node
    finally:
        forget_node(Kubectl(cluster.paths), name)
        cluster.kubectl("delete", "lease", name, "-n", _LEASES, "--ignore-not-found")


def give_up(cluster: Cluster, node: str) -> None:
    """What an administrator does with a node that is lost for good: Kubernetes replaces its pods at once."""
    cluster.kubectl("taint", "node", node, "node.kubernetes.io/out-of-service=lost:NoExecute")
