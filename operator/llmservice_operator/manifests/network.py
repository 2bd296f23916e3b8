"""What spec.parallelism.network renders: how the pods of a replica over several nodes exchange data.

NCCL_NET makes a start fail where the network is missing; else NCCL would fall back to TCP, and nothing would say why
the model is slow (NCCL's user guide, environment variables). Nothing of RDMA was tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmservice_api.service import LLMService
from llmservice_planner.quantity import gibibytes
from llmservice_runtime import contract

_NCCL_NET: Mapping[str, str] = {
    "tcp": "Socket",
    "infiniband": "IB",
    "roce": "IB",
    # aws-ofi-nccl calls itself so up to 1.11, and still answers to it.
    "efa": "AWS Libfabric",
    "gke": "gIB",
}
_EFA = "vpc.amazonaws.com/efa"


def variables(llm: LLMService) -> dict[str, str]:
    """Of vLLM. The supervisor finds the interface where the spec names none, and the address of one that it names."""
    network = llm.spec.parallelism.network
    if network is None:
        return {}
    found: dict[str, str] = {}
    if network.preset is not None:
        found["NCCL_NET"] = _NCCL_NET[network.preset]
    if network.preset == "tcp":
        found["NCCL_IB_DISABLE"] = "1"
    if network.preset == "efa":
        found["FI_PROVIDER"] = "efa"
    if network.interface is not None:
        # NCCL takes a name without "=" for a prefix.
        found[contract.INTERFACE_ENV] = network.interface
        found |= {"GLOO_SOCKET_IFNAME": network.interface, "NCCL_SOCKET_IFNAME": f"={network.interface}"}
    if network.rdma_devices is not None:
        found["NCCL_IB_HCA"] = "=" + ",".join(network.rdma_devices)
        found["UCX_NET_DEVICES"] = ",".join(f"{device}:1" for device in network.rdma_devices)
    return found


def rdma_limits(llm: LLMService) -> dict[str, str]:
    """The extended resource of RDMA devices, with its amount; empty without."""
    network = llm.spec.parallelism.network
    if network is None:
        return {}
    resource = network.rdma_resource or (_EFA if network.preset == "efa" else None)
    return {} if resource is None else {resource: str(network.rdma_count or 1)}


def pod_fields(llm: LLMService) -> dict[str, Any]:
    """Fields of the pod's spec."""
    network = llm.spec.parallelism.network
    if network is None or not network.host_network:
        return {}
    return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}


def shared_memory_gib(llm: LLMService) -> int | None:
    """What is asked for, rounded up to GiB; None without."""
    network = llm.spec.parallelism.network
    if network is None or network.shared_memory is None:
        return None
    return math.ceil(gibibytes(network.shared_memory))
