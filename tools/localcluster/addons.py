"""What is in the cluster from the start: DNS, and accelerators that are not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localcluster.kube import Kubectl
from localcluster.network import DNS_SERVICE, GATEWAY, NODE

GPU = "nvidia.com/gpu"
_GPU_POINTER = "/status/capacity/nvidia.com~1gpu"
_PORTS = [{"name": "dns", "protocol": "UDP", "port": 53}, {"name": "dns-tcp", "protocol": "TCP", "port": 53}]


def dns_objects() -> list[dict[str, Any]]:
    """The Service of CoreDNS, which runs on the host, and its right to look at what it names."""
    service = {"name": "kube-dns", "namespace": "kube-system", "labels": {"kubernetes.io/name": "CoreDNS"}}
    endpoints = {
        "name": "kube-dns-host",
        "namespace": "kube-system",
        "labels": {"kubernetes.io/service-name": "kube-dns"},
    }
    watch = ["list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": watch},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watch},
    ]
    rbac = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": service,
            "spec": {"clusterIP": DNS_SERVICE, "ports": _PORTS},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": endpoints,
            "addressType": "IPv4",
            "ports": _PORTS,
            "endpoints": [{"addresses": [GATEWAY], "conditions": {"ready": True}}],
        },
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": "system:coredns"}, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "system:coredns"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "system:coredns"},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": "system:coredns"}],
        },
    ]


def gpu_labels(count: int) -> dict[str, str]:
    """What NVIDIA's feature discovery writes on a node with eight H100 and the like."""
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
    }


def gpu_operations(capacity: Mapping[str, str], count: int) -> list[dict[str, Any]]:
    """The JSON patch that makes a node advertise `count` of them; empty when it does already."""
    if count == 0:
        # Zero and absent differ for nobody, but absent is what a node without GPUs has.
        return [{"op": "remove", "path": _GPU_POINTER}] if GPU in capacity else []
    if capacity.get(GPU) == str(count):
        return []
    return [{"op": "add", "path": _GPU_POINTER, "value": str(count)}]


def advertise_gpus(kubectl: Kubectl, count: int) -> None:
    node = kubectl.get("node", NODE)
    operations = gpu_operations(node["status"]["capacity"], count)
    if operations:
        kubectl.patch_node_status(NODE, operations)
    wanted = gpu_labels(count)
    labels = [f"{name}={value}" for name, value in wanted.items()] if count else [f"{name}-" for name in wanted]
    kubectl.run("label", "node", NODE, "--overwrite", *labels)


def has_gpus(kubectl: Kubectl, count: int) -> bool:
    """Whether the kubelet lists them as allocatable."""
    return bool(kubectl.get("node", NODE)["status"]["allocatable"].get(GPU, "0") == str(count))


def simulated_node(number: int, gpus: int) -> dict[str, Any]:
    """As large as its GPUs ask for: the scheduler's work grows with the number of nodes, and not with their size."""
    name = f"gpu-{gpus}x-{number}"
    amounts = {
        "cpu": str(12 * gpus),
        "memory": f"{128 * gpus}Gi",
        "ephemeral-storage": f"{256 * gpus}Gi",
        "pods": str(max(110, 2 * gpus)),
        GPU: str(gpus),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "type": "kwok",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **gpu_labels(gpus),
            },
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        # Pods land there only when they say so: a real model server would never start on it.
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def simulate_nodes(kubectl: Kubectl, count: int, gpus: int) -> None:
    """Exactly `count` simulated nodes, of `gpus` GPUs each."""
    present = {item["metadata"]["name"] for item in kubectl.get("nodes", "-l", "type=kwok")["items"]}
    nodes = [simulated_node(number, gpus) for number in range(count)]
    wanted = {node["metadata"]["name"]: node for node in nodes}
    if superfluous := sorted(present - wanted.keys()):
        kubectl.run("delete", "node", *superfluous, "--wait=false", timeout=600)
    missing = [wanted[name] for name in wanted if name not in present]
    if missing:
        kubectl.apply(missing)
        # kwok keeps what a node's status says, but an apply of the node alone leaves the status out.
        kubectl.apply(missing, "--subresource=status")


def simulated_are_ready(kubectl: Kubectl) -> bool:
    """That they take pods, too: a node is Ready a moment before its taint goes.

    Read off one list: `kubectl wait` asks for each node by itself, and hundreds take it more than its time.
    """
    return all(_is_ready(node) for node in kubectl.get("nodes", "-l", "type=kwok")["items"])


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    taints = [taint["key"] for taint in node["spec"].get("taints") or ()]
    is_condition_true = any((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)
    return is_condition_true and not any(key.startswith("node.kubernetes.io/") for key in taints)


def forget_node(kubectl: Kubectl, node: str) -> None:
    """Takes a node that is no more, or is about to end, out of the cluster; nothing when it is not in it."""
    kubectl.run("delete", "node", node, "--ignore-not-found", "--wait=false")
    # Nobody is left who would confirm their end.
    here = f"--field-selector=spec.nodeName={node}"
    kubectl.run("delete", "pods", "-A", here, "--grace-period=0", "--force", "--wait=false")
