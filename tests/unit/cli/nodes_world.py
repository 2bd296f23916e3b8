"""Nodes with GPUs, pods that hold some and quotas, as the API server of `llmservice plan --cluster` and `init` has."""

from __future__ import annotations

from tests.unit.api_server import ApiServer
from tests.unit.cli_world import Json

L4, L40S, T4 = "NVIDIA-L4", "NVIDIA-L40S", "Tesla-T4"
MIB = {L4: 23034, L40S: 46068, T4: 15360}


def node(name: str, product: str | None = L4, count: int = 4, *taints: Json, cpu: str = "64", **labels: str) -> Json:
    mine = {} if product is None else {"nvidia.com/gpu.product": product}
    if product in MIB:
        mine["nvidia.com/gpu.memory"] = str(MIB[product])
    has = {"cpu": cpu, "memory": "512Gi", "pods": "110", **({"nvidia.com/gpu": str(count)} if count else {})}
    metadata = {"name": name, "labels": mine | {key.replace("__", "/"): value for key, value in labels.items()}}
    return {"kind": "Node", "metadata": metadata, "spec": {"taints": [*taints]}, "status": {"allocatable": has}}


def pod(name: str, on: str, gpus: int, namespace: str = "other") -> Json:
    metadata = {"name": name, "namespace": namespace, "labels": {"llmservice.dev/service": name}}
    asked = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": on, "containers": [{"resources": asked}]}}


def quota(**hard: str) -> Json:
    metadata, used = {"name": "team", "namespace": "team"}, dict.fromkeys(hard, "0")
    return {"kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}, "status": {"used": used}}


def put(api: ApiServer, *objects: Json) -> None:
    for each in objects:
        api.put(each)
