"""Facts of a healthy cluster for `llmservice doctor`, and the objects that differ from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from llmservice_api.crd import crd
from llmservice_cli.doctor.access import INSTALLING, TEAM
from llmservice_cli.doctor.facts import Facts
from llmservice_operator.options import version

from tests.unit.cli_world import Json

SYSTEM = "llmservice-system"
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
VERSION_LABEL = "app.kubernetes.io/version"


def node(
    name: str = "a",
    labels: Mapping[str, str] | None = None,
    gpus: str = "",
    ready: str = "True",
    resource: str = "nvidia.com/gpu",
) -> Json:
    """`gpus`: how many are allocatable."""
    resources = {resource: gpus} if gpus else {}
    status = {"allocatable": resources, "capacity": resources, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name, "labels": {**(labels or {})}}, "spec": {}, "status": status}


def tainted(key: str, effect: str = "NoSchedule", resource: str = "nvidia.com/gpu") -> Json:
    return {**node(labels=T4, gpus="1", resource=resource), "spec": {"taints": [{"key": key, "effect": effect}]}}


def broken_gpu() -> Json:
    found = node(labels=T4, gpus="3")
    found["status"]["capacity"] = {"nvidia.com/gpu": "4"}
    return found


def deployment(ready: int = 1, replicas: int = 1, labels: Mapping[str, str] | None = None, image: str = "op:1") -> Json:
    metadata = {
        "name": "llmservice-operator",
        "namespace": SYSTEM,
        "labels": {VERSION_LABEL: version(), **(labels or {})},
    }
    ports = [{"name": "health", "containerPort": 8080}]
    template = {"spec": {"containers": [{"name": "operator", "image": image, "ports": ports}]}}
    return {
        "metadata": metadata,
        "spec": {"replicas": replicas, "template": template},
        "status": {"readyReplicas": ready},
    }


def waiting(reason: str, message: str = "") -> Json:
    state = {"waiting": {"reason": reason, "message": message}}
    status = {"containerStatuses": [{"name": "server", "image": "registry/x:1", "state": state}]}
    return {"metadata": {"name": "chat-1", "namespace": SYSTEM}, "spec": {}, "status": status}


def config_map(text: str) -> Json:
    return {"metadata": {"name": "llmservice-operator", "namespace": SYSTEM}, "data": {"settings.yaml": text}}


def lease(holder: str = "pod-1", renewed: str = "2026-01-01T11:59:58Z") -> Json:
    spec = {"holderIdentity": holder, "renewTime": renewed}
    return {"metadata": {"name": "llmservice-operator", "namespace": SYSTEM}, "spec": spec}


def installed_crd(**changed: Any) -> Json:
    found = json.loads(_crd_text())
    found["metadata"]["annotations"] = {"llmservice.dev/crd-version": version()}
    found["status"] = {"storedVersions": ["v1alpha1"], "conditions": [{"type": "Established", "status": "True"}]}
    return {**found, **changed}


@cache
def _crd_text() -> str:
    """The schema takes a tenth of a second to make."""
    return json.dumps(crd())


def crd_without(field: str) -> Json:
    found = installed_crd()
    del found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][field]
    return found


def crd_with(field: str) -> Json:
    found = installed_crd()
    spec = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"][field] = {"type": "string"}
    return found


def service(ready: str = "True", reason: str = "RolledOut", **spec: Any) -> Json:
    condition = {"type": "Ready", "status": ready, "reason": reason, "message": "", "observedGeneration": 1}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    return {"metadata": {"name": "chat", "namespace": "team"}, "spec": spec, "status": {"conditions": [condition]}}


def quota(hard: Json, used: Json) -> Json:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}}


def limit_range(**item: Any) -> Json:
    return {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", **item}]}}


def storage_class(name: str = "standard", *, default: bool = True, **fields: Any) -> Json:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {"metadata": {"name": name, "annotations": annotations}, "provisioner": "nfs.csi.k8s.io", **fields}


def namespace(level: str = "restricted", name: str = "team", **labels: str) -> Json:
    found = {"pod-security.kubernetes.io/enforce": level, "kubernetes.io/metadata.name": name, **labels}
    return {"metadata": {"name": name, "labels": found}}


def hook(policy: str, resource: str = "pods", **fields: Any) -> Json:
    rule = {"apiGroups": [""], "resources": [resource], "operations": ["CREATE"]}
    client = {"service": {"namespace": "mesh", "name": "injector"}}
    webhook = {"name": "inject", "failurePolicy": policy, "rules": [rule], "clientConfig": client, **fields}
    return {"metadata": {"name": "mesh"}, "webhooks": [webhook]}


def keda_crd(*served: str) -> Json:
    return {"metadata": {"name": "x"}, "spec": {"versions": [{"name": name, "served": True} for name in served]}}


T4 = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}
ODD = {"nvidia.com/gpu.product": "NVIDIA-X9000"}
AVX = "feature.node.kubernetes.io/cpu-cpuid."
ALL = {**dict.fromkeys((replace(right, namespace="team") for right in TEAM), True), **dict.fromkeys(INSTALLING, True)}
NONE = dict.fromkeys(ALL, False)
SCALING = config_map("services: {scalerAddress: 'a.b.svc:9443', scalerAuthentication: x}")
PLAIN, IMAGES = config_map("services: {}"), config_map("services: {defaultCpuImage: 'cpu:1'}")
GROUPS = config_map("services: {hasGroups: true}")
WIDE = service(parallelism={"tensorParallelSize": 2, "nodes": 2})
DEVICES = config_map("services: {hasDynamicResources: true}")
CLAIMING = service(accelerator={"claim": {"deviceClass": "gpu.nvidia.com"}})
AUTOSCALED = service(scaling={"autoscaling": {"maxReplicas": 3}})
HEALTHY = Facts(
    program=version(),
    now=NOW,
    namespace="team",
    kubernetes="v1.31.4",
    user="me",
    rights=ALL,
    crd=(installed_crd(),),
    operators=(deployment(),),
    settings=(PLAIN,),
    leases=(lease(),),
    nodes=(node(labels=T4, gpus="1"),),
    storage_classes=(storage_class(),),
    namespaces=(namespace(),),
    services=(service(),),
)
BROKEN_GPU, MESH, OLD_KEDA = broken_gpu(), hook("Fail"), deployment(labels={VERSION_LABEL: "2.17.1"})
FULL, CPU_LIMITS = quota({"pods": "3"}, {"pods": "3"}), quota({"limits.cpu": "9"}, {"limits.cpu": "1"})
BOTH_LIMITS, CPU_DEFAULT = quota({"limits.cpu": "9", "limits.memory": "9Gi"}, {}), (limit_range(default={"cpu": "1"}),)
FLOOR = limit_range(min={"cpu": "100m", "memory": "128Mi"}, maxLimitRequestRatio={"cpu": "10"})
LARGER = config_map("services: {helperCpu: 200m, helperMemory: 128Mi}")
ZONES = tuple(node(zone, {"topology.kubernetes.io/zone": zone}) for zone in ("a", "b"))
