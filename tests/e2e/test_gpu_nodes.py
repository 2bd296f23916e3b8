"""GPU nodes as clusters have them: pools without labels, and devices that several pods share.

The nodes are objects only: pods are placed there by the real scheduler, and never begin.
"""

from __future__ import annotations

import json

from tests.support.cluster import JSON, Cluster, condition, eventually
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


def test_a_pool_without_labels_gets_a_first_pod(cluster: Cluster, namespace: str) -> None:
    with simulated_node(cluster, "unlabelled", amounts=GPU):
        cluster.apply(on_a_gpu("first"), namespace)
        assert eventually("a place", lambda: node_of(cluster, namespace, "first"), 30) == "unlabelled"


def test_a_share_of_a_gpu_is_no_room_for_a_second_copy(cluster: Cluster, namespace: str) -> None:
    shared = {**L4, "nvidia.com/gpu.product": "NVIDIA-L4-SHARED", "nvidia.com/gpu.replicas": "4"}
    shared["nvidia.com/gpu.sharing-strategy"] = "time-slicing"
    with simulated_node(cluster, "sliced", shared, {"nvidia.com/gpu": "4"}):
        cluster.apply(on_a_gpu("sharing"), namespace)
        assert eventually("a place", lambda: node_of(cluster, namespace, "sharing"), 30) == "sliced"
        seem_ready(cluster, namespace, "sharing")
        cluster.wait_condition(namespace, "sharing", "Available", "True", timeout=30)
        cluster.patch("llmservices", namespace, "sharing", {"spec": {"batching": {"maxNumSeqs": 7}}})

        def strategy() -> str:
            found: str = cluster.status(namespace, "sharing").get("rollout", {}).get("strategy", "")
            return found

        assert eventually("a strategy", strategy, 30) == "Replace"


def seem_ready(cluster: Cluster, namespace: str, name: str) -> None:
    """As the kubelet of a real node would say."""
    (pod,) = cluster.pods(namespace, name)
    now = condition(pod, "PodScheduled")
    assert now is not None
    ready = [now | {"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready", "ContainersReady")]
    status = {"phase": "Running", "podIP": "10.244.99.1", "podIPs": [{"ip": "10.244.99.1"}], "conditions": ready}
    words = ("patch", "pod", pod["metadata"]["name"], "-n", namespace, "--subresource=status", "--type=merge")
    cluster.kubectl(*words, "-p", json.dumps({"status": status}))
