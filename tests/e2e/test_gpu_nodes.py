"""GPU nodes as clusters have them: pools without labels.

The nodes are objects only: pods are placed there by the real scheduler, and never begin.
"""

from __future__ import annotations

from tests.support.cluster import JSON, Cluster, eventually
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import SMALL, merge, stand_in
from tests.support.simulated_node import TOLERATION, simulated_node

GPU = {"nvidia.com/gpu": "1"}
L4 = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034", "nvidia.com/gpu.count": "1"}


def on_a_gpu(name: str, **spec: object) -> JSON:
    """A five-line service: no field says which GPU."""
    spec = merge({"accelerator": {"type": "nvidia"}, "precision": {"dtype": "auto"}, "fitPolicy": "Enforce"}, spec)
    placed = {"podTemplate": {"spec": {"tolerations": [TOLERATION]}}, "model": {"architecture": {**SMALL}}}
    return stand_in(name, **merge(spec, placed))


def node_of(cluster: Cluster, namespace: str, name: str) -> str:
    return next((pod["spec"]["nodeName"] for pod in cluster.pods(namespace, name) if "nodeName" in pod["spec"]), "")


def test_a_pool_without_labels_is_used_when_the_labelled_node_is_gone(cluster: Cluster, namespace: str) -> None:
    with simulated_node(cluster, "labelled", L4, GPU):
        cluster.apply(on_a_gpu("pooled"), namespace)
        assert eventually("a place", lambda: node_of(cluster, namespace, "pooled"), 30) == "labelled"
    with simulated_node(cluster, "unlabelled", amounts=GPU):
        eventually("a place there", lambda: node_of(cluster, namespace, "pooled") == "unlabelled", 60)
        # A pod that came again would hold the GPU of the next test's node.
        cluster.kubectl("delete", "llms", "pooled", "-n", namespace, KUBECTL_TIMEOUT)
        eventually("no ReplicaSet of it", lambda: not cluster.list("replicasets", namespace), 60)


def test_a_pool_without_labels_gets_a_first_pod(cluster: Cluster, namespace: str) -> None:
    with simulated_node(cluster, "unlabelled", amounts=GPU):
        cluster.apply(on_a_gpu("first"), namespace)
        assert eventually("a place", lambda: node_of(cluster, namespace, "first"), 30) == "unlabelled"
