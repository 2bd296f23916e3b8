"""`llmservice plan` against a real cluster: nodes with GPUs that no kubelet stands behind, and pods that hold some."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.addons import forget_node
from localcluster.kube import Kubectl
from tests.support.cluster import JSON, Cluster
from tests.support.patience import PATIENCE
from tests.support.services import llmservice

pytestmark = pytest.mark.parallel

POOL = "example.com/pool"
TAINT = "llmservice.test/plan"
L4, L40S = "NVIDIA-L4", "NVIDIA-L40S"
MIB = {L4: "23034", L40S: "46068"}
FACTS = {
    "numHiddenLayers": 32,
    "hiddenSize": 4096,
    "numAttentionHeads": 32,
    "numKeyValueHeads": 8,
    "vocabSize": 128256,
    "intermediateSize": 14336,
    "maxPositionEmbeddings": 8192,
}


@contextmanager
def gpu_node(cluster: Cluster, name: str, product: str, count: int, pool: str) -> Iterator[None]:
    """In a pool of the test's own, with a taint that keeps all other pods away."""
    has = {"cpu": "64", "memory": "256Gi", "pods": "20", "nvidia.com/gpu": str(count)}
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "as the test says"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {POOL: pool, "nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": MIB[product]},
        },
        "spec": {"taints": [{"key": TAINT, "value": pool, "effect": "NoSchedule"}]},
        "status": {"capacity": has, "allocatable": has, "conditions": [ready]},
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(node))
    try:
        yield
    finally:
        forget_node(Kubectl(cluster.paths), name)


def wanted(pool: str, *, tolerates: bool = True) -> JSON:
    made = llmservice("chat", model={"uri": "pvc://models/llama", "architecture": FACTS})
    # What Kubernetes says of a node without a kubelet, sooner or later.
    tolerations = [{"key": f"node.kubernetes.io/{why}", "operator": "Exists"} for why in ("not-ready", "unreachable")]
    tolerations += [{"key": TAINT, "operator": "Exists"}] if tolerates else []
    placed = {"nodeSelector": {POOL: pool}, "tolerations": tolerations}
    made["spec"] |= {"accelerator": {"type": "nvidia"}, "precision": {"dtype": "bfloat16"}, "scaling": {"replicas": 2}}
    made["spec"] |= {"batching": {"maxModelLen": 8192}, "podTemplate": {"spec": placed}}
    made["spec"].pop("runtime", None)
    return made


def holder(node: str, gpus: int) -> JSON:
    """A pod of another service, on a node already."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus), "cpu": "1", "memory": "1Gi"}}
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "server", "image": "none", "resources": resources, "securityContext": security}
    metadata = {"name": "holder", "labels": {"llmservice.dev/service": "elsewhere"}}
    spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def plan(
    cluster: Cluster, manifest: Mapping[str, Any], namespace: str, folder: Path, *words: str
) -> tuple[int, str, str]:
    (folder / "manifests").mkdir(exist_ok=True)
    (folder / "manifests" / "chat.yaml").write_text(yaml.safe_dump(manifest))
    command = (sys.executable, "-m", "llmservice_cli", "plan", "-f", str(folder / "manifests"), "-n", namespace, *words)
    ran = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return ran.returncode, ran.stdout, ran.stderr


def test_it_says_on_which_nodes_there_is_room_and_why_not_on_others(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    pool = "plan-room"
    with gpu_node(cluster, "plan-l4", L4, 4, pool), gpu_node(cluster, "plan-l40s", L40S, 8, pool):
        cluster.apply(holder("plan-l4", 3), namespace)
        code, out, err = plan(cluster, wanted(pool), namespace, tmp_path, "--cluster", "-o", "json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert (found["verdict"], found["product"]) == ("Fits", L4)
        nodes = {one["name"]: one for one in found["cluster"]["nodes"]}
        assert (nodes["plan-l4"]["free"], nodes["plan-l4"]["replicas"]) == (1, 1)
        assert nodes["plan-l40s"]["replicas"] > 0, "the operator's own choice keeps no pod away"
        _, out, _ = plan(cluster, wanted(pool), namespace, tmp_path, "--cluster", "--gpu", L4, "-o", "json")
        nodes = {one["name"]: one for one in json.loads(out)["cluster"]["nodes"]}
        assert nodes["plan-l40s"]["reason"] == f"its GPU is {L40S}, not {L4}"
        assert found["cluster"]["replicasAsked"] == 2

        code, out, err = plan(cluster, wanted(pool, tolerates=False), namespace, tmp_path, "--cluster", "--strict")
        assert code == 3, "no product is to be had on nodes that are tainted"
        assert "have taints that the pods do not tolerate" in " ".join(out.split())
        assert f"the taint {TAINT}={pool}:NoSchedule is not tolerated" in " ".join(out.split())

        cluster.kubectl("delete", "pod", "holder", "-n", namespace, "--force", "--grace-period=0")
        cluster.apply(holder("plan-l4", 4), namespace)
        code, out, err = plan(cluster, wanted(pool), namespace, tmp_path, "--cluster", "--strict", "--gpu", L4)
        assert (code, "no room for it now" in err) == (1, True)
        assert "room for no replicas on NVIDIA-L4; 2 are asked for" in out


def test_without_the_right_to_list_nodes_the_right_is_named(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    cluster.kubectl("create", "serviceaccount", "reader", "-n", namespace)
    token = cluster.kubectl("create", "token", "reader", "-n", namespace).strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    (tmp_path / "config").write_text(json.dumps(config))
    code, out, err = plan(cluster, wanted("nobody"), namespace, tmp_path, "--kubeconfig", str(tmp_path / "config"))
    assert (code, out) == (2, "")
    assert "you have no right to list nodes" in err
    assert "what to do: ask for a ClusterRole" in err
