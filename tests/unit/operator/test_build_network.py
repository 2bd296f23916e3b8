"""The network between the nodes of a replica, as its pods get it."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_api.service import LLMService
from llmservice_operator.manifests.pod_template import pod_template
from llmservice_operator.manifests.settings import Settings

from tests.unit.decide_world import an_llmservice, spec

SETTINGS = Settings()


def template(network: dict[str, Any] | None) -> dict[str, Any]:
    sizes: dict[str, Any] = {"tensorParallelSize": 8, "pipelineParallelSize": 2, "nodes": 2}
    parallelism = sizes if network is None else {**sizes, "network": network}
    return pod_template(LLMService.from_object(an_llmservice(spec(parallelism=parallelism))), SETTINGS)


def server(rendered: dict[str, Any]) -> dict[str, Any]:
    (found,) = rendered["spec"]["containers"]
    return dict(found)


def variables(rendered: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in server(rendered)["env"] if "value" in each}


PLAIN = template(None)
VARIABLES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "nothing": ({}, {}),
    "tcp": ({"preset": "tcp"}, {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}),
    "infiniband": ({"preset": "infiniband", "rdmaResource": "rdma/ib"}, {"NCCL_NET": "IB"}),
    "some devices": (
        {"preset": "roce", "rdmaResource": "rdma/roce", "rdmaDevices": ["mlx5_0", "mlx5_3"]},
        {"NCCL_NET": "IB", "NCCL_IB_HCA": "=mlx5_0,mlx5_3", "UCX_NET_DEVICES": "mlx5_0:1,mlx5_3:1"},
    ),
    "efa": ({"preset": "efa"}, {"NCCL_NET": "AWS Libfabric", "FI_PROVIDER": "efa"}),
    "gke": ({"preset": "gke"}, {"NCCL_NET": "gIB"}),
    "an interface": (
        {"interface": "eth1"},
        {"LLMSERVICE_INTERFACE": "eth1", "GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"},
    ),
}


@pytest.mark.parametrize(("network", "expected"), VARIABLES.values(), ids=VARIABLES.keys())
def test_variables_of_vllm(network: dict[str, Any], expected: dict[str, str]) -> None:
    rendered = variables(template(network))
    ignored = {"LLMSERVICE_GROUP_TOKEN"}  # of the revision
    added = {name: value for name, value in rendered.items() if name not in variables(PLAIN) and name not in ignored}
    assert added == expected


LIMITS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "tcp": ({"preset": "tcp"}, {}),
    "one by default": ({"preset": "infiniband", "rdmaResource": "rdma/ib"}, {"rdma/ib": "1"}),
    "several": ({"preset": "roce", "rdmaResource": "nvidia.com/roce", "rdmaCount": 8}, {"nvidia.com/roce": "8"}),
    "efa's own": ({"preset": "efa", "rdmaCount": 4}, {"vpc.amazonaws.com/efa": "4"}),
    "without a preset": ({"rdmaResource": "rdma/ib"}, {"rdma/ib": "1"}),
}


@pytest.mark.parametrize(("network", "expected"), LIMITS.values(), ids=LIMITS.keys())
def test_devices_are_asked_for_beside_the_gpus(network: dict[str, Any], expected: dict[str, str]) -> None:
    limits = server(template(network))["resources"]["limits"]
    assert limits == {**server(PLAIN)["resources"]["limits"], **expected}
    assert limits["nvidia.com/gpu"] == "8"


def test_no_preset_needs_more_than_restricted() -> None:
    for preset in ("infiniband", "efa"):
        rendered = server(template({"preset": preset, "rdmaResource": "rdma/ib"}))
        assert rendered["securityContext"] == server(PLAIN)["securityContext"]


def test_the_nodes_network_comes_with_the_clusters_names() -> None:
    pod = template({"hostNetwork": True})["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert "hostNetwork" not in template({})["spec"]


def test_shared_memory_of_a_size() -> None:
    (volume,) = [each for each in template({"sharedMemory": "9500Mi"})["spec"]["volumes"] if each["name"] == "dshm"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "10Gi"}
