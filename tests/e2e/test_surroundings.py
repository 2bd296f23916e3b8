"""What a cluster does to the pods of a service: others add containers and gates, refuse, limit, and lack labels.

Each story is of the real API server, scheduler, kubelet and containerd, with the stand-in for vLLM.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from localcluster.install import STAND_IN_IMAGE
from localcluster.place import first
from tests.support import rolling
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.nodes import FIRST
from tests.support.registry import registry, silent_registry
from tests.support.services import stand_in

pytestmark = pytest.mark.parallel

CHANGE: JSON = {"spec": {"batching": {"maxNumSeqs": 7}}}
GATE = "kueue.x-k8s.io/admission"
MESH_CONTAINER = "istio-proxy"


@contextmanager
def changed_pods(cluster: Cluster, namespace: str, mutation: JSON) -> Iterator[None]:
    """Each pod that is made in the namespace is changed, as a mesh's or a queue's webhook changes it."""
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": namespace}}
    policy = kind | {
        "kind": "MutatingAdmissionPolicy",
        "spec": {
            "matchConstraints": {"resourceRules": [pods], "namespaceSelector": here},
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [mutation],
        },
    }
    binding = kind | {"kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": namespace}}
    spec = {"containers": [container("c")], "automountServiceAccountToken": False}
    probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}
    words = ("create", "--dry-run=server", "-n", namespace, "-f", "-", "-o", "json")
    before = json.loads(cluster.kubectl(*words, stdin=json.dumps(probe)))["spec"]

    def is_in_force() -> bool:
        spec = json.loads(cluster.kubectl(*words, stdin=json.dumps(probe)))["spec"]
        return any(spec.get(key) != before.get(key) for key in ("containers", "schedulingGates"))

    cluster.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [policy, binding]})
    )
    try:
        eventually("the API server takes the policy", is_in_force, 60)
        yield
    finally:
        for plural in ("mutatingadmissionpolicybinding", "mutatingadmissionpolicy"):
            cluster.kubectl("delete", plural, namespace)


def container(name: str, image: str = STAND_IN_IMAGE, **rest: Any) -> JSON:
    """One that a restricted namespace with a quota takes."""
    restricted = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    requests = {"requests": {"cpu": "1m", "memory": "16Mi"}}
    return {"name": name, "image": image, "securityContext": restricted, "resources": requests, **rest}


SLEEP = ["python3", "-c", "import signal; signal.sigwait({signal.SIGTERM})"]
ADDED: dict[str, tuple[JSON, str]] = {
    "not ready": (
        container(MESH_CONTAINER, command=SLEEP, readinessProbe={"exec": {"command": ["false"]}, "periodSeconds": 1}),
        "not ready",
    ),
    "no image": (container(MESH_CONTAINER, "registry.local/mesh:none", imagePullPolicy="Never"), "registry.local/mesh"),
    "fails": (container(MESH_CONTAINER, command=["python3", "-c", "raise SystemExit(7)"]), "7"),
}


@pytest.mark.parametrize("case", ADDED)
def test_a_container_that_others_added_is_named(cluster: Cluster, namespace: str, case: str) -> None:
    added, words = ADDED[case]
    patch = f'[JSONPatch{{op: "add", path: "/spec/containers/-", value: {cel(added, "Object.spec.containers")}}}]'
    with changed_pods(cluster, namespace, {"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}):
        cluster.apply(stand_in("meshed"), namespace)

        def reported() -> str | None:
            message = (cluster.condition(namespace, "meshed", "Ready") or {}).get("message", "")
            return message if MESH_CONTAINER in message and words in message else None

        message = eventually(f"{MESH_CONTAINER} in the status", reported, 60)
        assert "spec.runtime.image" not in message + str(cluster.failure(namespace, "meshed"))


def cel(value: Any, path: str) -> str:
    """The CEL expression of a JSON value. An object is of the named type of `path`; only amounts are maps."""
    match value:
        case dict() if path.endswith("requests"):
            return json.dumps(value)
        case dict():
            return f"{path}{{{', '.join(f'{key}: ' + cel(each, path + '.' + key) for key, each in value.items())}}}"
        case list():
            return f"[{', '.join(cel(each, path) for each in value)}]"
    return json.dumps(value)


def test_a_gate_on_the_new_pod_is_named_and_the_rollout_goes_on_without_it(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("gated"), namespace)
    cluster.wait_condition(namespace, "gated", "Ready", "True", timeout=60)
    gated = f'Object{{spec: Object.spec{{schedulingGates: [Object.spec.schedulingGates{{name: "{GATE}"}}]}}}}'
    adds = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": gated}}
    with changed_pods(cluster, namespace, adds):
        cluster.patch("llmservices", namespace, "gated", CHANGE)
        eventually("the gate in the status", lambda: GATE in said(cluster, namespace, "gated"), 60)
        cluster.must_have(namespace, "gated", Available="True")
    (waiting,) = (pod for pod in cluster.pods(namespace, "gated") if pod["spec"].get("schedulingGates"))
    words = ("patch", "pod", waiting["metadata"]["name"], "-n", namespace, "--type=merge")
    cluster.kubectl(*words, "-p", json.dumps({"spec": {"schedulingGates": None}}))
    assert rolling.fewest_ready(cluster, namespace, "gated", 60) == 1


def said(cluster: Cluster, namespace: str, name: str) -> str:
    """All messages of its conditions."""
    return " | ".join(found["message"] for found in cluster.status(namespace, name).get("conditions", ()))


def test_a_limit_range_that_refuses_pods_is_named(cluster: Cluster, namespace: str) -> None:
    limits = [{"type": "Container", "max": {"memory": "32Mi"}}]
    limit_range = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "ceiling"},
        "spec": {"limits": limits},
    }
    cluster.apply(limit_range, namespace)
    cluster.apply(stand_in("limited"), namespace)
    eventually("a failure", lambda: cluster.failure(namespace, "limited"), 60)
    failure = cluster.failure(namespace, "limited")
    assert "32Mi" in failure["message"]
    assert "LimitRange" in failure["remedy"]


def test_a_container_that_never_started_is_reported_in_the_runtimes_words(cluster: Cluster, namespace: str) -> None:
    mount = {"name": "extra", "mountPath": "/proc/extra"}
    pod = {"volumeMounts": [mount], "volumes": [{"name": "extra", "emptyDir": {}}]}
    cluster.apply(stand_in("unstarted", podTemplate={"spec": pod}), namespace)
    eventually("a failure", lambda: cluster.failure(namespace, "unstarted"), 60)
    failure = cluster.failure(namespace, "unstarted")
    assert "/proc" in failure["message"]
    assert "--previous" not in failure["remedy"]


def test_a_registry_that_is_busy_is_waited_for(cluster: Cluster, namespace: str) -> None:
    with registry(503) as host:
        cluster.apply(stand_in("busy", runtime={"image": f"{host}/vllm:v0.32.0"}), namespace)
        eventually("a failure", lambda: cluster.failure(namespace, "busy"), 60)
        failure = cluster.failure(namespace, "busy")
        assert "503" in failure["message"]
        assert not {"imagePullSecrets", "docs"} & set(failure["remedy"].split())
        assert cluster.condition(namespace, "busy", "Stalled") is None


@pytest.mark.full
def test_a_registry_that_is_silent_is_named_and_the_service_starts_once_it_answers(
    cluster: Cluster, namespace: str
) -> None:
    """containerd gives up a connection after 30 s."""
    with silent_registry(cluster.paths, STAND_IN_IMAGE) as registry:
        cluster.apply(stand_in("silent", runtime={"image": f"{registry.host}/vllm:v0.32.0"}), namespace)
        eventually("a failure", lambda: cluster.failure(namespace, "silent"), 90)
        failure = cluster.failure(namespace, "silent")
        assert failure["reason"] == "RegistryUnavailable"
        assert registry.host in failure["message"]
        assert cluster.condition(namespace, "silent", "Stalled") is None
        registry.answer()
        cluster.wait_condition(namespace, "silent", "Ready", "True", timeout=120)


def test_on_a_node_without_ipv6_it_serves_by_ipv4(cluster: Cluster, namespace: str) -> None:
    """Sockets of IPv6 are refused as by a kernel with `ipv6.disable=1`."""
    refusal = {"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EAFNOSUPPORT}
    of_ipv6 = {"index": 0, "value": socket.AF_INET6, "op": "SCMP_CMP_EQ"}
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [refusal | {"args": [of_ipv6]}]}
    name = "without-ipv6.json"
    file = first(cluster.paths).kubelet / "seccomp" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(profile))
    secured = {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": name}}}
    cluster.apply(stand_in("one", podTemplate={"spec": secured}), namespace)
    cluster.wait_condition(namespace, "one", "Ready", "True", timeout=60)
    log = cluster.kubectl("logs", "deployment/one", "-n", namespace, "-c", "server")
    assert "this node has no IPv6" in log


def test_it_answers_by_the_pods_ipv6_loopback(cluster: Cluster, namespace: str) -> None:
    """A pod of a cluster with IPv6 is asked by that address."""
    cluster.apply(stand_in("both"), namespace)
    cluster.wait_condition(namespace, "both", "Ready", "True", timeout=60)
    (pod,) = cluster.pods(namespace, "both")
    ask = "import urllib.request as r; print(r.urlopen('http://[::1]:8000/health').status)"
    words = ("exec", pod["metadata"]["name"], "-n", namespace, "-c", "server", "--", "python3", "-c", ask)
    assert cluster.kubectl(*words).strip() == "200"


def test_a_rule_about_pods_without_a_selector_keeps_the_replicas_apart(cluster: Cluster, namespace: str) -> None:
    """On one node there is no place for the second. To Kubernetes such a rule is about no pod."""
    rule = {"topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
    pod = {"affinity": apart, "nodeSelector": {"kubernetes.io/hostname": FIRST}}
    cluster.apply(stand_in("apart", scaling={"replicas": 2}, podTemplate={"spec": pod}), namespace)
    failure = eventually("a failure", lambda: cluster.failure(namespace, "apart"), 60)
    assert failure["reason"] == "NoMatchingNode"
    assert "anti-affinity" in failure["message"]
    assert len([pod for pod in cluster.pods(namespace, "apart") if "nodeName" in pod["spec"]]) == 1


def test_a_pod_of_another_controller_with_the_labels_is_no_replica(cluster: Cluster, namespace: str) -> None:
    """It fails, and would be the reason that is reported. Its ReplicaSet has a name like those of the Deployment."""
    nowhere = {"nodeSelector": {"e2e.llmservice.dev/node": "none"}}
    cluster.apply(stand_in("own", podTemplate={"spec": nowhere}), namespace)
    cluster.wait_condition(namespace, "own", "Ready", "False", reason="NoMatchingNode", timeout=60)
    labels = cluster.must_get("deployments", namespace, "own")["spec"]["template"]["metadata"]["labels"]
    theirs = {"app": "theirs"}
    spec = {"containers": [container("server", "registry.local/server:none", imagePullPolicy="Never")]}
    other: JSON = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "own-theirs", "labels": theirs},
        "spec": {
            "selector": {"matchLabels": theirs},
            "template": {"metadata": {"labels": labels | theirs}, "spec": spec},
        },
    }
    cluster.apply(other, namespace)

    def fails() -> bool:
        return "ErrImageNeverPull" in json.dumps(cluster.list("pods", namespace, "app=theirs"))

    eventually("a failure of the other pod", fails, 60)
    # Something to look again for, which changes no pod.
    cluster.patch("llmservices", namespace, "own", {"spec": {"endpoint": {"port": 81}}})
    cluster.wait_condition(namespace, "own", "Ready", "False", reason="NoMatchingNode", timeout=60)
    (own,) = (pod for pod in cluster.pods(namespace, "own") if "app" not in pod["metadata"]["labels"])
    command = (sys.executable, "-m", "llmservice_cli", "status", "own", "-n", namespace, "-o", "json")
    (shown,) = json.loads(cluster.run(*command))["services"]
    assert [pod["name"] for pod in shown["pods"]] == [own["metadata"]["name"]]
