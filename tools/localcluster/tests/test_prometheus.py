"""The Prometheus operator's own manifests, as the local cluster runs them, and what its Prometheus selects."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from localcluster.network import NODE
from localcluster.prometheus import NAMESPACE, adapted, prometheus

CONTAINER = {
    "name": "prometheus-operator",
    "image": "example.com/prometheus-operator:v1",
    "args": [
        "--kubelet-service=kube-system/kubelet",
        "--prometheus-config-reloader=example.com/reloader:v1",
        "--kubelet-endpoints=true",
        "--log-level=info",
    ],
    "resources": {"limits": {"cpu": "200m"}},
}
TEMPLATE = {"metadata": {"annotations": {}, "labels": {}}, "spec": {"containers": [CONTAINER]}}
UPSTREAM: list[dict[str, Any]] = [
    {"kind": "ClusterRole", "metadata": {"name": "prometheus-operator"}},
    {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "prometheus-operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "prometheus-operator", "namespace": "default"}],
    },
    {"kind": "ServiceAccount", "metadata": {"name": "prometheus-operator", "namespace": "default"}},
    {"kind": "Deployment", "metadata": {"name": "prometheus-operator"}, "spec": {"template": TEMPLATE}},
]


def only(kind: str, digest: str = "sha256:1") -> dict[str, Any]:
    (found,) = [each for each in adapted(UPSTREAM, digest) if each["kind"] == kind]
    return found


def test_a_pod_runs_our_image_on_the_first_node_and_asks_no_kubelet() -> None:
    pod = only("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    image = "registry.local/prometheus-operator:dev"
    assert (container["image"], container["imagePullPolicy"]) == (image, "Never")
    reloader = [f"--prometheus-config-reloader={image}", "--config-reloader-cpu-request=1m"]
    assert container["args"] == ["--log-level=info", *reloader]
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": NODE}


def test_all_is_in_one_namespace() -> None:
    assert only("Namespace")["metadata"]["name"] == NAMESPACE
    assert {only(kind)["metadata"]["namespace"] for kind in ("ServiceAccount", "Deployment")} == {NAMESPACE}
    assert only("ClusterRoleBinding")["subjects"][0]["namespace"] == NAMESPACE
    assert "namespace" not in only("ClusterRole")["metadata"]


def test_a_rebuilt_image_makes_another_pod() -> None:
    assert only("Deployment") != only("Deployment", "sha256:2")
    assert prometheus("sha256:1") != prometheus("sha256:2")


@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor", "rule"])
def test_monitors_and_rules_are_selected_by_the_release_in_every_namespace(kind: str) -> None:
    spec = prometheus("sha256:1")["spec"]
    assert spec[f"{kind}Selector"] == {"matchLabels": {"release": "prometheus"}}
    assert spec[f"{kind}NamespaceSelector"] == {}


def test_the_manifests_that_were_read_stay_as_they_are() -> None:
    before = copy.deepcopy(UPSTREAM)
    adapted(UPSTREAM, "sha256:1")
    assert before == UPSTREAM
